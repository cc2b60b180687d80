"""The load of `bench/gate.py`: a burst and a bystander, over aiohttp in this process."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count

import aiohttp
import orjson

from bench.gate_scenarios import Ask, Texts, small

PATH = "/v1/systemone"
BYSTANDER_S = 0.1
NO_ANSWER = 0
TIMEOUT_S = 900.0
WARMING_AT_ONCE = 2
IDLE_POLL_S = 0.1
METRIC = re.compile(r"^([a-z_:]+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Answered:
    """`status`: 0 when there was no answer. `tokens`: of all its prompts."""

    status: int
    started_s: float
    ended_s: float
    questions: int
    tokens: int = 0

    @property
    def ok(self) -> bool:
        return self.status == HTTPStatus.OK

    @property
    def took_s(self) -> float:
        return self.ended_s - self.started_s


@dataclass
class Run:
    """One burst: what became of its decisions, of the bystander's, and what the engine did."""

    decisions: list[Answered] = field(default_factory=list)
    bystander: list[Answered] = field(default_factory=list)
    engine: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        started = min(answer.started_s for answer in self.decisions)
        return max(answer.ended_s for answer in self.decisions) - started


class Load:
    """`speed`: of the fake engine; None leaves a real one as it is."""

    def __init__(self, proxy: str, engine: str, speed: float | None, texts: Texts) -> None:
        self._texts = texts
        self._proxy = proxy
        self._engine = engine
        self._speed = speed

    async def run(self, warming: Sequence[Ask], burst: Sequence[Ask]) -> Run:
        async with session() as client:
            await self._set_speed(client)
            await self._warm(client, warming)
            await self.idle(client)
            before = await self.metrics(client)
            run = Run()
            async with asyncio.TaskGroup() as group:
                over = asyncio.Event()
                bystander = group.create_task(self._bystander(client, over))
                run.decisions = await asyncio.gather(*(self._ask(client, ask) for ask in burst))
                over.set()
            run.bystander = bystander.result()
            await self.idle(client)
            after = await self.metrics(client)
            run.engine = {name: value - before.get(name, 0) for name, value in after.items()}
            return run

    async def _set_speed(self, client: aiohttp.ClientSession) -> None:
        if self._speed is not None:
            url, data = f"{self._engine}/bench/speed", str(self._speed)
            async with client.post(url, data=data, raise_for_status=True):
                return

    async def metrics(self, client: aiohttp.ClientSession) -> dict[str, float]:
        async with client.get(f"{self._engine}/metrics") as response:
            return dict(metric_values(await response.text()))

    async def idle(self, client: aiohttp.ClientSession) -> None:
        """Until the engine has nothing to do."""
        while True:
            now = await self.metrics(client)
            if not now["vllm:num_requests_running"] + now["vllm:num_requests_waiting"]:
                return
            await asyncio.sleep(IDLE_POLL_S)

    async def _warm(self, client: aiohttp.ClientSession, warming: Sequence[Ask]) -> None:
        turns = asyncio.Semaphore(WARMING_AT_ONCE)

        async def in_turn(ask: Ask) -> None:
            async with turns:
                answer = await self._ask(client, ask)
                if not answer.ok:
                    raise SystemExit(f"a state could not be warmed: status {answer.status}")

        await asyncio.gather(*map(in_turn, warming))

    async def _bystander(
        self, client: aiohttp.ClientSession, over: asyncio.Event
    ) -> list[Answered]:
        """Asks at its own pace, whatever became of the questions before."""
        asked: list[asyncio.Task[Answered]] = []
        async with asyncio.TaskGroup() as group:
            for number in count(time.time_ns()):
                ask = self._ask(client, small(number, self._texts))
                asked.append(group.create_task(ask))
                if await happens_within(over, BYSTANDER_S):
                    break
        return [task.result() for task in asked]

    async def _ask(self, client: aiohttp.ClientSession, ask: Ask) -> Answered:
        started_s = time.perf_counter()
        try:
            async with client.post(self._proxy + PATH, data=ask.body) as response:
                body, status = await response.read(), response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Answered(NO_ANSWER, started_s, time.perf_counter(), ask.questions)
        ended_s = time.perf_counter()
        tokens = orjson.loads(body)["usage"]["input_tokens"] if status == HTTPStatus.OK else 0
        return Answered(status, started_s, ended_s, ask.questions, tokens)


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        headers={"content-type": "application/json"},
    ) as client:
        yield client


async def happens_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def metric_values(text: str) -> Iterator[tuple[str, float]]:
    """The samples of one engine, by name; histograms and the like are of no use here."""
    for name, value in METRIC.findall(text):
        yield name, float(value)
