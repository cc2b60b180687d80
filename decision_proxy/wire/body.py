"""A request body: bounded, strict UTF-8 JSON, safe to write again."""

import json
import math
from typing import Any, NoReturn

from decision_proxy.errors import BodyTooLarge, Path, RequestError, dotted, printable

# orjson writes at most 254 levels, and Python's encoder fewer than its recursion limit.
MAX_DEPTH = 250

# Digits as 0 and E as e: finds a number that may overflow at the speed of memory.
NUMBER_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
MAY_OVERFLOW = (b"0e000", b"0e+000", b"0" * 200)


def parse_body(raw: bytes, *, max_bytes: int) -> dict[str, Any]:
    """The JSON object in `raw`, with Python's json semantics; RequestError for anything else."""
    if len(raw) > max_bytes:
        raise BodyTooLarge(f"the body is larger than {max_bytes} bytes")
    body = _parsed(raw)
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    _refuse_deep_nesting(raw, body)
    _refuse_lone_surrogates(raw, body)
    return body


def _parsed(raw: bytes) -> Any:
    try:
        text = raw.decode("utf-8-sig")
        # A parse_float hook is slow, so only bodies that may need it pay for it.
        parse_float = _finite if _may_overflow(raw) else None
        return json.loads(text, parse_float=parse_float, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise RequestError(f"the body is not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise _nested_too_deep() from None
    except ValueError:  # Python's limit on the digits of an integer
        raise RequestError("the body holds an integer with too many digits") from None


def _may_overflow(raw: bytes) -> bool:
    shape = raw.translate(NUMBER_SHAPE)
    return any(mark in shape for mark in MAY_OVERFLOW)


def _finite(literal: str) -> float:
    number = float(literal)
    if math.isinf(number):
        raise RequestError("the body holds a number that is too large")
    return number


def _refuse_constant(literal: str) -> NoReturn:
    raise RequestError(f"the body is not JSON: {literal} is not a number")


def _refuse_deep_nesting(raw: bytes, body: dict[str, Any]) -> None:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in {dict, list}
        ]
        if not level:
            return
    raise _nested_too_deep()


def _nested_too_deep() -> RequestError:
    return RequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _refuse_lone_surrogates(raw: bytes, body: dict[str, Any]) -> None:
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return
    if _encodable(json.dumps(body, ensure_ascii=False)):
        return
    path = _path_to_lone_surrogate(body) or ()
    raise RequestError(f"{dotted(path)}: holds a lone surrogate, which is not text", path=path)


def _path_to_lone_surrogate(node: Any) -> Path | None:
    if isinstance(node, str):
        return None if _encodable(node) else ()
    if not isinstance(node, dict | list):
        return None
    for key, child in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(key, str) and not _encodable(key):
            return (printable(key),)
        path = _path_to_lone_surrogate(child)
        if path is not None:
            return (key, *path)
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
