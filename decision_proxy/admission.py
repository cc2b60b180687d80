"""Who may hold what, and for how long: the async shell around the gate, and all other bounds.

Whatever is taken here is given back exactly once, however the coroutine that took it ends.
"""

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from threading import Event
from typing import Any, NoReturn, TypeVar

from anyio import CapacityLimiter, to_process

from decision_proxy.errors import DeadlineExceeded, Overloaded, ProxyError, UpstreamUnavailable
from decision_proxy.gate import Gate, Outcome, Refusal, Ticket, Work
from decision_proxy.upstream.engine import EngineLoad

Result = TypeVar("Result")

PROCESSES = 2
DRAINING = "The proxy is shutting down."
MOST_JITTER = 1.5
WATCH_S = 2.0
STALE_S = 10.0
FULL_CACHE = 0.95
LEAST_BRAKE = 0.25

log = logging.getLogger(__name__)


def loop_time() -> float:
    """The clock of the gate, and of all deadlines: the running event loop's, in seconds."""
    return asyncio.get_running_loop().time()


class Workers:
    """Threads for parsing, rendering and tokenizing, and processes for what would stop all threads.

    Work whose client has gone leaves the queue; work that runs keeps its thread until it ends or
    gives up, so the pool stays bounded, or ends with its process.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prompt")
        self._processes = CapacityLimiter(PROCESSES)

    async def run(self, work: Callable[[], Result], *, here: bool = False) -> Result:
        """`here`: without a thread, for work that is shorter than the way to one."""
        if here:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def run_while_wanted(self, work: Callable[[Callable[[], bool]], Result]) -> Result:
        """`work` is given what tells it that nobody waits for it any more."""
        unwanted = Event()
        try:
            return await self.run(partial(work, unwanted.is_set))
        finally:
            unwanted.set()

    async def run_apart(self, work: Callable[[], Result]) -> Result:
        """For C code that keeps the interpreter lock; `work` and its result must be picklable."""
        return await to_process.run_sync(work, cancellable=True, limiter=self._processes)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Closing:
    """Set when the time is up that running decisions get at the end of the process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def reached(self) -> NoReturn:
        await self._event.wait()
        raise UpstreamUnavailable(DRAINING)


async def first(
    wanted: Coroutine[Any, Any, Result], *ends: Coroutine[Any, Any, NoReturn]
) -> Result:
    """What `wanted` gives, unless one of `ends` raises before; nothing is left running."""
    wanting = asyncio.ensure_future(wanted)
    ending = [asyncio.ensure_future(end) for end in ends]
    tasks = [wanting, *ending]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for end in ending:
            if end.done() and not wanting.done():
                end.result()
        return wanting.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def within(
    deadline_s: float, doing: str, error: type[ProxyError] = DeadlineExceeded
) -> AsyncIterator[None]:
    """`deadline_s`: on the event loop's clock. Raises `error`, which says what was being done.

    What runs inside is cancelled first.
    """
    timeout = asyncio.timeout_at(None if math.isinf(deadline_s) else deadline_s)
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise error(f"The time for this decision was over while {doing}.") from None


class Room:
    """Bytes that the bodies of all requests together may hold."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Gives what takes bytes, and raises Overloaded where none are left; all come back."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if self.held_bytes + size > self.most_bytes:
                raise Overloaded(
                    "Too many bytes of other requests are held.", retry_after_s=_jittered(1.0)
                )
            self.held_bytes += size
            taken += size

        try:
            yield take
        finally:
            self.held_bytes -= taken


class Admission:
    """The gate, for coroutines. Its clock must be `loop_time`."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self._waiters: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def turn(
        self, work: Work, *, deadline_s: float = math.inf
    ) -> AsyncIterator[Callable[[], None]]:
        """Waits until `work` may run, and holds its place until the block ends, however it does.

        Gives what to call when a first read was answered. Raises Overloaded, DeadlineExceeded,
        and UpstreamUnavailable once `drain` was called.
        """
        ticket = self._arrived(work, deadline_s)
        served = False
        try:
            await self._admitted(ticket)
            yield partial(self._computed, ticket)
            served = True
        finally:
            self.gate.leave(ticket, served=served)
            self.advance()

    def drain(self) -> None:
        """Who waits is told to go elsewhere, and so is everybody who comes."""
        self._wake(self.gate.drain())

    def advance(self) -> None:
        """To be called after each change of the gate."""
        self._wake(self.gate.advance())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self.gate.next_deadline_s()
        if not math.isinf(deadline_s):
            self._timer = asyncio.get_running_loop().call_at(deadline_s, self.advance)

    def _wake(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            waiter = self._waiters.pop(ticket)
            if not waiter.done():
                waiter.set_result(None)

    def _arrived(self, work: Work, deadline_s: float) -> Ticket:
        try:
            return self.gate.arrive(work, deadline_s=deadline_s)
        except Refusal as refusal:
            raise _refused(refusal) from None

    async def _admitted(self, ticket: Ticket) -> None:
        self._waiters[ticket] = waiter = asyncio.get_running_loop().create_future()
        self.advance()
        try:
            await waiter
        finally:
            self._waiters.pop(ticket, None)
        if ticket.outcome is Outcome.EXPIRED:
            raise DeadlineExceeded("The time for this decision was over while it waited its turn.")
        if ticket.outcome is Outcome.DRAINED:
            raise UpstreamUnavailable(DRAINING)

    def _computed(self, ticket: Ticket) -> None:
        self.gate.computed(ticket)
        self.advance()


def _refused(refusal: Refusal) -> ProxyError:
    retry_after_s = _jittered(refusal.retry_after_s)
    if refusal.outcome is Outcome.DRAINED:
        return UpstreamUnavailable(DRAINING, retry_after_s=retry_after_s)
    if refusal.outcome is Outcome.REJECTED_FULL:
        return Overloaded("Too many decisions wait for their turn.", retry_after_s=retry_after_s)
    return Overloaded(
        "This decision's turn would come after its deadline.", retry_after_s=retry_after_s
    )


def _jittered(seconds: float) -> int:
    """Whole seconds, 1 to 60, so that not everybody comes back at once."""
    spread = random.uniform(1.0, MOST_JITTER)  # noqa: S311 - nothing secret
    return max(1, min(60, math.ceil(seconds * spread)))


class Brake:
    """Lets fewer tokens into vLLM while more than our own work keeps it busy.

    Every WATCH_S its load is looked at. When requests wait that are not ours, or the KV cache is
    nearly full, half of the budget goes, down to LEAST_BRAKE of it; otherwise LEAST_BRAKE of it
    comes back. A load that is STALE_S old says nothing, and the whole budget holds again.
    """

    def __init__(
        self, admission: Admission, look: Callable[[], Awaitable[EngineLoad | None]]
    ) -> None:
        self.load: EngineLoad | None = None
        self._admission = admission
        self._look = look
        self._seen_s = -math.inf

    @property
    def is_stale(self) -> bool:
        return loop_time() - self._seen_s > STALE_S

    async def watch(self) -> NoReturn:
        while True:
            ours = self._admission.gate.reads_running
            load = await self._look()
            self._apply(load, max(ours, self._admission.gate.reads_running))
            await asyncio.sleep(WATCH_S)

    def _apply(self, load: EngineLoad | None, ours: int) -> None:
        gate = self._admission.gate
        if load is not None:
            self.load, self._seen_s = load, loop_time()
            busy = load.waiting > ours or load.cache_use > FULL_CACHE
            gate.brake = max(LEAST_BRAKE, gate.brake / 2) if busy else gate.brake + LEAST_BRAKE
        if self.is_stale:
            gate.brake = 1.0
        gate.brake = min(1.0, gate.brake)
        self._admission.advance()
