import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy import errors
from decision_proxy.errors import (
    Dialect,
    ProxyError,
    RequestError,
    UpstreamOverloaded,
    UpstreamRefused,
    error_body,
    error_headers,
    error_status,
)

DIALECTS: tuple[Dialect, Dialect] = ("vllm", "typesafe")


def kinds(kind: type[ProxyError] = ProxyError) -> Iterator[type[ProxyError]]:
    for child in kind.__subclasses__():
        yield child
        yield from kinds(child)


def one_of_each() -> Iterator[ProxyError]:
    for kind in kinds():
        if kind is UpstreamRefused:
            yield UpstreamRefused("no", status=403)
        else:
            yield kind("no")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    documented = errors.__doc__ or ""
    for error in one_of_each():
        name = re.compile(rf"\b{type(error).__name__}\b")
        [line] = [line for line in documented.splitlines() if name.search(line)]
        if str(error.status) not in line:
            assert type(error) in {errors.UpstreamError, UpstreamRefused}


@pytest.mark.parametrize("error", [*one_of_each()], ids=lambda error: type(error).__name__)
def test_a_clients_mistake_is_never_retried_and_an_outage_may_be(error: ProxyError) -> None:
    headers = error_headers(error)
    assert (headers.get("x-should-retry") == "false") != error.retryable
    assert error.retryable == (error.status in {429, 502, 503, 504})
    if error.status in {429, 503}:
        assert 1 <= int(headers["retry-after"]) <= 60


@pytest.mark.parametrize("error", [*one_of_each()], ids=lambda error: type(error).__name__)
def test_each_dialect_has_one_shape_for_it(error: ProxyError) -> None:
    assert error_body(error, "vllm") == {
        "error": {"message": "no", "type": error.type, "param": None, "code": error.status}
    }
    assert error_status(error, "vllm") == error.status
    detail = error_body(error, "typesafe")["detail"]
    if error.status == 400:
        assert detail == [{"loc": ["body"], "msg": "no", "type": "value_error"}]
        assert error_status(error, "typesafe") == 422
    else:
        assert detail == {"error_type": error.type, "message": "no"}
        assert error_status(error, "typesafe") == error.status


def test_the_field_at_fault_is_named_in_both() -> None:
    error = RequestError("no", param="questions.a.type")
    assert error_body(error, "vllm")["error"]["param"] == "questions.a.type"
    assert error_body(error, "typesafe")["detail"][0]["loc"] == ["body", "questions", "a", "type"]


@given(st.text(), st.text() | st.none())
def test_any_text_makes_an_error_that_can_be_encoded(message: str, param: str | None) -> None:
    for dialect in DIALECTS:
        body = error_body(RequestError(message, param=param), dialect)
        json.dumps(body, ensure_ascii=False).encode()


def test_lone_surrogates_show_as_escapes() -> None:
    assert error_body(RequestError("a\ud83d"), "vllm")["error"]["message"] == "a\\ud83d"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_an_error_quotes_has_an_end(dialect: Dialect) -> None:
    huge = RequestError("m" * 1_000_000, param="p" * 1_000_000)
    assert len(json.dumps(error_body(huge, dialect))) < 10_000


def test_an_overloaded_server_keeps_its_own_status_and_wait() -> None:
    error = UpstreamOverloaded("busy", status=429, retry_after_s=7)
    assert (error_status(error, "typesafe"), error_headers(error)) == (429, {"retry-after": "7"})
