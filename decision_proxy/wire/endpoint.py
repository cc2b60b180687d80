"""The two decision routes as ASGI applications: body in, answers or an error out.

Every wait ends when the client hangs up.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from decision_proxy.admission import Decider
from decision_proxy.errors import (
    BodyTooLarge,
    Dialect,
    ProxyError,
    RequestError,
    UnsupportedMediaType,
    error_body,
    error_headers,
    error_status,
)
from decision_proxy.questions import Answer, Decision
from decision_proxy.wire.body import parse_body

FORWARDED = ("authorization", "traceparent", "tracestate")
SMALL_BODY_BYTES = 16 * 1024

log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client hung up; nobody is left to answer."""


class WireRequest(Protocol):
    @property
    def request_id(self) -> str | None: ...
    def decision(self, id: str) -> Decision: ...  # noqa: A002 - the wire's own word
    def answer(
        self, decision_id: str, model_name: str, answers: Sequence[Answer], created: int
    ) -> dict[str, Any]: ...


class Endpoint:
    """`parse`: from the body's object to the wire request."""

    def __init__(
        self,
        parse: Callable[[dict[str, Any]], WireRequest],
        decider: Decider,
        *,
        dialect: Dialect,
        max_body_bytes: int,
    ) -> None:
        self._parse = parse
        self._decider = decider
        self._dialect: Dialect = dialect
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        named = headers.get("x-request-id")
        try:
            body = await self._body(headers, receive)
            response = await _unless_gone(receive, self._respond(body, headers, named))
        except ClientGone:
            log.debug("client gone: %s", named)
            return
        except ProxyError as error:
            response = self._error(error, named or uuid4().hex)
        await response(scope, receive, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        _check_headers(headers)
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_body_bytes:
            raise self._too_large()
        chunks, size = [], 0
        async for chunk in _chunks(receive):
            size += len(chunk)
            if size > self._max_body_bytes:
                raise self._too_large()
            chunks.append(chunk)
        return b"".join(chunks)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._max_body_bytes} bytes")

    async def _respond(
        self, body: bytes, headers: Mapping[str, str], named: str | None
    ) -> Response:
        def read() -> WireRequest:
            return self._parse(parse_body(body, max_bytes=self._max_body_bytes))

        small = len(body) <= SMALL_BODY_BYTES
        request = read() if small else await self._decider.workers.run(read)
        request_id = named or request.request_id or uuid4().hex
        decision = request.decision(f"decision-{request_id}")
        forwarded = {name: headers[name] for name in FORWARDED if name in headers}
        decided = await self._decider.decide(decision, forwarded)
        answer = request.answer(
            decision.id, decided.model, decided.answers, created=int(time.time())
        )
        return Response(
            orjson.dumps(answer),
            headers=_request_id_headers(request_id),
            media_type="application/json",
        )

    def _error(self, error: ProxyError, request_id: str) -> Response:
        return Response(
            orjson.dumps(error_body(error, self._dialect)),
            status_code=error_status(error, self._dialect),
            headers=_request_id_headers(request_id) | error_headers(error),
            media_type="application/json",
        )


def _request_id_headers(request_id: str) -> dict[str, str]:
    value = request_id.encode("latin-1", "replace").decode("latin-1")
    printable = "".join(char if char.isprintable() else "?" for char in value)
    return {"x-request-id": printable, "x-typesafe-request-id": printable}


def _check_headers(headers: Headers) -> None:
    kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError("Unsupported Media Type: Only 'application/json' is allowed")
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise UnsupportedMediaType(f"content-encoding {coding!r} is not supported; send it plain")


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        yield message.get("body", b"")
        more = message.get("more_body", False)


async def _unless_gone(receive: Receive, work: Awaitable[Response]) -> Response:
    """The result of `work`, cancelled as soon as the client hangs up."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
