"""The pure gate: who runs, who waits, and that nothing is ever lost."""

import math
from array import array
from dataclasses import replace
from typing import Any

import pytest

from decision_proxy.gate import (
    SMALL_RUNNING,
    Engine,
    Gate,
    Limits,
    Outcome,
    Refusal,
    Work,
)
from decision_proxy.upstream.warm_blocks import BLOCK_TOKENS, block_keys

STEP = Engine().max_num_batched_tokens
BIG = Work(questions=64, shared_tokens=27_000, own_tokens=2_500)
SMALL = Work(questions=5, shared_tokens=200, own_tokens=150)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def gate(policy: Any, engine: Engine | None = None, **options: Any) -> tuple[Gate, Clock]:
    clock = Clock()
    return Gate(policy, engine or Engine(), clock, **options), clock


def on(state: str, work: Work = BIG) -> Work:
    """`work` on a state of its own, blocks and all."""
    return replace(work, blocks=blocks(state, work.shared_tokens))


def blocks(state: str, tokens: int) -> tuple[int, ...]:
    return block_keys(state, [array("I", range(tokens))])


def test_turns_lets_two_big_decisions_run_and_keeps_the_others_in_order() -> None:
    turns, _ = gate("turns")
    tickets = [turns.arrive(BIG) for _ in range(5)]
    assert turns.advance() == tickets[:2]
    assert repr(turns) == "<Gate turns 2/2 in flight, 2 running, 3 waiting>"
    turns.leave(tickets[1])
    assert turns.advance() == [tickets[2]]
    turns.leave(tickets[0])
    turns.leave(tickets[2])
    assert turns.advance() == tickets[3:]


def test_turns_lets_small_decisions_and_single_questions_pass() -> None:
    turns, _ = gate("turns")
    for _ in range(3):
        turns.arrive(BIG)
    turns.advance()
    passing = [turns.arrive(SMALL), turns.arrive(replace(BIG, questions=1))]
    assert turns.advance() == passing
    assert {ticket.outcome for ticket in passing} == {Outcome.BYPASS}


@pytest.mark.parametrize(
    ("work", "engine", "big"),
    [
        (Work(2, STEP - 10, 10), Engine(), False),
        (Work(2, STEP - 10, 11), Engine(), True),
        (Work(2, STEP // 2, 11), Engine(), False),
        (Work(2, STEP // 2, 11), Engine(prefix_caching=False), True),
        (Work(1, 10 * STEP, 11), Engine(prefix_caching=False), False),
        (Work(64, 10 * STEP, 11), Engine(priority_scheduling=True), False),
        (Work(2, 1_000, 25), Engine(max_num_batched_tokens=1_024), True),
    ],
)
def test_turns_calls_big_what_the_reference_calls_big(
    work: Work, engine: Engine, big: bool
) -> None:
    turns, _ = gate("turns", engine)
    assert turns.price(work) == int(big)


def test_off_lets_everybody_run() -> None:
    off, _ = gate("off")
    tickets = [off.arrive(BIG) for _ in range(100)]
    assert off.advance() == tickets


def test_budget_prices_what_the_engine_has_not_cached() -> None:
    budget, _ = gate("budget")
    assert budget.price(on("a")) == 29_500
    ticket = budget.arrive(on("a"))
    budget.advance()
    assert budget.price(on("a")) is None
    budget.leave(ticket, served=True)
    assert budget.price(on("a")) == 2_500 + 27_000 % BLOCK_TOKENS


def test_budget_prices_a_single_question_on_a_long_cold_state_like_the_rest() -> None:
    budget, _ = gate("budget")
    assert budget.price(on("a", Work(1, 27_000, 40))) == 27_040


def test_followers_of_a_cold_state_wait_for_its_leader_and_block_nobody_else() -> None:
    budget, _ = gate("budget", budget_tokens=100_000)
    leader, follower, other = (budget.arrive(on(state)) for state in "aab")
    assert budget.advance() == [leader, other]
    budget.leave(leader, served=True)
    assert budget.advance() == [follower]
    assert (follower.cost, follower.outcome) == (2_620, Outcome.FOLLOWER)


def test_a_leader_that_fails_hands_the_lead_to_the_next() -> None:
    budget, _ = gate("budget", budget_tokens=100_000)
    first, second, third = (budget.arrive(on("a")) for _ in range(3))
    budget.advance()
    budget.leave(first)
    assert budget.advance() == [second]
    assert second.leads is not None
    budget.leave(second, served=True)
    assert budget.advance() == [third]


def test_a_first_answer_makes_the_state_warm_and_frees_its_share() -> None:
    budget, _ = gate("budget")
    leader, follower = budget.arrive(on("a")), budget.arrive(on("a"))
    budget.advance()
    budget.computed(leader)
    assert repr(budget) == "<Gate budget 2500/65536 in flight, 1 running, 1 waiting>"
    assert budget.advance() == [follower]
    budget.leave(leader, served=True)
    budget.leave(follower, served=True)
    assert repr(budget) == "<Gate budget 0/65536 in flight, 0 running, 0 waiting>"


def test_a_burst_on_one_warm_state_is_limited_by_the_budget_alone() -> None:
    budget, _ = gate("budget", budget_tokens=10_000)
    budget.warm.touch(on("a").blocks)
    tickets = [budget.arrive(on("a")) for _ in range(6)]
    assert budget.advance() == tickets[:3]


def test_an_oversized_decision_runs_alone_and_does_not_starve() -> None:
    budget, _ = gate("budget", budget_tokens=20_000)
    first = budget.arrive(on("a", Work(8, 9_000, 300)))
    giant = budget.arrive(on("b"))
    late = budget.arrive(on("c", Work(8, 9_000, 300)))
    assert budget.advance() == [first]
    budget.leave(first, served=True)
    assert budget.advance() == [giant]
    budget.leave(giant, served=True)
    assert budget.advance() == [late]


def test_small_work_passes_at_once_until_there_is_much_of_it() -> None:
    budget, _ = gate("budget", budget_tokens=20_000)
    giant = budget.arrive(on("a"))
    budget.advance()
    tickets = [budget.arrive(Work(1, 0, 200)) for _ in range(SMALL_RUNNING + 1)]
    assert budget.advance() == tickets[:-1]
    budget.leave(tickets[0])
    assert budget.advance() == [tickets[-1]]
    assert giant.outcome is Outcome.ADMITTED


def test_without_a_prefix_cache_every_prompt_counts_in_full() -> None:
    budget, _ = gate("budget", Engine(prefix_caching=False))
    assert budget.price(on("a", Work(4, 3_000, 100))) == 12_100


def test_states_grow_cold_when_the_engine_cannot_hold_them_all() -> None:
    budget, _ = gate("budget", Engine(kv_tokens=60_000))
    for state in "abc":
        budget.warm.touch(on(state).blocks)
    held = [budget.warm.length(on(state).blocks) for state in "abc"]
    assert held == [24, 105, 105]


def test_a_state_that_grew_is_priced_for_what_is_new() -> None:
    budget, _ = gate("budget")
    budget.warm.touch(blocks("a", 25_600))
    assert budget.price(on("a", Work(64, 27_600, 2_500))) == 2_000 + 2_500


def test_block_keys_tell_states_scopes_and_beginnings_apart() -> None:
    ids = array("I", range(600))
    assert block_keys("a", [ids]) == block_keys("a", [ids[:100], ids[100:]])
    assert block_keys("a", [ids])[:1] == block_keys("a", [ids[:256]])
    assert not set(block_keys("a", [ids])) & set(block_keys("b", [ids]))
    other = array("I", [9, *range(1, 600)])
    assert not set(block_keys("a", [ids])) & set(block_keys("a", [other]))


def test_who_leaves_the_queue_frees_what_it_held_once() -> None:
    turns, _ = gate("turns", slots=1)
    running, gone, last = (turns.arrive(replace(BIG, bytes=10)) for _ in range(3))
    turns.advance()
    turns.leave(gone)
    turns.leave(gone)
    assert (gone.outcome, turns.waiting_bytes) == (Outcome.CLIENT_GONE, 10)
    turns.leave(running)
    turns.leave(running)
    assert turns.advance() == [last]
    assert turns.in_flight == 1


def test_a_missed_deadline_ends_the_wait_and_an_impossible_one_is_refused_on_arrival() -> None:
    turns, clock = gate("turns", slots=1)
    turns.arrive(BIG)
    turns.advance()
    late = turns.arrive(BIG, deadline_s=105.0)
    assert turns.next_deadline_s() == 105.0
    clock.now = 105.0
    assert turns.advance() == [late]
    assert late.outcome is Outcome.EXPIRED
    assert turns.next_deadline_s() == math.inf
    with pytest.raises(Refusal) as refused:
        turns.arrive(BIG, deadline_s=105.0)
    assert refused.value.outcome is Outcome.REJECTED_DEADLINE


@pytest.mark.parametrize("limits", [Limits(waiting=2), Limits(waiting_bytes=25)])
def test_a_full_queue_refuses_with_an_honest_retry(limits: Limits) -> None:
    turns, clock = gate("turns", slots=1, limits=limits)
    first = turns.arrive(replace(BIG, bytes=10))
    turns.advance()
    clock.now += 8
    turns.leave(first)
    for _ in range(1 + 2):
        turns.arrive(replace(BIG, bytes=10))
        turns.advance()
    with pytest.raises(Refusal) as refused:
        turns.arrive(replace(BIG, bytes=10))
    assert refused.value.outcome is Outcome.REJECTED_FULL
    assert refused.value.retry_after_s == pytest.approx(24.0)


def test_draining_tells_those_who_wait_and_lets_the_others_finish() -> None:
    turns, _ = gate("turns", slots=1)
    running, waiting = turns.arrive(BIG), turns.arrive(BIG)
    turns.advance()
    assert turns.drain() == [waiting]
    assert waiting.outcome is Outcome.DRAINED
    with pytest.raises(Refusal):
        turns.arrive(BIG)
    turns.leave(running)
    assert repr(turns) == "<Gate turns 0/2 in flight, 0 running, 0 waiting>".replace("/2", "/1")
