"""vLLM dies in the middle of a burst and comes back: nobody hangs, and the gate works on."""

import asyncio
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette

from bench.engine_process import EngineServer
from tests.app.harness import LONGEST_S, ask, questions, ready, until

pytestmark = pytest.mark.anyio

BURST = 24


@asynccontextmanager
async def serving(engine: EngineServer) -> AsyncIterator[None]:
    """Killed at the end, as the kernel does it."""
    command = [str(part) for part in engine.command()]
    process = await asyncio.create_subprocess_exec(
        *command, env=engine.environment(), stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(LONGEST_S):
            while not await asyncio.to_thread(engine.is_ready):
                assert process.returncode is None
        yield
    finally:
        process.kill()
        await process.wait()


def big(number: int) -> dict[str, Any]:
    line = f"Line of parcel {number}: it is late and nobody knows where it is.\n"
    return {"state": line * 400, "questions": questions(8)}


@pytest.mark.parametrize("policy", ["off", "turns", "budget"])
async def test_killed_in_a_burst_and_started_again(
    make_app: Callable[..., Starlette], policy: str
) -> None:
    engine = EngineServer(max_batched_tokens=2048, speed=0.2)
    gate = {"policy": policy, "max_batched_tokens": 2048, "budget_tokens": 24_000}
    async with AsyncExitStack() as stack:
        async with serving(engine):
            app = await stack.enter_async_context(ready(make_app(upstream=engine.url, gate=gate)))
            burst = [asyncio.create_task(ask(app, big(number))) for number in range(BURST)]
            expected = BURST if policy == "off" else 2
            await until(lambda: app.state.gate.running >= expected)
            await until(lambda: app.state.gate.running + app.state.gate.waiting == BURST)
        async with asyncio.timeout(LONGEST_S):
            replies = await asyncio.gather(*burst)
        for reply in replies:
            assert reply.status in {502, 503}
            assert reply.message
            assert int(reply.headers["retry-after"]) >= 1
        assert (await ask(app, big(0))).status == 503
        assert (app.state.gate.running, app.state.gate.waiting) == (0, 0)
        assert app.state.gate.in_flight == 0

        async with serving(engine):
            await until(lambda: app.state.served.model is not None)
            assert (await ask(app, {"state": "ok", "questions": questions()})).status == 200
