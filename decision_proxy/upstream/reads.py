"""Asks vLLM for the logprobs of labels at the end of prompts: all of a decision's reads at once."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from decision_proxy.settings import MIB, Reads
from decision_proxy.upstream.answers import ReadResult, batch_results, merged
from decision_proxy.upstream.channel import Channel
from decision_proxy.upstream.completions import (
    Batch,
    Prompt,
    Read,
    ReadContext,
    batches,
    request_body,
)

__all__ = ["Prompt", "Read", "ReadClient", "ReadContext", "ReadResult"]

T = TypeVar("T")

PATH: Final = "v1/completions"
SMALL_BYTES: Final = 64 * 1024
FEW_READS: Final = 64
MOST_IDS: Final = 128  # vLLM's own bound on the ids of one request


class ReadClient:
    def __init__(
        self,
        base_url: str,
        settings: Reads,
        *,
        max_ids_per_read: int = MOST_IDS,
        list_bytes: int = 32 * MIB,
    ) -> None:
        self._channel = Channel(base_url, settings)
        self._max_ids = max_ids_per_read
        self._list_bytes = list_bytes
        self._numbers = count()

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.__aexit__(exc_type, exc, traceback)

    async def read(
        self,
        reads: Sequence[Read],
        context: ReadContext,
        *,
        takes_lists: bool,
        on_first_answer: Callable[[], None] = lambda: None,
    ) -> list[ReadResult]:
        """One result for each read, in order. `on_first_answer`: called ahead of all other answers.

        Raises one ProxyError, the first; the other requests are closed by then, so that vLLM
        drops their work. Cancelling does the same.
        """
        planned = await _off_loop(
            lambda: batches(
                reads, takes_lists=takes_lists, max_ids=self._max_ids, list_bytes=self._list_bytes
            ),
            big=len(reads) > FEW_READS,
        )
        answered = _once(on_first_answer)
        answers = await _all_or_first_failure(
            [self._ask(batch, context, answered) for batch in planned]
        )
        by_read: list[dict[int, ReadResult]] = [{} for _ in reads]
        for batch, results in zip(planned, answers, strict=True):
            for piece, result in zip(batch.pieces, results, strict=True):
                by_read[piece.read][piece.start] = result
        return [merged([found[start] for start in sorted(found)]) for found in by_read]

    async def _ask(
        self,
        batch: Batch,
        context: ReadContext,
        answered: Callable[[], None],
    ) -> list[ReadResult]:
        async def make_body() -> list[bytes]:
            request_id = f"{context.request_id}-{next(self._numbers)}"
            return await _off_loop(
                lambda: request_body(batch, context, request_id), big=batch.bytes > SMALL_BYTES
            )

        answer = await self._channel.post(PATH, make_body, context.headers)
        answered()
        return await _off_loop(lambda: batch_results(batch, answer), big=len(answer) > SMALL_BYTES)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    calls = iter([call])

    def first_only() -> None:
        next(calls, lambda: None)()

    return first_only


async def _off_loop(work: Callable[[], T], *, big: bool) -> T:
    """In a thread when the work is long enough to be noticed; a thread costs small work more."""
    return await asyncio.to_thread(work) if big else work()


async def _all_or_first_failure(requests: list[Coroutine[Any, Any, T]]) -> list[T]:
    if len(requests) == 1:
        return [await requests[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(request) for request in requests]
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]
