"""A bounded pool of connections to vLLM, for our own requests. Raises ProxyError, nothing else."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import SimpleNamespace, TracebackType
from typing import Final, Self

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from decision_proxy.settings import Reads
from decision_proxy.upstream.failures import CLIENT_FAILURES, failed_answer, failed_exchange

JSON: Final = "application/json"


MakeBody = Callable[[], Awaitable[list[bytes]]]


class Pieces(aiohttp.Payload):
    """A body that is written piece by piece, without a copy of it."""

    _autoclose = True

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__(pieces, content_type=JSON)
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._value:
            await writer.write(piece)


@dataclass(slots=True)
class _Exchange:
    reused_connection: bool = False
    answer_started: bool = False

    def lost_keep_alive_race(self, failure: Exception) -> bool:
        """The server closed an idle connection just as we chose it: nobody read the request."""
        if not self.reused_connection or self.answer_started:
            return False
        if isinstance(failure, aiohttp.ServerDisconnectedError):
            return isinstance(failure.message, str)  # otherwise it is the start of an answer
        if isinstance(failure, (aiohttp.ClientConnectorError, TimeoutError)):
            return False
        return isinstance(failure, (aiohttp.ClientOSError, ConnectionError))


class Channel:
    """Slots bound the exchanges, so that no time limit runs while one waits for its turn."""

    def __init__(self, base_url: str, settings: Reads) -> None:
        self._base = URL(base_url.rstrip("/"))
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.connections)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        settings = self._settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=settings.connections, keepalive_timeout=settings.keepalive_s
            ),
            timeout=aiohttp.ClientTimeout(
                total=settings.timeout_s, connect=settings.connect_timeout_s
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            trace_configs=[_reuse_tracing()],
        )
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, headers: Mapping[str, str]) -> bytes:
        return await self._send("GET", path, None, headers)

    async def post(self, path: str, make_body: MakeBody, headers: Mapping[str, str]) -> bytes:
        """JSON in pieces: `make_body` is called when a slot is free, once for each request made."""
        return await self._send("POST", path, make_body, headers)

    async def _send(
        self,
        method: str,
        path: str,
        make_body: MakeBody | None,
        headers: Mapping[str, str],
    ) -> bytes:
        url = self._base / path
        async with self._slots:
            exchange = _Exchange()
            try:
                return await self._once(method, url, make_body, headers, exchange)
            except CLIENT_FAILURES as failure:
                if not exchange.lost_keep_alive_race(failure):
                    raise failed_exchange(failure) from failure
            try:
                return await self._once(method, url, make_body, headers, _Exchange())
            except CLIENT_FAILURES as failure:
                raise failed_exchange(failure) from failure

    async def _once(
        self,
        method: str,
        url: URL,
        make_body: MakeBody | None,
        headers: Mapping[str, str],
        exchange: _Exchange,
    ) -> bytes:
        if self._session is None:
            raise RuntimeError("the channel is not open")
        async with self._session.request(
            method,
            url,
            data=Pieces(await make_body()) if make_body else None,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=exchange,
        ) as response:
            exchange.answer_started = True
            answer = await response.read()
            if response.status != HTTPStatus.OK:
                raise failed_answer(response.status, response.headers.get("retry-after"), answer)
            return answer


def _reuse_tracing() -> aiohttp.TraceConfig:
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_note_reuse)
    return tracing


async def _note_reuse(
    _session: aiohttp.ClientSession,
    context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    context.trace_request_ctx.reused_connection = True
