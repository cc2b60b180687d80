"""`decision-proxy serve` as a process: real HTTP, signals, ports."""

import asyncio
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from decision_proxy.commands.serve import listen
from tests.app.harness import systemone
from tests.client import Reply
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm
from tests.servers import tokenizer_folder

pytestmark = pytest.mark.anyio


class Proxy:
    """The process; `log` grows line by line."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port
        self.log: list[str] = []

    async def says(self, words: str) -> None:
        assert self.process.stderr is not None
        while not any(words in line for line in self.log):
            line = (await self.process.stderr.readline()).decode()
            assert line, "".join(self.log)
            self.log.append(line)

    async def ends(self) -> int:
        assert self.process.stderr is not None
        self.log += (await self.process.stderr.read()).decode().splitlines(keepends=True)
        return await self.process.wait()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def serving(upstream: str, *flags: str) -> AsyncIterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["-m", "decision_proxy", "serve", "--upstream", upstream, "--port", str(port)]
    folder = str(tokenizer_folder("qwen3"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--tokenizer", folder, *flags, stderr=PIPE
    )
    try:
        yield Proxy(process, port)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def request(body: Any = None, *, head: str = "", path: str = "/v1/systemone") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body or systemone()).encode()
    lines = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}"
    if "ontent-" not in head and "Transfer" not in head:
        lines += f"Content-Length: {len(raw)}\r\n"
    return f"{lines}\r\n".encode("latin-1") + raw


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Reply:
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Reply(int(status.split()[1]), headers, body)


async def talk(proxy: Proxy, raw: bytes) -> Reply:
    reader, writer = await proxy.connect()
    writer.write(raw)
    return await answer(reader, writer)


STATE = b"GET /-/state HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
NOT_HTTP = {
    "garbage": b"\x16\x03\x01 garbage\r\n\r\n",
    "two lengths": request(head="Content-Length: 1\r\nContent-Length: 2\r\n"),
    "a negative length": request(head="Content-Length: -1\r\n"),
    "a length of 5000 digits": request(head=f"Content-Length: {'9' * 5000}\r\n"),
    "a control character": request(head="X-A: \x00\r\n"),
    "a broken chunk": request(b"5\r\nhello\r\nZZ\r\n", head="Transfer-Encoding: chunked\r\n"),
    "a broken chunk after the answer": request(
        b"5\r\nhello\r\nZZ\r\n", head="Transfer-Encoding: chunked\r\nContent-Type: text/plain\r\n"
    ),
}


async def test_it_serves_from_start_to_end(vllm: FakeVllm) -> None:
    vllm.ready = False
    async with serving(vllm.url) as proxy:
        await proxy.says("not ready")
        waiting = await talk(proxy, request())
        assert (waiting.status, waiting.headers["retry-after"]) == (503, "2")
        vllm.ready = True
        await proxy.says("ready: tiny")

        answered = await talk(proxy, request())
        assert answered.status == 200, answered
        chunks = b"".join(
            b"%x\r\n%b\r\n" % (1, bytes([byte])) for byte in json.dumps(systemone()).encode()
        )
        chunked = request(chunks + b"0\r\n\r\n", head="Transfer-Encoding: chunked\r\n")
        assert (await talk(proxy, chunked)).status == 200
        for name, raw in NOT_HTTP.items():
            refused = await talk(proxy, raw)
            assert refused.status == 400, name
            assert refused.headers["content-type"] == "application/json", name
            assert refused.headers["x-request-id"], name
            assert refused.body["error"]["code"] == 400, name

        _, hasty = await proxy.connect()
        hasty.write(request()[:-5])
        await hasty.drain()
        hasty.close()
        vllm.every_read = faults.hang()
        reads = len(vllm.reads)
        _, leaver = await proxy.connect()
        leaver.write(request())
        await vllm.until(lambda: len(vllm.reads) == reads + 1)
        leaver.close()
        await vllm.until(lambda: vllm.reads[-1].aborted)

        proxy.process.send_signal(signal.SIGTERM)
        assert await proxy.ends() == 0
    log = "".join(proxy.log)
    assert "Traceback" not in log
    assert " ERROR " not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_runs_at_the_end_is_still_answered(vllm: FakeVllm, number: int) -> None:
    release = asyncio.Event()
    async with serving(vllm.url) as proxy:
        await proxy.says("ready: tiny")
        vllm.every_read = faults.held(release)
        reads = len(vllm.reads)
        reader, writer = await proxy.connect()
        writer.write(request())
        await vllm.until(lambda: len(vllm.reads) == reads + 1)
        proxy.process.send_signal(number)
        await proxy.says("Waiting for connections to close")
        with pytest.raises(ConnectionError):
            await proxy.connect()
        release.set()
        assert (await answer(reader, writer)).status == 200
        assert await proxy.ends() == 0
    assert "Traceback" not in "".join(proxy.log)


async def test_who_waits_for_its_turn_at_the_end_is_sent_away_at_once(vllm: FakeVllm) -> None:
    release = asyncio.Event()
    gate = ("--gate-policy", "turns", "--gate-slots", "1", "--gate-max-batched-tokens", "16")
    async with serving(vllm.url, *gate) as proxy:
        await proxy.says("ready: tiny")
        vllm.every_read = faults.held(release)
        reads = len(vllm.reads)
        first, second = await proxy.connect(), await proxy.connect()
        first[1].write(request(systemone(3)))
        await vllm.until(lambda: len(vllm.reads) == reads + 1)
        second[1].write(request(systemone(3)))
        while not json.loads((await talk(proxy, STATE)).raw)["gate"]["waiting"]:
            pass
        proxy.process.send_signal(signal.SIGTERM)
        sent_away = await answer(*second)
        assert (sent_away.status, sent_away.message) == (503, "The proxy is shutting down.")
        release.set()
        assert (await answer(*first)).status == 200
        assert await proxy.ends() == 0
    assert len(vllm.reads) == reads + 1


@pytest.mark.parametrize("signals", [1, 2], ids=["time is up", "a second signal"])
async def test_what_runs_too_long_at_the_end_is_a_503(vllm: FakeVllm, signals: int) -> None:
    limit = "0.001" if signals == 1 else "60"
    async with serving(vllm.url, "--shutdown-s", limit) as proxy:
        await proxy.says("ready: tiny")
        vllm.every_read = faults.hang()
        reads = len(vllm.reads)
        connections = [await proxy.connect() for _ in range(3)]
        for _, writer in connections:
            writer.write(request())
        await vllm.until(lambda: len(vllm.reads) == reads + 3)
        proxy.process.send_signal(signal.SIGTERM)
        await proxy.says("Shutting down")
        if signals > 1:
            proxy.process.send_signal(signal.SIGTERM)
        for reader, writer in connections:
            reply = await answer(reader, writer)
            assert reply.status == 503
            assert reply.headers["retry-after"] == "2"
        assert await proxy.ends() == 0
    assert "Traceback" not in "".join(proxy.log)


async def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with serving("http://127.0.0.1:1", "--port", str(port)) as proxy:
            assert await proxy.ends() == 1
    assert proxy.log == [
        f"decision-proxy: cannot listen on 127.0.0.1 port {port}: Address already in use\n"
    ]


async def test_answers_on_a_kept_connection_wait_for_no_acknowledgement() -> None:
    opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def noted(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        opened.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    (listener,) = listen("127.0.0.1", 0)
    async with await asyncio.start_server(noted, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await opened
        writer.close()
