"""The shell around the gate: whoever waits is woken, and whatever is held is given back."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from decision_proxy.admission import Admission, Brake, Room, loop_time, within
from decision_proxy.errors import (
    BodyTooSlow,
    DeadlineExceeded,
    Overloaded,
    UpstreamUnavailable,
)
from decision_proxy.gate import BUDGET_STEPS, Engine, Gate, Limits, Outcome, PolicyName, Work
from decision_proxy.upstream.engine import EngineLoad
from decision_proxy.upstream.warm_blocks import BLOCK_TOKENS

pytestmark = pytest.mark.anyio

STEP = 1024
BIG = Work(questions=2, shared_tokens=4 * STEP, own_tokens=STEP)
SMALL = Work(questions=2, shared_tokens=10, own_tokens=10)


def admission(
    policy: PolicyName = "turns", *, slots: int = 1, limits: Limits | None = None
) -> Admission:
    return Admission(Gate(policy, Engine(STEP), loop_time, slots=slots, limits=limits))


class Decision:
    """One decision's task, told when to end."""

    def __init__(self, at: Admission, work: Work = BIG, *, deadline_s: float = math.inf) -> None:
        self.runs, self.end = asyncio.Event(), asyncio.Event()
        self.computed: Callable[[], None] = lambda: None
        self.task = asyncio.create_task(self._decide(at, work, deadline_s))

    async def _decide(self, at: Admission, work: Work, deadline_s: float) -> None:
        async with at.turn(work, deadline_s=deadline_s) as self.computed:
            self.runs.set()
            await self.end.wait()

    async def ended(self) -> None:
        self.end.set()
        await self.task


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_next_in_line_runs_when_one_ends() -> None:
    at = admission()
    one, two, three = Decision(at), Decision(at), Decision(at)
    await settle()
    assert [each.runs.is_set() for each in (one, two, three)] == [True, False, False]
    await one.ended()
    await settle()
    assert [each.runs.is_set() for each in (two, three)] == [True, False]
    await two.ended()
    await three.runs.wait()
    await three.ended()
    assert repr(at.gate) == "<Gate turns 0/1 in flight, 0 running, 0 waiting>"


async def test_small_work_passes() -> None:
    at = admission()
    one, small = Decision(at), Decision(at, SMALL)
    await settle()
    assert small.runs.is_set()
    await small.ended()
    await one.ended()


async def test_a_decision_that_fails_gives_its_place_back() -> None:
    at = admission()
    with pytest.raises(ZeroDivisionError):
        async with at.turn(BIG):
            raise ZeroDivisionError
    assert at.gate.in_flight == 0
    assert len(at.gate.warm) == 0


@pytest.mark.parametrize("steps", range(6))
async def test_a_cancelled_decision_holds_nothing_whenever_it_goes(steps: int) -> None:
    at = admission()
    decisions = [Decision(at) for _ in range(4)]
    for _ in range(steps):
        await asyncio.sleep(0)
    for each in decisions[:3]:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in decisions[:3]), return_exceptions=True)
    await decisions[3].runs.wait()
    assert repr(at.gate) == "<Gate turns 1/1 in flight, 1 running, 0 waiting>"
    await decisions[3].ended()


async def test_woken_and_cancelled_at_once_it_gives_its_place_to_the_next() -> None:
    at = admission()
    one, two, three = Decision(at), Decision(at), Decision(at)
    await settle()
    one.end.set()
    await one.task  # two was woken by this, and has not run yet
    two.task.cancel()
    await settle()
    assert two.task.cancelled()
    assert three.runs.is_set()
    await three.ended()
    assert at.gate.running == 0


async def test_who_waits_past_its_deadline_is_told_so_though_nothing_else_happens() -> None:
    at = admission()
    one = Decision(at)
    await settle()
    late = Decision(at, deadline_s=loop_time() + 0.02)
    patient = Decision(at)
    with pytest.raises(DeadlineExceeded, match="waited its turn"):
        await late.task
    assert at.gate.outcomes[Outcome.EXPIRED] == 1
    await one.ended()
    await patient.runs.wait()
    await patient.ended()


async def test_a_deadline_that_is_over_on_arrival_is_refused() -> None:
    at = admission()
    with pytest.raises(Overloaded, match="after its deadline"):
        await Decision(at, deadline_s=loop_time() - 1).task
    assert at.gate.waiting == at.gate.running == 0


@pytest.mark.parametrize("limits", [Limits(waiting=1), Limits(waiting_bytes=150)])
async def test_a_full_queue_refuses_with_a_time_to_come_back(limits: Limits) -> None:
    work = Work(questions=2, shared_tokens=4 * STEP, own_tokens=STEP, bytes=100)
    at = admission(limits=limits)
    decisions = [Decision(at, work), Decision(at, work)]
    await settle()
    with pytest.raises(Overloaded, match="Too many decisions wait") as refused:
        await Decision(at, work).task
    assert refused.value.retry_after_s in range(1, 61)
    for each in decisions:
        await each.ended()


async def test_draining_sends_away_who_waits_and_who_comes_and_lets_the_rest_end() -> None:
    at = admission()
    one, two = Decision(at), Decision(at)
    await settle()
    at.drain()
    for late in (two, Decision(at), Decision(at, SMALL)):
        with pytest.raises(UpstreamUnavailable, match="shutting down"):
            await late.task
    assert at.gate.outcomes[Outcome.DRAINED] == 3
    await one.ended()
    assert at.gate.running == 0


async def test_a_follower_runs_once_the_state_of_its_leader_is_computed() -> None:
    at = admission("budget")
    blocks = tuple(range(4 * STEP // BLOCK_TOKENS))
    work = Work(questions=2, shared_tokens=4 * STEP, own_tokens=100, blocks=blocks)
    leader, follower = Decision(at, work), Decision(at, work)
    await settle()
    assert not follower.runs.is_set()
    leader.computed()
    await follower.runs.wait()
    await follower.ended()
    await leader.ended()
    assert at.gate.in_flight == 0


async def test_a_leader_that_goes_leaves_the_lead_to_the_next() -> None:
    at = admission("budget")
    work = Work(questions=2, shared_tokens=4 * STEP, own_tokens=100, blocks=tuple(range(16)))
    leader, follower, last = Decision(at, work), Decision(at, work), Decision(at, work)
    await settle()
    leader.task.cancel()
    await settle()
    assert follower.runs.is_set()
    assert not last.runs.is_set()
    await follower.ended()
    await last.runs.wait()
    await last.ended()


async def test_within_says_what_took_too_long_and_cancels_it() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    with pytest.raises(BodyTooSlow, match="over while its body was received"):
        async with within(loop_time() + 0.01, "its body was received", BodyTooSlow):
            await work()
    assert ended.is_set()


async def test_within_keeps_the_timeouts_of_what_runs_in_it() -> None:
    with pytest.raises(TimeoutError):
        async with within(loop_time() + 30, "x"):
            raise TimeoutError
    async with within(math.inf, "x"):
        await asyncio.sleep(0)


def test_room_is_given_back_whole() -> None:
    room = Room(100)
    with room.share() as take:
        take(60)
        with room.share() as other, pytest.raises(Overloaded):
            other(41)
        with room.share() as other:
            other(40)
        assert room.held_bytes == 60
        with pytest.raises(Overloaded) as refused:
            take(41)
        assert refused.value.retry_after_s in range(1, 61)
    assert room.held_bytes == 0


class Loads:
    """What vLLM will say of its load, one by one; the brake looks no sooner than it is asked."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[EngineLoad | None] = asyncio.Queue()

    async def look(self) -> EngineLoad | None:
        return await self.said.get()


@pytest.fixture
async def braked(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Admission, Brake, Loads]]:
    monkeypatch.setattr("decision_proxy.admission.WATCH_S", 0.0)
    at, loads = admission("budget"), Loads()
    brake = Brake(at, loads.look)
    watching = asyncio.create_task(brake.watch())
    async with AsyncExitStack() as stack:
        stack.callback(watching.cancel)
        yield at, brake, loads


async def brake_after(at: Admission, loads: Loads, *said: EngineLoad | None) -> list[float]:
    seen = []
    for load in said:
        loads.said.put_nowait(load)
        await settle()
        seen.append(at.gate.brake)
    return seen


BUSY, FULL, CALM = EngineLoad(1, 3, 0.1), EngineLoad(9, 0, 0.96), EngineLoad(9, 0, 0.5)


async def test_the_brake_halves_down_to_a_quarter_and_comes_back_by_quarters(
    braked: tuple[Admission, Brake, Loads],
) -> None:
    at, _, loads = braked
    assert await brake_after(at, loads, CALM, BUSY, FULL, BUSY) == [1.0, 0.5, 0.25, 0.25]
    assert await brake_after(at, loads, CALM, CALM, CALM, CALM) == [0.5, 0.75, 1.0, 1.0]


async def test_our_own_reads_are_no_reason_to_brake(
    braked: tuple[Admission, Brake, Loads],
) -> None:
    at, _, loads = braked
    ours = Decision(at, Work(questions=3, shared_tokens=2 * STEP, own_tokens=10))
    await settle()
    assert await brake_after(at, loads, BUSY) == [1.0]
    assert await brake_after(at, loads, EngineLoad(0, 4, 0.1)) == [0.5]
    await ours.ended()


async def test_a_stale_load_says_nothing_and_the_whole_budget_holds_again(
    braked: tuple[Admission, Brake, Loads], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, brake, loads = braked
    assert brake.is_stale
    assert await brake_after(at, loads, BUSY, None) == [0.5, 0.5]
    assert not brake.is_stale
    monkeypatch.setattr("decision_proxy.admission.STALE_S", 0.0)
    await asyncio.sleep(0.001)
    assert await brake_after(at, loads, None) == [1.0]
    assert brake.is_stale


async def test_under_the_brake_less_is_admitted_and_its_end_wakes_who_waits(
    braked: tuple[Admission, Brake, Loads],
) -> None:
    at, _, loads = braked
    work = Work(questions=2, shared_tokens=0, own_tokens=BUDGET_STEPS * STEP // 4)
    assert await brake_after(at, loads, BUSY) == [0.5]
    decisions = [Decision(at, work) for _ in range(3)]
    await settle()
    assert [each.runs.is_set() for each in decisions] == [True, True, False]
    await brake_after(at, loads, CALM)
    assert decisions[2].runs.is_set()
    for each in decisions:
        await each.ended()
