"""How long `/-/live` takes while the proxy works on the worst bodies.

    .venv/bin/python -m bench.liveness [--seconds 6]

The proxy in front of the fake engine, both as child processes. `/-/live` is asked every 5 ms, over
one connection, while one client sends the same body again and again. "idle" is the machine's own
noise, to hold the others against; they all come from one run.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import orjson

from bench.engine_process import EngineServer
from bench.gate_load import PATH, session
from decision_proxy.embedded.home import default_home, log_file
from decision_proxy.embedded.models import tokenizer
from decision_proxy.embedded.progress import PlainReport
from decision_proxy.embedded.proxy import ProxyServer

EVERY_S = 0.005
START_S = 120.0
STATE_CHARS = 400_000
BODY_BYTES = 27_000_000


def body(state: Any, questions: int) -> bytes:
    asked = {f"q{i}": {"type": "noul", "instructions": f"Is it {i}?"} for i in range(questions)}
    return orjson.dumps({"state": state, "questions": asked})


def bodies() -> Iterator[tuple[str, bytes | None]]:
    yield "idle", None
    yield "400k letters, no boundary", body("a" * STATE_CHARS, 64)
    yield "400k spaces", body(" " * STATE_CHARS, 64)
    yield "400k of an emoji joined", body("👩‍👩‍👧" * (STATE_CHARS // 5), 64)
    yield "27 MB, one text", body("late parcel. " * (BODY_BYTES // 13), 2)
    yield "27 MB, JSON of many small values", body([[i, "a", None] for i in range(1_700_000)], 2)


async def asked_again(client: aiohttp.ClientSession, proxy: str, data: bytes) -> None:
    while True:
        async with client.post(proxy + PATH, data=data) as response:
            await response.read()


async def live_ms(client: aiohttp.ClientSession, proxy: str, seconds: float) -> list[float]:
    took: list[float] = []
    ends_s = time.perf_counter() + seconds
    while time.perf_counter() < ends_s:
        started_s = time.perf_counter()
        async with client.get(f"{proxy}/-/live", raise_for_status=True) as response:
            await response.read()
        took.append(1e3 * (time.perf_counter() - started_s))
        await asyncio.sleep(EVERY_S)
    return took


async def measured(proxy: str, data: bytes | None, seconds: float) -> list[float]:
    async with session() as client, session() as watcher:
        busy = None if data is None else asyncio.create_task(asked_again(client, proxy, data))
        try:
            return await live_ms(watcher, proxy, seconds)
        finally:
            if busy is not None:
                busy.cancel()
                await asyncio.wait([busy])


async def bench(proxy: str, seconds: float) -> None:
    print("| while | /-/live p50 (ms) | p99 | max | bodies of |\n|---|---|---|---|---|", flush=True)
    for name, data in bodies():
        took = await measured(proxy, data, seconds)
        p50, p99 = (statistics.quantiles(took, n=100)[i] for i in (49, 98))
        size = f"{len(data or b'') / 1e6:.1f} MB"
        print(f"| {name} | {p50:.1f} | {p99:.1f} | {max(took):.1f} | {size} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each row")
    options = parser.parse_args()
    report: Any = PlainReport(sys.stderr)
    home = default_home()
    folder = tokenizer(home, "qwen3", report)
    with EngineServer(speed=8) as engine:
        engine.wait_healthy(START_S, report)
        log = log_file(home, "bench-liveness-proxy")
        with ProxyServer(engine.url, folder, log=log, port=0) as proxy:
            proxy.wait_healthy(START_S, report)
            asyncio.run(bench(proxy.url, options.seconds))


if __name__ == "__main__":
    main()
