"""From a decision to its answers: CPU work in a bounded pool, then the reads.

The gate will stand between the two.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from secrets import token_hex
from typing import Any, NoReturn, TypeVar

from decision_proxy.errors import UpstreamRefused, UpstreamUnavailable
from decision_proxy.questions import Answer, Decision
from decision_proxy.reads.next_token import Plan
from decision_proxy.reads.served import Model, Served
from decision_proxy.upstream.reads import ReadClient, ReadContext, ReadResult

Result = TypeVar("Result")


class Workers:
    """Threads for parsing, rendering and tokenizing.

    Work whose client has gone leaves the queue; work that runs keeps its thread until it ends, so
    the pool stays bounded.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prompt")

    async def run(self, work: Callable[[], Result], *, here: bool = False) -> Result:
        """`here`: without a thread, for work that is shorter than the way to one."""
        if here:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Closing:
    """Set when the time is up that running decisions get at the end of the process."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def reached(self) -> NoReturn:
        await self._event.wait()
        raise UpstreamUnavailable("The proxy is shutting down.")


async def first(
    wanted: Coroutine[Any, Any, Result], *ends: Coroutine[Any, Any, NoReturn]
) -> Result:
    """What `wanted` gives, unless one of `ends` raises before; nothing is left running."""
    wanting = asyncio.ensure_future(wanted)
    ending = [asyncio.ensure_future(end) for end in ends]
    tasks = [wanting, *ending]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for end in ending:
            if end.done() and not wanting.done():
                end.result()
        return wanting.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Decided:
    model: str
    plan: Plan
    results: list[ReadResult]
    by: Model

    def answers(self) -> list[Answer]:
        """CPU work that grows with the number of options."""
        return self.by.family.answers(self.plan, self.results)


class Decider:
    def __init__(self, served: Served, reads: ReadClient, workers: Workers) -> None:
        self.served = served
        self.workers = workers
        self._reads = reads

    async def decide(self, decision: Decision, headers: Mapping[str, str]) -> Decided:
        """`headers`: what travels with every read (authorization, trace context)."""
        model = self.served.current()
        name = model.name_of(decision.model)
        plan = await self.workers.run(lambda: model.family.plan(decision))
        context = ReadContext(
            model=name,
            request_id=f"{decision.id}-{token_hex(4)}",
            cache_salt=decision.cache_salt,
            priority=decision.priority,
            headers=headers,
        )
        try:
            results = await self._reads.read(
                plan.reads, context, takes_lists=model.upstream.takes_lists
            )
        except UpstreamRefused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise
            # The name was right a moment ago: vLLM came back with another model.
            self.served.doubt()
            raise UpstreamUnavailable("vLLM is changing its model.") from refused
        except UpstreamUnavailable:
            self.served.doubt()
            raise
        return Decided(name, plan, results, model)
