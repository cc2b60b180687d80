"""What vLLM tells of its engine: in /metrics always, in /server_info in development mode only."""

import asyncio
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from decision_proxy.errors import ProxyError
from decision_proxy.upstream.answers import json_object
from decision_proxy.upstream.channel import Channel

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
CACHE = "vllm:kv_cache_usage_perc"
LONGEST_S = 5.0


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
    """Requests summed over the server's engines, of the caches the fullest; None if unsaid."""
    running, waiting, cache_use = (_samples(metrics, name) for name in (RUNNING, WAITING, CACHE))
    if not running or not waiting:
        return None
    values = [[sample.value for sample in found] for found in (running, waiting, cache_use)]
    return EngineLoad(sum(values[0]), sum(values[1]), max(values[2], default=0.0))


async def _text(channel: Channel, path: str, headers: dict[str, str]) -> str:
    try:
        async with asyncio.timeout(LONGEST_S):
            return (await channel.get(path, headers)).decode(errors="replace")
    except (ProxyError, TimeoutError):
        return ""


def _samples(metrics: str, name: str) -> list[Sample]:
    """All of one gauge. The whole text may be long, and its parser is slow."""
    lines = [line for line in metrics.splitlines() if line.startswith(name)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines)))
    except ValueError:
        return []
    return [sample for family in families if family.name == name for sample in family.samples]


def _cache_labels(metrics: str) -> dict[str, str]:
    found = _samples(metrics, "vllm:cache_config_info")
    return dict(found[0].labels) if found else {}


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
