"""Outside failures become ours at this seam: what the client raises, what vLLM answers but 200."""

from http import HTTPStatus
from typing import Any, Final

import aiohttp
import orjson

from decision_proxy.errors import (
    ProxyError,
    UnsuitableModel,
    UpstreamBroken,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)

CLIENT_FAILURES: Final = (aiohttp.ClientError, TimeoutError, OSError)
KNOWN_STATUSES: Final = frozenset(HTTPStatus)
OVERLOADED: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
LONGEST_RETRY_AFTER_S: Final = 60
LONGEST_MESSAGE: Final = 2000


def failed_exchange(failure: Exception) -> UpstreamError:
    """What one of CLIENT_FAILURES means to our client; vLLM's address stays inside."""
    if isinstance(failure, aiohttp.ConnectionTimeoutError):
        return UpstreamUnavailable("vLLM did not accept a connection in time")
    if isinstance(failure, aiohttp.ClientConnectorError):
        return UpstreamUnavailable("vLLM cannot be reached")
    if isinstance(failure, TimeoutError):
        return UpstreamTimeout("vLLM did not answer in time")
    if isinstance(failure, (aiohttp.ClientConnectionError, OSError)):
        return UpstreamUnavailable("vLLM closed the connection without an answer")
    if isinstance(failure, aiohttp.ClientPayloadError):
        return UpstreamBroken("vLLM's answer ends before it is complete")
    return UpstreamBroken("vLLM's answer is not HTTP")


def failed_answer(status: int, retry_after: str | None, body: bytes) -> ProxyError:
    """What an answer with any status but 200 means to our client."""
    message, param = _words(body)
    if status in OVERLOADED:
        return UpstreamOverloaded(
            message or "vLLM is overloaded", status=status, retry_after_s=_seconds(retry_after)
        )
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return UnsuitableModel(message or "vLLM cannot read this model's next token", param=param)
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        known = status if status in KNOWN_STATUSES else HTTPStatus.BAD_REQUEST
        return UpstreamRefused(message or f"vLLM answered {status}", status=known, param=param)
    return UpstreamBroken(f"vLLM answered {status}: {message or 'nothing'}")


def _seconds(retry_after: str | None) -> int:
    """vLLM's own wait when it is whole seconds, 60 at most; otherwise one second."""
    text = retry_after or ""
    if not text.isdecimal():
        return 1
    digits = text.lstrip("0")[: len(str(LONGEST_RETRY_AFTER_S)) + 1]
    return max(1, min(int(digits or "0"), LONGEST_RETRY_AFTER_S))


def _words(body: bytes) -> tuple[str, str | None]:
    """The message and the field at fault, of `{"error": {…}}`, `{"error": "…"}` or plain text."""
    try:
        answer: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip()[:LONGEST_MESSAGE], None
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    if not isinstance(error, dict):
        return str(error)[:LONGEST_MESSAGE], None
    message = error.get("message", error.get("detail", ""))
    param = error.get("param")
    return str(message)[:LONGEST_MESSAGE], param if isinstance(param, str) else None
