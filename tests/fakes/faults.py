"""What can go wrong with a read, for `FakeVllm.faults` and `FakeVllm.every_read`."""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from tests.fakes.vllm import Exchange, Fault, error


def status(
    code: int, message: str = "no", *, param: str | None = None, retry_after: str | None = None
) -> Fault:
    async def fault(_exchange: Exchange) -> web.StreamResponse:
        return error(code, message, param, retry_after)

    return fault


def raw(body: bytes, *, code: int = 200) -> Fault:
    """Any bytes as the answer's body: garbage, an empty one, another shape."""

    async def fault(_exchange: Exchange) -> web.StreamResponse:
        return web.Response(body=body, status=code, content_type="application/json")

    return fault


def edited(edit: Callable[[dict[str, Any]], None]) -> Fault:
    """The usual answer after `edit`; a NaN in it travels as `NaN`."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        edit(exchange.answer)
        body = json.dumps(exchange.answer).encode()
        return web.Response(body=body, content_type="application/json")

    return fault


def with_headers(headers: dict[str, str]) -> Fault:
    """The usual answer with more headers."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        return web.json_response(exchange.answer, headers=headers)

    return fault


def edited_logprobs(edit: Callable[[dict[str, Any]], None]) -> Fault:
    """`edit` gets the first choice's logprobs, keyed `token_id:<n>`."""
    return edited(lambda answer: edit(answer["choices"][0]["logprobs"]["top_logprobs"][0]))


def without_label(token: int) -> Fault:
    return edited_logprobs(lambda found: found.pop(f"token_id:{token}"))


def hang() -> Fault:
    """No answer, until the client gives up."""
    return held(asyncio.Event())


def held(release: asyncio.Event, then: Fault | None = None) -> Fault:
    """The usual answer or `then`, once `release` is set."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        await release.wait()
        return await (then or usual)(exchange)

    return fault


async def usual(exchange: Exchange) -> web.StreamResponse:
    return web.json_response(exchange.answer)


def delayed(seconds: float) -> Fault:
    async def fault(exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await usual(exchange)

    return fault


def redirect(location: str) -> Fault:
    async def fault(_exchange: Exchange) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": location})

    return fault


def close_connection() -> Fault:
    """Closes the connection before any byte of an answer."""
    return _bytes_then_close(b"")


def reset_connection() -> Fault:
    """A TCP reset before any byte of an answer."""

    async def fault(exchange: Exchange) -> web.StreamResponse:
        transport = exchange.request.transport
        if transport is not None:
            connection = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        return web.Response()

    return fault


def close_reused_connection() -> Fault:
    """Closes a connection kept from an earlier request, as at the end of its keep-alive."""
    close = close_connection()

    async def fault(exchange: Exchange) -> web.StreamResponse:
        if exchange.seen.reused_connection:
            return await close(exchange)
        return await usual(exchange)

    return fault


def die_in_headers() -> Fault:
    return _bytes_then_close(b"HTTP/1.1 200 OK\r\nConte")


def die_in_body() -> Fault:
    return _bytes_then_close(
        b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{"id'
    )


def not_http() -> Fault:
    return _bytes_then_close(b"\x00\x01 what is this\r\n\r\n")


def _bytes_then_close(start: bytes) -> Fault:
    async def fault(exchange: Exchange) -> web.StreamResponse:
        transport = exchange.request.transport
        if transport is not None:
            transport.write(start)
            transport.close()
        return web.Response()

    return fault
