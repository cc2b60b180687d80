"""The gate in the whole application: turns, deadlines, limits, and what `/-/state` says of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from decision_proxy.gate import Outcome
from tests.app.harness import (
    DECISIONS,
    SYSTEMONE,
    Request,
    ask,
    decisions,
    get,
    ready,
    systemone,
    until,
)
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm

pytestmark = pytest.mark.anyio

ONE_AT_A_TIME = {"policy": "turns", "slots": 1, "max_batched_tokens": 16}
BIG = json.dumps(systemone(3)).encode()
BOTH = pytest.mark.parametrize(
    ("path", "body"), [(SYSTEMONE, systemone(3)), (DECISIONS, decisions(3))]
)
METRICS = """\
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_gpu_blocks="9"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 1.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 7.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
"""


@pytest.fixture
async def gated(make_app: Callable[..., Starlette]) -> AsyncIterator[Starlette]:
    async with ready(make_app(gate=ONE_AT_A_TIME)) as app:
        yield app


async def gate_state(app: Starlette) -> dict[str, Any]:
    state: dict[str, Any] = (await get(app, "/-/state")).body["gate"]
    return state


async def reading(app: Starlette, vllm: FakeVllm, raw: bytes = BIG) -> Request:
    already = len(vllm.reads)
    request = Request(app).sends(raw)
    await vllm.until(lambda: len(vllm.reads) == already + 1)
    return request


async def waiting(app: Starlette, raw: bytes = BIG, **headers: str) -> Request:
    before = app.state.gate.waiting
    request = Request(app, **headers).sends(raw)
    await until(lambda: app.state.gate.waiting == before + 1)
    return request


@BOTH
async def test_big_decisions_take_turns_on_both_routes(
    gated: Starlette, vllm: FakeVllm, path: str, body: dict[str, Any]
) -> None:
    release = asyncio.Event()
    vllm.every_read = faults.held(release)
    first = await reading(gated, vllm)
    reads = len(vllm.reads)
    second = Request(gated, path).sends(json.dumps(body).encode())
    await until(lambda: gated.state.gate.waiting == 1)
    alone = Request(gated).sends(json.dumps(systemone(1)).encode())
    await vllm.until(lambda: len(vllm.reads) == reads + 1)
    assert (await gate_state(gated))["running"] == 2
    release.set()
    assert [(await each.reply()).status for each in (first, second, alone)] == [200] * 3
    state = await gate_state(gated)
    assert (state["running"], state["waiting"], state["in_flight"]) == (0, 0, 0)
    assert state["outcomes"] == {"admitted": 2, "bypass": 1}


async def test_who_hangs_up_in_the_queue_leaves_it_and_asks_vllm_nothing(
    gated: Starlette, vllm: FakeVllm
) -> None:
    release = asyncio.Event()
    vllm.every_read = faults.held(release)
    first = await reading(gated, vllm)
    gone, stays = await waiting(gated), await waiting(gated)
    await gone.hangs_up().silence()
    assert gated.state.gate.waiting == 1
    reads = len(vllm.reads)
    release.set()
    assert [(await each.reply()).status for each in (first, stays)] == [200, 200]
    assert len(vllm.reads) == reads + 1
    assert gated.state.gate.outcomes[Outcome.CLIENT_GONE] == 1


async def test_who_hangs_up_while_it_reads_lets_the_next_one_in(
    gated: Starlette, vllm: FakeVllm
) -> None:
    vllm.every_read = faults.hang()
    first = await reading(gated, vllm)
    second = await waiting(gated)
    reads = len(vllm.reads)
    vllm.every_read = None
    await first.hangs_up().silence()
    assert (await second.reply()).status == 200
    await vllm.until(lambda: vllm.reads[reads - 1].aborted)


@BOTH
async def test_a_full_queue_is_a_429_that_says_when_to_come_back(
    make_app: Callable[..., Starlette], vllm: FakeVllm, path: str, body: dict[str, Any]
) -> None:
    async with ready(make_app(gate={**ONE_AT_A_TIME, "waiting": 0})) as app:
        vllm.every_read = faults.hang()
        first = await reading(app, vllm)
        refused = await ask(app, body, path)
        assert (refused.status, refused.body["error"]["code"]) == (429, 429)
        assert refused.message == "Too many decisions wait for their turn."
        assert int(refused.headers["retry-after"]) in range(1, 61)
        await first.hangs_up().silence()


async def test_bodies_that_are_too_many_bytes_together_are_a_429(
    make_app: Callable[..., Starlette],
) -> None:
    async with ready(make_app(limits={"bodies_bytes": 2000})) as app:
        slow = Request(app).sends(b" " * 1500, more=True)
        await until(lambda: not slow.unread)
        assert (await ask(app, systemone(9))).status == 429
        await slow.hangs_up().silence()
        assert (await ask(app, systemone(9))).status == 200


@BOTH
async def test_time_that_is_over_in_the_queue_is_a_504(
    gated: Starlette, vllm: FakeVllm, path: str, body: dict[str, Any]
) -> None:
    vllm.every_read = faults.hang()
    first = await reading(gated, vllm)
    late = await ask(gated, body, path, x_decision_timeout_s="0.5")
    assert late.status == 504
    assert late.message == "The time for this decision was over while it waited its turn."
    await first.hangs_up().silence()
    assert gated.state.gate.outcomes[Outcome.EXPIRED] == 1


@BOTH
async def test_time_that_is_over_while_vllm_works_is_a_504_and_ends_the_work(
    app: Starlette, vllm: FakeVllm, path: str, body: dict[str, Any]
) -> None:
    vllm.every_read = faults.hang()
    late = await ask(app, body, path, x_decision_timeout_s="0.5")
    assert late.status == 504
    assert late.message == "The time for this decision was over while vLLM worked on it."
    await vllm.until(lambda: vllm.reads[-1].aborted)
    assert app.state.gate.running == 0


async def test_the_setting_bounds_the_time_that_a_header_may_ask_for(
    make_app: Callable[..., Starlette], vllm: FakeVllm
) -> None:
    async with ready(make_app(limits={"deadline_s": 0.2})) as app:
        vllm.every_read = faults.hang()
        assert (await ask(app, systemone(), x_decision_timeout_s="1e9")).status == 504
        assert (await ask(app, systemone())).status == 504


async def test_a_body_that_does_not_come_in_time_is_a_408(app: Starlette) -> None:
    slow = Request(app, x_decision_timeout_s="0.05").sends(b"{", more=True)
    reply = await slow.reply()
    assert (reply.status, reply.body["error"]["code"]) == (408, 408)
    assert reply.message == "The time for this decision was over while its body was received."


@pytest.mark.parametrize("given", ["0", "-1", "soon", "nan", "inf", "", "1s"])
async def test_a_time_that_is_none_is_refused(app: Starlette, given: str) -> None:
    reply = await ask(app, systemone(), x_decision_timeout_s=given)
    assert reply.status == 400
    assert reply.message == "x-decision-timeout-s must be a number of seconds above 0"


async def test_once_drained_it_is_not_ready_and_everybody_is_sent_away(
    gated: Starlette, vllm: FakeVllm
) -> None:
    release = asyncio.Event()
    vllm.every_read = faults.held(release)
    first = await reading(gated, vllm)
    second = await waiting(gated)
    gated.state.drain()
    for reply in (await second.reply(), await ask(gated, systemone())):
        assert (reply.status, reply.message) == (503, "The proxy is shutting down.")
        assert int(reply.headers["retry-after"]) in range(1, 61)
    health = await get(gated, "/-/ready")
    assert (health.status, health.body["reasons"]) == (503, ["The proxy is shutting down."])
    assert (await get(gated, "/-/live")).status == 200
    release.set()
    assert (await first.reply()).status == 200


async def test_reads_that_fail_give_their_place_back(gated: Starlette, vllm: FakeVllm) -> None:
    for fault in (faults.status(500), faults.reset_connection(), faults.die_in_body()):
        vllm.every_read = fault
        assert (await ask(gated, systemone(3))).status in (502, 503)
    vllm.every_read = None
    await until(lambda: gated.state.served.model is not None)
    assert (await ask(gated, systemone(3))).status == 200
    assert gated.state.gate.running == 0


async def test_what_is_known_of_the_engine_says_from_where(
    make_app: Callable[..., Starlette], vllm: FakeVllm
) -> None:
    vllm.metrics = METRICS
    async with ready(make_app(gate={"policy": "budget", "max_batched_tokens": 4096})) as app:
        state = await gate_state(app)
    assert (state["policy"], state["capacity"]) == ("budget", 8 * 4096)
    assert state["engine"] == {
        "max_num_batched_tokens": {"value": 4096, "from": "setting"},
        "prefix_caching": {"value": False, "from": "vllm"},
        "priority_scheduling": {"value": False, "from": "default"},
        "kv_tokens": {"value": 144, "from": "vllm"},
    }


async def test_vllm_busy_with_others_work_brakes_the_budget(
    make_app: Callable[..., Starlette], vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decision_proxy.admission.WATCH_S", 0.0)
    vllm.metrics = METRICS
    async with ready(make_app(gate={"policy": "budget"})) as app:
        await until(lambda: app.state.gate.brake == 0.25)
        state = await gate_state(app)
        assert state["vllm_load"] == {"running": 1.0, "waiting": 7.0, "cache_use": 0.25}
        assert not state["vllm_load_is_stale"]
        assert (await ask(app, systemone(3))).status == 200


async def test_a_server_that_comes_back_has_a_cold_cache(
    app: Starlette, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("decision_proxy.reads.served.RETRY_S", 0.01)
    long = {**systemone(2), "state": "The parcel is late. " * 400}
    assert (await ask(app, long)).status == 200
    assert (await gate_state(app))["warm_blocks"] > 0
    vllm.every_read, vllm.ready = faults.reset_connection(), False
    assert (await ask(app, long)).status == 503
    await until(lambda: app.state.served.model is None)
    vllm.every_read, vllm.ready = None, True
    await until(lambda: app.state.served.model is not None)
    assert (await gate_state(app))["warm_blocks"] == 0
