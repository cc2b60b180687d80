"""Every failure a client can be told about.

ProxyError
├── RequestError                400  the request is wrong; a retry cannot help
│   ├── InvalidHeader           400
│   ├── BodyTooLarge            413
│   ├── UnsupportedMediaType    415
│   ├── NoSuchPath              404
│   ├── NoSuchMethod            405
│   └── ModelNotFound           404
├── UnsuitableModel             501  this model cannot answer this way; says which label and why
├── BodyTooSlow                 408  the client did not send its body in time
├── Overloaded                  429  too many decisions wait; Retry-After says when to come again
├── DeadlineExceeded            504  the decision's own time was over; says where it was then
├── InternalError               500  nobody foresaw this; the log has the traceback
└── UpstreamError
    ├── UpstreamRefused         4xx  vLLM refused a read; its own status and words
    ├── UpstreamOverloaded      429 or 503, with Retry-After
    ├── UpstreamUnavailable     503  vLLM cannot be reached, or is not ready
    ├── UpstreamTimeout         504
    └── UpstreamBroken          502  vLLM's answer makes no sense
ClientGone                           nobody is left to tell

Two dialects: vLLM's `{"error": {message, type, param, code}}`, and TypeSafe's `{"detail": …}`.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, ClassVar, Literal

Dialect = Literal["vllm", "typesafe"]
Path = tuple[int | str, ...]

# Errors quote what they were given, and that may be megabytes.
MAX_MESSAGE_CHARS = 4000
MAX_PARAM_CHARS = 400
MAX_NAME_CHARS = 80
MAX_STEPS = 20
MAX_STEP_CHARS = 200


class ClientGone(Exception):
    """The client hung up."""


class ProxyError(Exception):
    """`path` leads to the field at fault, `param` is its name; `retry_after_s`: Retry-After."""

    status: int = 500
    type: str = "InternalServerError"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        path: Path = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = dotted(path) if path else param
        self.path = path or (() if param is None else (param,))
        self.retry_after_s = retry_after_s


class RequestError(ProxyError):
    status = 400
    type = "BadRequestError"
    part: ClassVar[str] = "body"


class InvalidHeader(RequestError):
    part = "header"


class BodyTooLarge(RequestError):
    status = 413
    type = "RequestEntityTooLarge"


class UnsupportedMediaType(RequestError):
    status = 415
    type = "UnsupportedMediaTypeError"


class NoSuchPath(RequestError):
    status = 404
    type = "NotFoundError"


class NoSuchMethod(RequestError):
    status = 405
    type = "MethodNotAllowedError"


class ModelNotFound(RequestError):
    status = 404
    type = "NotFoundError"


class UnsuitableModel(ProxyError):
    status = 501
    type = "NotImplementedError"


class Overloaded(ProxyError):
    status = 429
    type = "TooManyRequestsError"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class BodyTooSlow(ProxyError):
    status = 408
    type = "RequestTimeoutError"
    retryable = True


class DeadlineExceeded(ProxyError):
    status = 504
    type = "GatewayTimeoutError"
    retryable = True


class InternalError(ProxyError):
    pass


class UpstreamError(ProxyError):
    pass


class UpstreamRefused(UpstreamError):
    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.type = HTTPStatus(status).phrase.replace(" ", "") + "Error"


class UpstreamOverloaded(UpstreamError):
    type = "ServiceUnavailableError"
    retryable = True

    def __init__(self, message: str, *, status: int = 503, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status


class UpstreamUnavailable(UpstreamError):
    status = 503
    type = "ServiceUnavailableError"
    retryable = True

    def __init__(self, message: str, *, retry_after_s: int = 2) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class UpstreamTimeout(UpstreamError):
    status = 504
    type = "GatewayTimeoutError"
    retryable = True


class UpstreamBroken(UpstreamError):
    status = 502
    type = "BadGatewayError"
    retryable = True


def error_status(error: ProxyError, dialect: Dialect) -> int:
    """TypeSafe calls a request that does not validate 422; everyone else says 400."""
    if dialect == "typesafe" and error.status == HTTPStatus.BAD_REQUEST:
        return HTTPStatus.UNPROCESSABLE_ENTITY
    return error.status


def error_body(error: ProxyError, dialect: Dialect) -> dict[str, Any]:
    message = shortened(printable(error.message), MAX_MESSAGE_CHARS)
    param = None if error.param is None else shortened(printable(error.param), MAX_PARAM_CHARS)
    if dialect == "vllm":
        return {
            "error": {"message": message, "type": error.type, "param": param, "code": error.status}
        }
    if error.status == HTTPStatus.BAD_REQUEST:
        part = error.part if isinstance(error, RequestError) else RequestError.part
        loc = [part, *(_shown(step) for step in error.path[:MAX_STEPS])]
        return {"detail": [{"loc": loc, "msg": message, "type": "value_error"}]}
    return {"detail": {"error_type": error.type, "message": message}}


def error_headers(error: ProxyError) -> dict[str, str]:
    """Retry-After in whole seconds; `x-should-retry: false` where a retry cannot help."""
    headers = {} if error.retryable else {"x-should-retry": "false"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return headers


def _shown(step: int | str) -> int | str:
    return shortened(printable(step), MAX_STEP_CHARS) if isinstance(step, str) else step


def dotted(path: Iterable[int | str]) -> str:
    return ".".join(shortened(str(step)) for step in path)


def shortened(text: str, longest: int = MAX_NAME_CHARS) -> str:
    return text if len(text) <= longest else text[:longest] + "…"


def printable(text: str) -> str:
    """Text that can be encoded: a lone surrogate shows as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()
