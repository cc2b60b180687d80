"""The two decision routes as ASGI applications: body in, answers or an error out.

Every wait ends when the client hangs up, or when the proxy is about to.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import orjson
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from decision_proxy.admission import Closing, Room, first, loop_time, within
from decision_proxy.errors import (
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    Dialect,
    InvalidHeader,
    ProxyError,
    RequestError,
    UnsupportedMediaType,
)
from decision_proxy.observe.unexpected import as_internal_error
from decision_proxy.questions import Answer, Decision
from decision_proxy.reads.decider import Decided, Decider
from decision_proxy.settings import Limits
from decision_proxy.wire.body import parse_body
from decision_proxy.wire.responses import error_response, json_response, request_id

TIMEOUT = "x-decision-timeout-s"
FORWARDED = ("authorization", "traceparent", "tracestate")
# What is smaller takes less time here than a worker thread needs to start on it.
SMALL_BODY_BYTES = 16 * 1024
# JSON is parsed in C, where 1 MiB stops all threads for up to 30 ms.
BIG_BODY_BYTES = 1024 * 1024
FEW_QUESTIONS = 32
LONGEST_LENGTH = 20
DISCARDED_BODIES = 4

log = logging.getLogger(__name__)


class WireRequest(Protocol):
    @property
    def request_id(self) -> str | None: ...
    def decision(self, id: str) -> Decision: ...  # noqa: A002 - the wire's own word
    def answer(
        self, decision_id: str, model_name: str, answers: Sequence[Answer], created: int
    ) -> dict[str, Any]: ...


@dataclass
class Exchange:
    """`request_id`: the header's, until the body has been read and names another.

    `take`: counts the body's bytes. `deadline_s`: on the event loop's clock.
    """

    path: str
    headers: Headers
    request_id: str
    take: Callable[[int], None]
    deadline_s: float = math.inf

    @property
    def closes(self) -> bool:
        return "close" in self.headers.get("connection", "").lower()

    @property
    def forwarded(self) -> dict[str, str]:
        return {name: self.headers[name] for name in FORWARDED if name in self.headers}


class Endpoint:
    """`parse`: from the body's object to the wire request."""

    def __init__(
        self,
        parse: Callable[[dict[str, Any]], WireRequest],
        decider: Decider,
        closing: Closing,
        room: Room,
        *,
        dialect: Dialect,
        limits: Limits,
    ) -> None:
        self._parse = parse
        self._decider = decider
        self._closing = closing
        self._room = room
        self._dialect: Dialect = dialect
        self._limits = limits
        self._max_body_bytes = limits.body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        with self._room.share() as take:
            exchange = Exchange(
                scope["path"], headers, request_id(headers.get("x-request-id")), take
            )
            try:
                response = await self._answered(exchange, receive)
            except ClientGone:
                log.debug("client gone: %s", exchange.request_id)
                return
            except ProxyError as error:
                response = error_response(error, self._dialect, exchange.request_id)
        await response(scope, receive, send)

    async def _answered(self, exchange: Exchange, receive: Receive) -> Response:
        exchange.deadline_s = loop_time() + _patience_s(exchange.headers, self._limits.deadline_s)
        body = await first(self._whole_body(exchange, receive), self._closing.reached())
        return await first(
            self._respond(body, exchange), _disconnected(receive), self._closing.reached()
        )

    async def _whole_body(self, exchange: Exchange, receive: Receive) -> list[bytes]:
        try:
            async with within(exchange.deadline_s, "its body was received", BodyTooSlow):
                return await self._body(exchange, receive)
        except BodyTooLarge:
            if exchange.closes:
                await _discard(receive, DISCARDED_BODIES * self._max_body_bytes)
            raise

    async def _body(self, exchange: Exchange, receive: Receive) -> list[bytes]:
        _check_headers(exchange.headers)
        announced = exchange.headers.get("content-length", "0")
        if announced.isdecimal() and (
            len(announced) > LONGEST_LENGTH or int(announced) > self._max_body_bytes
        ):
            raise self._too_large()
        chunks, size = [], 0
        async for chunk in _chunks(receive):
            size += len(chunk)
            if size > self._max_body_bytes:
                raise self._too_large()
            exchange.take(len(chunk))
            chunks.append(chunk)
        return chunks

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._max_body_bytes} bytes")

    async def _respond(self, body: list[bytes], exchange: Exchange) -> Response:
        with as_internal_error(f"POST {exchange.path} ({exchange.request_id!r})"):
            request = await self._read(body)
            body.clear()
            if request.request_id and not exchange.headers.get("x-request-id", "").strip():
                exchange.request_id = request_id(request.request_id)
            decision = request.decision(f"decision-{exchange.request_id}")
            decided = await self._decider.decide(
                decision, exchange.forwarded, deadline_s=exchange.deadline_s
            )
            few = len(decision.questions) <= FEW_QUESTIONS
            answer = await self._decider.workers.run(
                lambda: _written(request, decision.id, decided), here=few
            )
            return json_response(answer, exchange.request_id)

    async def _read(self, body: list[bytes]) -> WireRequest:
        size = sum(map(len, body))
        read = partial(_read, self._parse, body, self._max_body_bytes)
        if size > BIG_BODY_BYTES:
            return await self._decider.workers.run_apart(read)
        return await self._decider.workers.run(read, here=size <= SMALL_BODY_BYTES)


def _read(
    parse: Callable[[dict[str, Any]], WireRequest], body: list[bytes], max_bytes: int
) -> WireRequest:
    return parse(parse_body(b"".join(body), max_bytes=max_bytes))


def _written(request: WireRequest, decision_id: str, decided: Decided) -> bytes:
    answers = decided.answers()
    return orjson.dumps(
        request.answer(decision_id, decided.model, answers, created=int(time.time()))
    )


def _patience_s(headers: Headers, most_s: float) -> float:
    """Seconds that this request may take. Raises InvalidHeader."""
    given = headers.get(TIMEOUT)
    if given is None:
        return most_s
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidHeader(f"{TIMEOUT} must be a number of seconds above 0", param=TIMEOUT)
    return min(seconds, most_s)


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


async def _discard(receive: Receive, most_bytes: int) -> None:
    """The rest of a body: who sends and then closes would not see an answer ahead of its end."""
    size = 0
    async for chunk in _chunks(receive):
        size += len(chunk)
        if size > most_bytes:
            return


async def _disconnected(receive: Receive) -> NoReturn:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone
