"""What a read costs the client process: httpx, aiohttp, and our ReadClient on top of aiohttp.

    .venv/bin/python bench/read_clients.py [--rounds 5] [--requests 512]

A bare server in another process answers at once, so the client's CPU time is what is left to see.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType

import aiohttp
import orjson

from decision_proxy.settings import Reads
from decision_proxy.upstream.reads import Prompt, Read, ReadClient, ReadContext

IN_FLIGHT = 64
LABELS = (32, 33, 34, 35, 36)
SIZES = {"small": 40, "160 KB": 27_000}

Ask = Callable[[], Awaitable[object]]


class BareServer(asyncio.Protocol):
    def __init__(self) -> None:
        self._missing = 0
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._missing == 0:
            self._head += data
            head, separator, body = self._head.partition(b"\r\n\r\n")
            if not separator:
                return
            self._head = b""
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._missing = int(length) - len(body)
        else:
            self._missing -= len(data)
        if self._missing == 0:
            self._transport.write(ANSWER)


def _answer() -> bytes:
    found = {f"token_id:{token}": -2.0 - token / 100 for token in LABELS}
    logprobs = {
        "text_offset": [0],
        "token_logprobs": [-2.32],
        "tokens": ["token_id:32"],
        "top_logprobs": [found],
    }
    body = json.dumps(
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "text": "A", "logprobs": logprobs, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 1, "total_tokens": 41},
        }
    ).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


ANSWER = _answer()


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(BareServer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def server_process() -> Iterator[str]:
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@dataclass
class Cost:
    cpu_ms: float
    wall_ms: float


async def measured(ask: Ask, requests: int) -> Cost:
    left = iter(range(requests))

    async def one_lane() -> None:
        for _ in left:
            await ask()

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(one_lane() for _ in range(IN_FLIGHT)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Cost(cpu * 1000 / requests, wall * 1000 / requests)


async def clients(url: str, tokens: int, stack: AsyncExitStack) -> dict[str, Ask]:
    """Ways to send the same read; all of them parse the answer with orjson."""
    shared = b",".join([b"15164"] * (tokens - 8))
    read = Read(Prompt(shared, tokens - 8, tuple(range(8))), LABELS)
    body = orjson.dumps({"model": "m", "logprob_token_ids": LABELS})[:-1]
    body += b',"prompt":[' + b"".join(read.prompt.fragments()) + b"]}"
    target, headers = f"{url}/v1/completions", {"content-type": "application/json"}

    httpx = imported_httpx()
    slow = await stack.enter_async_context(
        httpx.AsyncClient(limits=httpx.Limits(max_connections=256), timeout=60, trust_env=False)
    )
    connector = aiohttp.TCPConnector(limit=256)
    fast = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
    ours = await stack.enter_async_context(ReadClient(url, Reads()))
    context = ReadContext("m", "bench")

    async def ask_httpx() -> object:
        return orjson.loads((await slow.post(target, content=body, headers=headers)).content)

    async def ask_aiohttp() -> object:
        async with fast.post(target, data=body, headers=headers) as response:
            return orjson.loads(await response.read())

    async def ask_ours() -> object:
        return await ours.read([read], context, takes_lists=False)

    return {"httpx": ask_httpx, "aiohttp": ask_aiohttp, "ReadClient": ask_ours}


def imported_httpx() -> ModuleType:
    try:
        return importlib.import_module("httpx")
    except ImportError:
        sys.exit("This bench compares with httpx, which the proxy does not use: pip install httpx")


async def compare(url: str, rounds: int, requests: int) -> None:
    print(
        f"{IN_FLIGHT} in flight, {requests} requests a round, median of {rounds} rounds (min-max)"
    )
    print(
        f"{'body':16}{'client':12}{'CPU ms a request':>26}{'wall ms':>10}{'CPU, aiohttp = 1':>18}"
    )
    for size, tokens in SIZES.items():
        async with AsyncExitStack() as stack:
            asks = await clients(url, tokens, stack)
            costs: dict[str, list[Cost]] = {name: [] for name in asks}
            for ask in asks.values():
                await measured(ask, IN_FLIGHT)
            for _ in range(rounds):
                for name, ask in asks.items():
                    costs[name].append(await measured(ask, requests))
        print_rows(size, costs)


def print_rows(size: str, costs: dict[str, list[Cost]]) -> None:
    medians = {
        name: statistics.median(cost.cpu_ms for cost in found) for name, found in costs.items()
    }
    for name, found in costs.items():
        cpu = [cost.cpu_ms for cost in found]
        wall = statistics.median(cost.wall_ms for cost in found)
        spread = f"{medians[name]:.3f} ({min(cpu):.3f}-{max(cpu):.3f})"
        ratio = medians[name] / medians["aiohttp"]
        print(f"{size:16}{name:12}{spread:>26}{wall:>10.3f}{ratio:>18.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return
    imported_httpx()
    with server_process() as url:
        asyncio.run(compare(url, arguments.rounds, arguments.requests))


if __name__ == "__main__":
    main()
