import json
import pickle
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy import errors
from decision_proxy.errors import (
    Dialect,
    InvalidHeader,
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
    assert error.retryable == (error.status in {408, 429, 502, 503, 504})
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
        part = "header" if isinstance(error, InvalidHeader) else "body"
        assert detail == [{"loc": [part], "msg": "no", "type": "value_error"}]
        assert error_status(error, "typesafe") == 422
    else:
        assert detail == {"error_type": error.type, "message": "no"}
        assert error_status(error, "typesafe") == error.status


def test_the_field_at_fault_is_named_in_both() -> None:
    error = RequestError("no", path=("questions", 0, "type"))
    assert error_body(error, "vllm")["error"]["param"] == "questions.0.type"
    assert error_body(error, "typesafe")["detail"][0]["loc"] == ["body", "questions", 0, "type"]
    named = RequestError("no", param="questions.0.type")
    assert error_body(named, "vllm") == error_body(error, "vllm")
    assert error_body(named, "typesafe")["detail"][0]["loc"] == ["body", "questions.0.type"]


@pytest.mark.parametrize("id_", ["a.b", ".", "..", "a/b", "a b", "", "é\n", "0"])
def test_an_id_is_one_step_of_the_path_whatever_is_in_it(id_: str) -> None:
    error = RequestError("no", path=("questions", id_, "type"))
    loc = error_body(error, "typesafe")["detail"][0]["loc"]
    assert loc == ["body", "questions", id_, "type"]
    assert error_body(error, "vllm")["error"]["param"] == f"questions.{id_}.type"


@given(st.text(), st.text() | st.none(), st.lists(st.text() | st.integers()))
def test_any_text_makes_an_error_that_can_be_encoded(
    message: str, param: str | None, path: list[str | int]
) -> None:
    error = RequestError(message, param=param, path=tuple(path))
    for dialect in DIALECTS:
        json.dumps(error_body(error, dialect), ensure_ascii=False).encode()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_error_of_another_process_says_the_same(dialect: Dialect) -> None:
    error = RequestError("no", path=("questions", "a.b"))
    assert error_body(pickle.loads(pickle.dumps(error)), dialect) == error_body(error, dialect)


def test_lone_surrogates_show_as_escapes() -> None:
    assert error_body(RequestError("a\ud83d"), "vllm")["error"]["message"] == "a\\ud83d"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_an_error_quotes_has_an_end(dialect: Dialect) -> None:
    for path in ((), ("p" * 1_000_000,), ("p" * 1000,) * 250):
        huge = RequestError("m" * 1_000_000, param="p" * 1_000_000, path=path)
        assert len(json.dumps(error_body(huge, dialect))) < 10_000


def test_an_overloaded_server_keeps_its_own_status_and_wait() -> None:
    error = UpstreamOverloaded("busy", status=429, retry_after_s=7)
    assert (error_status(error, "typesafe"), error_headers(error)) == (429, {"retry-after": "7"})
