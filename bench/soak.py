"""What is left behind when many clients hang up, at any moment.

    .venv/bin/python -m bench.soak [--decisions 10000] [--leavers 0.3] [--policy budget]

The real application under the real uvicorn, in this process so that its tasks can be counted, in
front of the fake engine. Decisions of random sizes, some on shared states, some with a deadline
that is too short, from clients of which a share hangs up: within the body, or at any time after.
Afterwards the gate has to be empty, no request left in the engine, no connection, task or ticket
more than before, and the next decision is answered. Exits 1 and says what is left otherwise.
"""

import argparse
import asyncio
import gc
import random
import resource
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from bench.engine_process import EngineServer
from bench.gate import texts_for
from bench.gate_load import Load, session
from bench.gate_scenarios import Ask, Texts, ask
from decision_proxy.app import create_app
from decision_proxy.commands.serve import SWITCH_INTERVAL_S, Server, listen
from decision_proxy.embedded.home import default_home
from decision_proxy.embedded.models import tokenizer
from decision_proxy.embedded.progress import PlainReport
from decision_proxy.gate import Gate, Ticket
from decision_proxy.settings import Settings

HOST = "127.0.0.1"
QUESTIONS = (1, 1, 2, 5, 16, 64)
TOKENS = (30, 200, 1500, 6000)
SHARED_STATES = 12
HASTY = 0.03
HASTY_S = "0.05"
SHORTEST_STAY_S, LONGEST_STAY_S = 0.0005, 2.0
SETTLING_S = 15.0
PAGE_BYTES = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Plan:
    decisions: int = 10_000
    clients: int = 64
    leavers: float = 0.3
    seed: int = 0


@dataclass
class Seen:
    """`freed_s`: from each hang-up until the application was done with the request."""

    statuses: Counter[str] = field(default_factory=Counter)
    freed_s: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    seconds: float = 0.0
    left: list[str] = field(default_factory=list)


class Ends(defaultdict[str, asyncio.Future[float]]):
    """When the application was done with each request, by its id."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().create_future)


class Watch:
    def __init__(self, app: ASGIApp, ends: Ends) -> None:
        self._app = app
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        finally:
            id_ = dict(scope.get("headers", ())).get(b"x-request-id", b"").decode()
            if not self._ends[id_].done():
                self._ends[id_].set_result(time.perf_counter())


@asynccontextmanager
async def serving(app: Starlette, settings: Settings) -> AsyncIterator[int]:
    (listener,) = listen(HOST, 0)
    server = Server(app, settings)
    task = asyncio.create_task(server.serve([listener]))
    while app.state.served.model is None:
        if task.done():
            raise SystemExit("the proxy ended at its start")
        await asyncio.sleep(0.01)
    yield listener.getsockname()[1]
    server.should_exit = True
    await task


class Clients:
    def __init__(self, port: int, plan: Plan, texts: Texts, ends: Ends, seen: Seen) -> None:
        self._port = port
        self._plan = plan
        self._texts = texts
        self._ends = ends
        self._seen = seen
        self._random = random.Random(plan.seed)

    async def all(self) -> None:
        numbers = iter(range(self._plan.decisions))
        async with asyncio.TaskGroup() as group:
            for _ in range(self._plan.clients):
                group.create_task(self._some(numbers))

    async def _some(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            id_ = f"soak-{number}"
            stays = self._random.random() >= self._plan.leavers
            status = await (self.asks(id_) if stays else self._leaves(id_))
            self._seen.statuses[status] += 1
            self._ends.pop(id_, None)
            if number % max(1, self._plan.decisions // 10) == 0:
                self._seen.memory_bytes.append(memory_bytes())
                say(f"{number} of {self._plan.decisions}, {memory_bytes() >> 20} MiB")

    async def asks(self, id_: str) -> str:
        head, body = self._request(id_)
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(head + body)
        with suppress(ConnectionError):
            answer = await reader.read()
            writer.close()
            return answer[9:12].decode() or "no answer"
        return "connection lost"

    async def _leaves(self, id_: str) -> str:
        head, body = self._request(id_)
        stay_s = LONGEST_STAY_S * (SHORTEST_STAY_S / LONGEST_STAY_S) ** self._random.random()
        part = len(body) if self._random.random() < 0.8 else self._random.randrange(len(body))
        reader, writer = await asyncio.open_connection(HOST, self._port)
        writer.write(head + body[:part])
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(stay_s):
                await reader.read()
        answered = self._ends[id_].done()
        left_s = time.perf_counter()
        if self._random.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()
        if answered:
            return "answered before it left"
        await self._note_freed(id_, left_s)
        return "left"

    async def _note_freed(self, id_: str, left_s: float) -> None:
        """A request whose head was not read yet never reaches the application."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                self._seen.freed_s.append(max(0.0, await self._ends[id_] - left_s))

    def _request(self, id_: str) -> tuple[bytes, bytes]:
        asked = self._ask(id_)
        hasty = self._random.random() < HASTY
        lines = [
            "POST /v1/systemone HTTP/1.1",
            "Host: x",
            "Connection: close",
            f"X-Request-Id: {id_}",
            f"Content-Length: {len(asked.body)}",
            *([f"X-Decision-Timeout-S: {HASTY_S}"] if hasty else []),
        ]
        return "\r\n".join([*lines, "", ""]).encode(), asked.body

    def _ask(self, id_: str) -> Ask:
        tokens = self._random.choice(TOKENS)
        shared = self._random.random() < 0.5
        seed = str(self._random.randrange(SHARED_STATES)) if shared else id_
        return ask(tokens, f"{tokens} {seed}", self._random.choice(QUESTIONS), id_, self._texts)


@dataclass(frozen=True, slots=True)
class Held:
    """Everything that a decision may leave behind in this process."""

    tasks: int
    connections: int
    files: int
    tickets: int

    @classmethod
    def now(cls, engine_port: int) -> "Held":
        gc.collect()
        return cls(
            tasks=len(asyncio.all_tasks()),
            connections=connections_to(engine_port),
            files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            tickets=sum(isinstance(thing, Ticket) for thing in gc.get_objects()),
        )

    def beyond(self, before: "Held") -> list[str]:
        return [
            f"{now - then} {name} more than before"
            for name in ("tasks", "connections", "files", "tickets")
            if (now := getattr(self, name)) > (then := getattr(before, name))
        ]


def connections_to(port: int) -> int:
    """TCP connections of this machine to `port` of 127.0.0.1 that are open; Linux only."""
    address, established = f"0100007F:{port:04X}", "01"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[2:4] == [address, established] for line in lines)


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def in_gate(gate: Gate) -> list[str]:
    held = (gate.running, gate.waiting, gate.in_flight, gate.small_running, gate.waiting_bytes)
    return [f"the gate is not empty: {gate} {held}"] if any(held) else []


async def soak(plan: Plan, policy: str, engine: EngineServer, folder: Path) -> Seen:
    """What became of the decisions; `left` says what they left behind."""
    settings = Settings.model_validate(
        {
            "upstream": engine.url,
            "tokenizer": str(folder),
            "gate": {"policy": policy, "waiting": plan.clients // 2},
            "prompt": {"cache_bytes": 16 << 20},
        }
    )
    seen, ends = Seen(), Ends()
    app = create_app(settings)
    app.add_middleware(Watch, ends=ends)
    texts = texts_for(folder)
    load = Load("", engine.url, None, texts)
    async with serving(app, settings) as port:
        clients = Clients(port, plan, texts, ends, seen)
        await clients.asks("first")
        await asyncio.sleep(settings.reads.keepalive_s + 1)
        before = Held.now(engine.port)
        started_s = time.perf_counter()
        await clients.all()
        seen.seconds = time.perf_counter() - started_s
        seen.left = await left_after(before, app.state.gate, load, engine.port)
        if (status := await clients.asks("last")) != "200":
            seen.left.append(f"the next decision was answered {status}")
    return seen


async def left_after(before: Held, gate: Gate, load: Load, engine_port: int) -> list[str]:
    """What is still there when everything has had the time to end."""
    ends_s = time.perf_counter() + SETTLING_S
    while True:
        left = [*in_gate(gate), *Held.now(engine_port).beyond(before)]
        if not left or time.perf_counter() > ends_s:
            return [*left, *await in_engine(load)]
        await asyncio.sleep(0.2)


async def in_engine(load: Load) -> list[str]:
    async with session() as client:
        metrics = await load.metrics(client)
    waiting = {name: value for name, value in metrics.items() if name.startswith("vllm:num_req")}
    return [f"the engine still has requests: {waiting}"] if any(waiting.values()) else []


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def told(plan: Plan, policy: str, seen: Seen) -> Iterator[str]:
    yield f"{plan.decisions} decisions, policy {policy}, {seen.seconds:.0f} s"
    yield ", ".join(f"{status}: {count}" for status, count in seen.statuses.most_common())
    if len(seen.freed_s) > 1:
        cuts = statistics.quantiles(seen.freed_s, n=100)
        yield (
            f"freed after a hang-up (ms): p50 {1e3 * cuts[49]:.1f}, p95 {1e3 * cuts[94]:.1f}, "
            f"p99 {1e3 * cuts[98]:.1f}, max {1e3 * max(seen.freed_s):.1f}"
        )
    yield f"memory (MiB): {' '.join(str(size >> 20) for size in seen.memory_bytes)}"
    yield f"left behind: {'; '.join(seen.left) or 'nothing'}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    plan = Plan()
    parser.add_argument("--decisions", type=int, default=plan.decisions)
    parser.add_argument("--clients", type=int, default=plan.clients)
    parser.add_argument("--leavers", type=float, default=plan.leavers, help="share of all clients")
    parser.add_argument("--seed", type=int, default=plan.seed)
    parser.add_argument("--policy", default="budget")
    parser.add_argument("--speed", type=float, default=8.0, help="of the fake engine's clock")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    plan = Plan(options.decisions, options.clients, options.leavers, options.seed)
    report: Any = PlainReport(sys.stderr)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    folder = tokenizer(default_home(), "qwen3", report)
    with EngineServer(speed=options.speed) as engine:
        engine.wait_healthy(60, report)
        seen = asyncio.run(soak(plan, options.policy, engine, folder))
    print("\n".join(told(plan, options.policy, seen)))
    return 1 if seen.left else 0


if __name__ == "__main__":
    raise SystemExit(main())
