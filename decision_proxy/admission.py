"""From a decision to its answers: CPU work in a bounded pool, then the reads.

The gate will stand between the two.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from secrets import token_hex
from typing import TypeVar

from decision_proxy.questions import Answer, Decision
from decision_proxy.reads.served import Served
from decision_proxy.upstream.reads import ReadClient, ReadContext

Result = TypeVar("Result")


class Workers:
    """Threads for parsing, rendering and tokenizing.

    Work whose client has gone leaves the queue; work that runs keeps its thread until it ends, so
    the pool stays bounded.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prompt")

    async def run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Decided:
    model: str
    answers: list[Answer]


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
        results = await self._reads.read(
            plan.reads, context, takes_lists=model.upstream.takes_lists
        )
        return Decided(name, model.family.answers(plan, results))
