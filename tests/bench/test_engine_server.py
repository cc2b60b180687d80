"""The fake engine over HTTP, asked as the proxy asks."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
from aiohttp import web

from bench.engine import Costs, Limits, Scheduler
from bench.engine_server import MODEL, Engine, Routes
from bench.gate_load import metric_values
from decision_proxy.errors import UpstreamRefused
from decision_proxy.settings import Reads
from decision_proxy.upstream.discovery import discover
from decision_proxy.upstream.reads import Prompt, Read, ReadClient, ReadContext

pytestmark = pytest.mark.anyio

SETTINGS = Reads()
NEVER_ENDS = Costs(step_s=3600)
CONTEXT = ReadContext(MODEL, "decision")


@dataclass
class Served:
    engine: Engine
    url: str

    async def metrics(self) -> dict[str, float]:
        async with aiohttp.ClientSession() as client, client.get(f"{self.url}/metrics") as answer:
            return dict(metric_values(await answer.text()))

    async def until(self, name: str, value: float) -> None:
        """Each look is a round trip over the network, so the server's own work comes first."""
        while (await self.metrics())[name] != value:
            pass


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    engine = Engine(Scheduler(Limits()), Costs(0, 0, 0, 0))
    runner = web.AppRunner(
        Routes(engine, 1000).application(), handler_cancellation=True, shutdown_timeout=0
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield Served(engine, f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


def reads(count: int, *, tokens: int = 160) -> list[Read]:
    shared = b",".join([b"7"] * tokens)
    return [Read(Prompt(shared, tokens, (i,)), (32, 33)) for i in range(count)]


async def test_the_proxy_finds_it_suitable(served: Served) -> None:
    upstream = await discover(served.url, api_key=None, settings=SETTINGS)

    assert upstream.takes_lists
    assert upstream.logprobs_fault is None
    assert upstream.models[0].max_model_len == 1000


async def test_a_list_answers_as_its_prompts_do_alone_and_computes_the_state_once(
    served: Served,
) -> None:
    async with ReadClient(served.url, SETTINGS) as client:
        together = await client.read(reads(5), CONTEXT, takes_lists=True)
        computed = served.engine.scheduler.counters.computed
        alone = await client.read(reads(5), CONTEXT, takes_lists=False)

    assert [one.logprobs for one in together] == [one.logprobs for one in alone]
    assert computed == 161 + 4
    assert together[-1].cached_tokens == 160


async def test_a_prompt_longer_than_the_context_is_refused(served: Served) -> None:
    async with ReadClient(served.url, SETTINGS) as client:
        with pytest.raises(UpstreamRefused, match="maximum context length is 1000"):
            await client.read(reads(1, tokens=1000), CONTEXT, takes_lists=True)


async def test_a_client_that_hangs_up_aborts_its_requests_at_the_end_of_the_step(
    served: Served,
) -> None:
    served.engine.costs = NEVER_ENDS
    async with ReadClient(served.url, SETTINGS) as client:
        first = asyncio.create_task(client.read(reads(1), CONTEXT, takes_lists=True))
        await served.until("vllm:num_requests_running", 1)
        second = asyncio.create_task(client.read(reads(3), CONTEXT, takes_lists=True))
        await served.until("vllm:num_requests_waiting", 3)

        second.cancel()
        await served.until("vllm:num_requests_waiting", 0)
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        [running] = list(served.engine.scheduler._running)
        while not running.aborted:
            await served.metrics()

    served.engine.scheduler.finish_step()
    assert not served.engine.scheduler.busy
    assert served.engine.scheduler.pool.used == 0


async def test_its_metrics_tell_what_was_asked_and_what_was_cached(served: Served) -> None:
    async with ReadClient(served.url, SETTINGS) as client:
        await client.read(reads(5), CONTEXT, takes_lists=True)

    metrics = await served.metrics()
    assert metrics["vllm:prefix_cache_queries_total"] == 5 * 161
    assert metrics["vllm:prefix_cache_hits_total"] == 4 * 160
    assert metrics["bench:computed_tokens_total"] == 165
