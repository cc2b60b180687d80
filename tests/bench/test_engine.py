"""The model of vLLM's step loop that `bench/gate.py` measures against."""

from collections.abc import Iterable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.engine import Costs, Limits, Part, Prompt, Request, Scheduler, Step
from bench.engine_blocks import BlockPool
from bench.engine_prompts import block_hashes, parsed

BLOCK = 16
HIDDEN = 1_000_000


def prompt(state: int, state_tokens: int, own_tokens: int = 0, own: int = 0) -> Prompt:
    """`state_tokens` that every prompt of the state shares, then `own_tokens` of its own."""
    ids = [state] * state_tokens + [HIDDEN + own] * own_tokens
    return Prompt(len(ids), block_hashes(ids, BLOCK))


def scheduler(**limits: int | bool) -> Scheduler:
    return Scheduler(Limits(**limits))  # type: ignore[arg-type]


def step(engine: Scheduler) -> list[Part]:
    """One whole step; what it computed."""
    started = engine.start_step()
    if started is None:
        return []
    engine.finish_step()
    return list(started.parts)


def steps(engine: Scheduler) -> list[list[Part]]:
    """All steps until nothing is left to do."""
    return list(iter(lambda: step(engine), []))


def shape(parts: Iterable[Part], requests: list[Request]) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each part; requests by their position in the list."""
    return [(requests.index(part.request), part.start, part.tokens) for part in parts]


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    request = engine.add(prompt(1, 250))

    chunks = [shape(parts, [request]) for parts in steps(engine)]

    assert chunks == [[(0, 0, 100)], [(0, 100, 100)], [(0, 200, 50)]]
    assert not engine.busy


def test_running_requests_go_before_waiting_ones_and_waiting_ones_in_order_of_arrival() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    requests = [engine.add(prompt(i, tokens)) for i, tokens in enumerate((150, 30, 30, 10))]

    assert shape(step(engine), requests) == [(0, 0, 100)]
    assert shape(step(engine), requests) == [(0, 100, 50), (1, 0, 30), (2, 0, 20)]
    assert shape(step(engine), requests) == [(2, 20, 10), (3, 0, 10)]


def test_a_small_request_waits_for_everything_that_came_before_it() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    flood = [engine.add(prompt(i, 100)) for i in range(20)]
    bystander = engine.add(prompt(99, 10))

    order = [part.request for parts in steps(engine) for part in parts]

    assert order == [*flood, bystander]


def test_no_more_requests_run_at_once_than_allowed() -> None:
    engine = scheduler(max_num_seqs=3)
    for i in range(7):
        engine.add(prompt(i, 10))

    assert [len(parts) for parts in steps(engine)] == [3, 3, 1]


def test_a_state_computed_before_is_not_computed_again() -> None:
    engine = scheduler()
    engine.add(prompt(1, 1600, 10, own=1))
    steps(engine)
    engine.add(prompt(1, 1600, 10, own=2))

    [[part]] = steps(engine)

    assert (part.start, part.tokens) == (1600, 10)
    assert engine.counters.hits == 1600


def test_only_full_blocks_are_found_again() -> None:
    engine = scheduler()
    engine.add(prompt(1, 1607, 10, own=1))
    steps(engine)
    engine.add(prompt(1, 1607, 10, own=2))

    [[part]] = steps(engine)

    assert (part.start, part.tokens) == (1600, 17)


def test_the_last_block_of_a_prompt_is_computed_even_if_all_of_it_is_cached() -> None:
    engine = scheduler()
    for _ in range(2):
        engine.add(prompt(1, 160))
    first, second = steps(engine)[0]

    assert (first.start, first.tokens) == (0, 160)
    assert (second.start, second.tokens) == (144, 16)


def test_requests_of_one_step_share_what_is_scheduled_before_them_as_in_vllm() -> None:
    """`allocate_slots` makes blocks findable at once: KV is written before attention reads it."""
    engine = scheduler()
    reads = [engine.add(prompt(1, 1600, 20, own=i)) for i in range(4)]

    [parts] = steps(engine)

    assert shape(parts, reads) == [(0, 0, 1620), (1, 1600, 20), (2, 1600, 20), (3, 1600, 20)]


def test_recurrent_states_are_not_shared_by_requests_that_start_together() -> None:
    engine = scheduler(shares_within_step=False)
    together = [engine.add(prompt(1, 1600, 20, own=i)) for i in range(2)]
    [parts] = steps(engine)
    assert shape(parts, together) == [(0, 0, 1620), (1, 0, 1620)]

    engine.add(prompt(1, 1600, 20, own=2))
    [[later]] = steps(engine)
    assert later.start == 1600


def test_reads_behind_a_chunked_state_start_in_the_step_of_its_last_chunk() -> None:
    engine = scheduler(max_num_batched_tokens=1000)
    reads = [engine.add(prompt(1, 1600, 20, own=i)) for i in range(3)]

    assert shape(step(engine), reads) == [(0, 0, 1000)]
    assert shape(step(engine), reads) == [(0, 1000, 620), (1, 1600, 20), (2, 1600, 20)]


def test_nothing_is_shared_with_the_prefix_cache_off() -> None:
    engine = scheduler(prefix_caching=False)
    for _ in range(2):
        engine.add(prompt(1, 160))
    steps(engine)

    assert engine.counters.computed == 320
    assert engine.counters.queries == engine.pool.held == 0


def test_the_state_used_longest_ago_is_evicted_first_and_its_end_before_its_start() -> None:
    engine = scheduler(blocks=20)
    for state in (1, 2, 1, 3):
        engine.add(prompt(state, 8 * BLOCK))
        steps(engine)

    assert engine.pool.held == 20
    assert engine.pool.leading(prompt(1, 8 * BLOCK).blocks) == 8
    assert engine.pool.leading(prompt(3, 8 * BLOCK).blocks) == 8
    assert engine.pool.leading(prompt(2, 8 * BLOCK).blocks) == 4


def test_a_prompt_that_does_not_fit_now_waits_and_nobody_overtakes_it() -> None:
    engine = scheduler(blocks=10, max_num_batched_tokens=100)
    large = [engine.add(prompt(i, 8 * BLOCK)) for i in range(2)]
    small = engine.add(prompt(9, BLOCK))

    order = [shape(parts, [*large, small]) for parts in steps(engine)]

    assert order == [[(0, 0, 100)], [(0, 100, 28)], [(1, 0, 100)], [(1, 100, 28), (2, 0, 16)]]


def test_a_prompt_larger_than_the_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="fits into no step"):
        scheduler(blocks=10).add(prompt(1, 11 * BLOCK))


def test_an_aborted_waiting_request_leaves_at_once() -> None:
    engine = scheduler()
    request = engine.add(prompt(1, 100))
    engine.abort(request)

    assert (engine.busy, engine.start_step(), engine.counters.aborted) == (False, None, 1)


def test_an_aborted_running_request_frees_its_blocks_when_the_step_ends() -> None:
    engine = scheduler(max_num_batched_tokens=160)
    request = engine.add(prompt(1, 1600))
    engine.start_step()
    engine.abort(request)
    assert (engine.running, engine.pool.used) == (1, 10)

    assert engine.finish_step() == []

    assert (engine.running, engine.pool.used) == (0, 0)
    assert engine.pool.leading(request.prompt.blocks) == 10, "what was computed stays cached"


def test_an_aborted_request_between_steps_is_gone_before_the_next_one() -> None:
    engine = scheduler(max_num_batched_tokens=100)
    request = engine.add(prompt(1, 250))
    step(engine)
    engine.abort(request)

    assert engine.start_step() is None
    assert engine.pool.used == 0


def test_aborting_twice_or_after_the_end_changes_nothing() -> None:
    engine = scheduler()
    request = engine.add(prompt(1, 100))
    steps(engine)
    engine.abort(request)
    engine.abort(request)

    assert (engine.counters.finished, engine.counters.aborted) == (1, 0)


def test_the_default_costs_are_about_those_of_a_small_model_on_a_large_gpu() -> None:
    engine = scheduler()
    engine.add(prompt(1, 27_000))
    cold_s = duration_s(engine)
    for i in range(64):
        engine.add(prompt(1, 27_000, 60, own=i))
    warm_s = duration_s(engine)

    assert 0.9 < cold_s < 1.1
    assert 0.25 < warm_s < 0.35


def duration_s(engine: Scheduler) -> float:
    total = 0.0
    while (started := engine.start_step()) is not None:
        total += Costs().of(started)
        engine.finish_step()
    return total


def test_a_step_costs_its_overhead_its_tokens_its_requests_and_their_contexts() -> None:
    request = Request(prompt(1, 100))
    costs = Costs(step_s=1, token_s=10, request_s=100, context_token_s=1000)

    assert costs.of(Step((Part(request, 0, 2), Part(request, 3, 1)))) == 1 + 30 + 200 + 3000


def test_the_pool_takes_no_more_than_it_has() -> None:
    with pytest.raises(RuntimeError, match="2 blocks wanted"):
        BlockPool(1).take_private(2)


prompts = st.builds(
    prompt,
    st.integers(1, 4),
    st.integers(1, 300),
    st.integers(0, 40),
    own=st.integers(0, 3),
)
events = st.lists(st.one_of(prompts, st.integers(0, 10), st.just("step")), max_size=60)


class Play:
    """Requests that come and go, one step at a time, with the laws of each step checked."""

    def __init__(self, limits: Limits) -> None:
        self.engine = Scheduler(limits)
        self.limits = limits
        self.alive: list[Request] = []
        self.arrived: list[Request] = []
        self.started: list[Request] = []

    def happen(self, event: Prompt | int | str) -> None:
        if isinstance(event, Prompt):
            self.alive.append(self.engine.add(event))
            self.arrived.append(self.alive[-1])
        elif isinstance(event, str):
            self.step()
        elif event < len(self.alive):
            self.engine.abort(self.alive.pop(event))

    def step(self) -> None:
        step = self.engine.start_step()
        if step is None:
            assert not self.engine.busy, "it never idles while there is work"
            return
        pool = self.engine.pool
        assert step.tokens <= self.limits.max_num_batched_tokens
        assert len(step.parts) <= self.engine.running <= self.limits.max_num_seqs
        assert pool.used <= self.limits.blocks
        assert pool.held + pool.private <= self.limits.blocks
        new = [part for part in step.parts if part.request not in self.started]
        assert all(part.start == part.request.cached for part in new)
        self.started += [part.request for part in new]
        for request in self.engine.finish_step():
            self.alive.remove(request)


@given(
    events=events,
    budget=st.integers(1, 200),
    seqs=st.integers(1, 5),
    blocks=st.integers(22, 60),
    within_step=st.booleans(),
)
def test_laws(
    events: list[Prompt | int | str], budget: int, seqs: int, blocks: int, within_step: bool
) -> None:
    play = Play(Limits(budget, seqs, blocks, BLOCK, shares_within_step=within_step))
    for event in events:
        play.happen(event)
    while play.engine.busy:
        play.step()

    assert play.alive == []
    assert play.engine.pool.used == play.engine.pool.private == 0, "every block was given back"
    order = [play.arrived.index(request) for request in play.started]
    assert order == sorted(order), "first come, first served"
    counters = play.engine.counters
    assert counters.finished + counters.aborted == len(play.arrived)
    if not counters.aborted:
        assert counters.computed == counters.queries - counters.hits


@given(count=st.integers(1, 8), state=st.integers(0, 100), budget=st.integers(30, 500))
def test_a_shared_state_is_computed_once_however_the_steps_fall(
    count: int, state: int, budget: int
) -> None:
    engine = scheduler(max_num_batched_tokens=budget)
    for own in range(count):
        engine.add(prompt(1, state, 20, own=own))
    steps(engine)

    once = state // BLOCK * BLOCK
    assert engine.counters.computed == once + count * (state - once + 20)


token_ids = st.lists(st.integers(0, 3), min_size=1, max_size=70)


@given(prompts=st.lists(token_ids, min_size=1, max_size=6), salt=st.sampled_from(["", "a"]))
def test_prompts_in_a_body_hash_as_they_do_alone(prompts: list[list[int]], salt: str) -> None:
    fields = {"model": "fake", "cache_salt": salt}
    quick = parsed(orjson.dumps({**fields, "prompt": prompts}), BLOCK)
    last = parsed(orjson.dumps({"prompt": prompts, **fields}), BLOCK)
    alone = [parsed(orjson.dumps({**fields, "prompt": ids}), BLOCK).prompts[0] for ids in prompts]

    assert quick.prompts == last.prompts == alone
    assert quick.fields == last.fields == fields
    assert [found.tokens for found in alone] == list(map(len, prompts))


def test_prompts_share_nothing_across_models_or_salts() -> None:
    bodies = [
        {"model": model, "cache_salt": salt, "prompt": [7] * BLOCK}
        for model in ("one", "two")
        for salt in ("a", "b")
    ]
    hashes = {parsed(orjson.dumps(body), BLOCK).prompts[0].blocks[0] for body in bodies}

    assert len(hashes) == 4


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b'{"model":"m"}',
        b'{"model":"m","prompt":"text"}',
        b'{"model":"m","prompt":[]}',
        b'{"model":"m","prompt":[[1],[]]}',
        b'{"model":"m","prompt":["a"]}',
        b'{"model":"m","prompt":[1.5]}',
        b'{"model":"m","prompt":[1,[2]]}',
        b'{"prompt":[[1],2],"model":"m"}',
    ],
)
def test_a_body_without_prompts_of_token_ids_is_refused(body: bytes) -> None:
    with pytest.raises((ValueError, TypeError)):
        parsed(body, BLOCK)
