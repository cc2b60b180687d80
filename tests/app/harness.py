"""An ASGI application driven by hand: the test says what the client does, and when."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

from starlette.applications import Starlette
from starlette.types import ASGIApp, Message

from tests.client import Reply

SYSTEMONE = "/v1/systemone"
DECISIONS = "/v1/decisions"
# Only what is wrong takes longer, and pytest's own limit cannot end an event loop cleanly.
LONGEST_S = 30.0


class Request:
    """One request. Nothing arrives at the application but what `sends` and `hangs_up` give it."""

    def __init__(
        self, app: ASGIApp, path: str = SYSTEMONE, *, method: str = "POST", **headers: str
    ) -> None:
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.sent: list[Message] = []
        given = {"content-type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in given.items()],
            "server": ("127.0.0.1", 1),
            "client": ("127.0.0.1", 2),
        }
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._send))  # type: ignore[arg-type]

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def sends(self, body: bytes = b"", *, more: bool = False) -> Self:
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def hangs_up(self) -> Self:
        self._inbox.put_nowait({"type": "http.disconnect"})
        return self

    @property
    def unread(self) -> int:
        return self._inbox.qsize()

    async def reply(self) -> Reply:
        await self._end()
        start, *rest = self.sent
        headers = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
        return Reply(start["status"], headers, b"".join(part.get("body", b"") for part in rest))

    async def silence(self) -> None:
        """Waits for the application's end; it must not have answered."""
        await self._end()
        assert self.sent == []

    async def _end(self) -> None:
        async with asyncio.timeout(LONGEST_S):
            await self.task


async def ask(app: ASGIApp, body: Any, path: str = SYSTEMONE, **headers: str) -> Reply:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await Request(app, path, **headers).sends(raw).reply()


async def get(app: ASGIApp, path: str) -> Reply:
    return await Request(app, path, method="GET").sends().reply()


@asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[Starlette]:
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def ready(app: Starlette) -> AsyncIterator[Starlette]:
    async with running(app):
        await until(lambda: served(app).model is not None)
        yield app


async def until(condition: Callable[[], bool]) -> None:
    """For what happens in this event loop and in threads, and tells nobody."""
    async with asyncio.timeout(LONGEST_S):
        while not condition():  # noqa: ASYNC110 - the threads that it waits for set no event
            await asyncio.sleep(0)


def served(app: Starlette) -> Any:
    return app.state.served


def others() -> set[asyncio.Task[Any]]:
    """All tasks but the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


def questions(count: int = 1) -> dict[str, Any]:
    return {f"q{i}": {"type": "noul", "instructions": f"Is it {i}?"} for i in range(count)}


def systemone(count: int = 1, **more: Any) -> dict[str, Any]:
    return {"state": "The parcel is late.", "questions": questions(count), **more}


def decisions(count: int = 1, **more: Any) -> dict[str, Any]:
    asked = [{"type": "predicate", "instructions": f"Is it {i}?"} for i in range(count)]
    return {"model": "tiny", "input": "The parcel is late.", "questions": asked, **more}
