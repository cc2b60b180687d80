"""What is read out of vLLM's metrics and server info, and that nothing there can fail or hang."""

import json
from typing import Any

import pytest

from decision_proxy.settings import Reads
from decision_proxy.upstream import engine
from decision_proxy.upstream.channel import Channel
from decision_proxy.upstream.engine import (
    EngineFacts,
    EngineLoad,
    engine_facts,
    engine_load,
    look,
)
from tests.fakes.vllm import FakeVllm

pytestmark = pytest.mark.anyio

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a b"} 3.0
vllm:num_requests_running{engine="1",model_name="a b"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a b"} 1.0
vllm:num_requests_waiting{engine="1",model_name="a b"} 0.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="a b",reason="capacity"} 50.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a b"} 0.75
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="100"} 1.0
"""


def test_load_is_summed_over_engines_and_the_fullest_cache_counts() -> None:
    assert engine_load(METRICS) == EngineLoad(running=7, waiting=1, cache_use=0.75)


def test_only_the_lines_that_count_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0
    original = engine.text_string_to_metric_families

    def counted(text: str) -> Any:
        nonlocal parsed
        parsed += len(text.splitlines())
        return original(text)

    monkeypatch.setattr(engine, "text_string_to_metric_families", counted)
    others = "\n".join(f'http_requests_total{{path="{i}"}} 1.0' for i in range(9999))
    assert engine_load(METRICS + others) is not None
    assert parsed < 10


@pytest.mark.parametrize(
    "text", ["", "vllm:num_requests_running", "vllm:num_requests_running{ x", "<html>", "\0"]
)
def test_what_is_no_metrics_says_nothing(text: str) -> None:
    assert engine_load(text) is None


async def facts(vllm: FakeVllm) -> EngineFacts:
    async with Channel(vllm.url, Reads()) as channel:
        return await engine_facts(channel, {})


async def test_facts_are_what_the_server_says(vllm: FakeVllm) -> None:
    vllm.metrics = METRICS
    assert await facts(vllm) == EngineFacts(None, True, None, 1600)


async def test_a_server_that_says_nothing_leaves_all_open(vllm: FakeVllm) -> None:
    assert await facts(vllm) == EngineFacts()
    vllm.metrics = json.dumps({"a": 1})
    assert await facts(vllm) == EngineFacts()


async def test_a_server_that_does_not_answer_is_not_waited_for(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LONGEST_S", 0.0)
    vllm.metrics = METRICS
    assert await facts(vllm) == EngineFacts()
    async with Channel(vllm.url, Reads()) as channel:
        assert await look(channel, {}) is None
