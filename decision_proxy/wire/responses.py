"""JSON responses that carry the request's id, and errors in the dialect of their path."""

from collections.abc import Mapping
from uuid import uuid4

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from decision_proxy.errors import (
    Dialect,
    InternalError,
    NoSuchMethod,
    NoSuchPath,
    ProxyError,
    error_body,
    error_headers,
    error_status,
)

# A server may refuse longer headers, and every read carries the id.
MAX_ID_CHARS = 256


def request_id(given: str | None) -> str:
    """The caller's own in what a header can hold, or a new one: the same here and at vLLM."""
    shown = map(_in_header, (given or "").strip()[:MAX_ID_CHARS])
    return "".join(shown).strip() or uuid4().hex


def _in_header(char: str) -> str:
    return char if char.isprintable() and char <= "\xff" else "?"


def json_response(
    body: bytes, request_id: str, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    ids = {"x-request-id": request_id, "x-typesafe-request-id": request_id}
    return Response(
        body, status_code=status, headers={**ids, **(headers or {})}, media_type="application/json"
    )


def error_response(error: ProxyError, dialect: Dialect, request_id: str) -> Response:
    return json_response(
        orjson.dumps(error_body(error, dialect)),
        request_id,
        status=error_status(error, dialect),
        headers=error_headers(error),
    )


def routing_errors(
    dialects: Mapping[str, Dialect],
) -> dict[int | type[Exception], ExceptionHandler]:
    """What Starlette itself answers, as JSON. `dialects`: of the paths that do not speak vLLM's."""

    def respond(request: Request, error: ProxyError, **headers: str) -> Response:
        path = request.scope["path"]
        response = error_response(
            error, dialects.get(path, "vllm"), request_id(request.headers.get("x-request-id"))
        )
        response.headers.update(headers)
        return response

    async def no_such_path(request: Request, _error: Exception) -> Response:
        return respond(request, NoSuchPath(f"There is nothing at {request.scope['path']}"))

    async def no_such_method(request: Request, error: Exception) -> Response:
        allowed = ((isinstance(error, HTTPException) and error.headers) or {}).get("Allow", "")
        said = NoSuchMethod(f"{request.method} is not possible here, only {allowed}")
        return respond(request, said, allow=allowed)

    async def internal(request: Request, _error: Exception) -> Response:
        return respond(request, InternalError("The proxy failed at this; its log says why."))

    return {404: no_such_path, 405: no_such_method, Exception: internal}
