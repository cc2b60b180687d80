"""What vLLM tells of its engine: in /metrics always, in /server_info in development mode only."""

from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from decision_proxy.errors import ProxyError
from decision_proxy.upstream.answers import json_object
from decision_proxy.upstream.channel import Channel


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """None where the server does not say."""

    max_num_batched_tokens: int | None = None
    prefix_caching: bool | None = None
    priority_scheduling: bool | None = None
    kv_tokens: int | None = None


NOTHING_SAID = EngineFacts()


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests that run and wait in the engine, and the share of its KV cache in use, 0 to 1."""

    running: float
    waiting: float
    cache_use: float


async def engine_facts(channel: Channel, headers: dict[str, str]) -> EngineFacts:
    """Never fails: what cannot be had is None."""
    cache = _cache_labels(await _text(channel, "metrics", headers))
    config = _config(await _text(channel, "server_info?config_format=json", headers))
    scheduler, cache_config = config.get("scheduler_config", {}), config.get("cache_config", {})
    caching = cache.get("enable_prefix_caching", str(cache_config.get("enable_prefix_caching")))
    policy = scheduler.get("policy")
    return EngineFacts(
        max_num_batched_tokens=_count(scheduler.get("max_num_batched_tokens")),
        prefix_caching={"True": True, "False": False}.get(caching),
        priority_scheduling=None if policy is None else policy == "priority",
        kv_tokens=_count(cache.get("kv_cache_size_tokens")) or _blocks(cache),
    )


async def look(channel: Channel, headers: dict[str, str]) -> EngineLoad | None:
    """Never fails: None where vLLM does not say in time."""
    return engine_load(await _text(channel, "metrics", headers))


def engine_load(metrics: str) -> EngineLoad | None:
    """Summed over the server's engines; None when the text does not say."""
    sums: dict[str, float] = {}
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    for family in text_string_to_metric_families(metrics):
        if family.name in names:
            sums[family.name] = sum(sample.value for sample in family.samples)
    if names[0] not in sums or names[1] not in sums:
        return None
    return EngineLoad(*(sums.get(name, 0.0) for name in names))


async def _text(channel: Channel, path: str, headers: dict[str, str]) -> str:
    try:
        return (await channel.get(path, headers)).decode(errors="replace")
    except ProxyError:
        return ""


def _cache_labels(metrics: str) -> dict[str, str]:
    try:
        for family in text_string_to_metric_families(metrics):
            if family.name == "vllm:cache_config_info" and family.samples:
                return dict(family.samples[0].labels)
    except ValueError:
        pass
    return {}


def _config(text: str) -> dict[str, Any]:
    try:
        config = json_object(text.encode()).get("vllm_config")
    except ProxyError:
        return {}
    return config if isinstance(config, dict) else {}


def _blocks(cache: dict[str, str]) -> int | None:
    blocks, size = _count(cache.get("num_gpu_blocks")), _count(cache.get("block_size"))
    return blocks * size if blocks and size else None


def _count(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and int(text) > 0 else None
