import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from transformers.utils.chat_template_utils import render_jinja_template

from decision_proxy.errors import RequestError
from decision_proxy.settings import Limits
from decision_proxy.wire.fields import (
    MAX_ERRORS,
    RESERVED_TEMPLATE_NAMES,
    CacheSalt,
    Shape,
    json_text,
    refuse_too_many_questions,
    shaped,
    template_options,
)


class Inner(Shape):
    count: int = 0


class Outer(Shape):
    name: str
    inner: dict[str, Inner] | None = None
    numbers: list[int] | None = None
    cache_salt: CacheSalt = None


def refusal(body: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as refused:
        shaped(Outer, body)
    return refused.value


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ({}, "name: required", "name"),
        ({"name": 5}, "name: must be a string", "name"),
        ({"name": "n", "inner": []}, "inner: must be an object", "inner"),
        ({"name": "n", "inner": {"k": 1}}, "inner.k: must be an object", "inner.k"),
        ({"name": "n", "inner": {"k": {"x": 1}}}, "inner.k.x: unknown field", "inner.k.x"),
        (
            {"name": "n", "inner": {"k": {"count": "1"}}},
            "inner.k.count: must be an integer",
            "inner.k.count",
        ),
        (
            {"name": "n", "inner": {"k": {"count": True}}},
            "inner.k.count: must be an integer",
            "inner.k.count",
        ),
        ({"name": "n", "numbers": {}}, "numbers: must be a list", "numbers"),
        ({"name": "n", "numbers": [1, 2.5]}, "numbers.1: must be an integer", "numbers.1"),
    ],
)
def test_a_wrong_shape_is_told_by_its_field_and_what_is_expected(
    body: dict[str, Any], message: str, param: str
) -> None:
    error = refusal(body)

    assert (error.message, error.param) == (message, param)


def test_a_huge_value_is_not_echoed() -> None:
    error = refusal({"name": ["secret" * 1000], "x" * 100_000: "secret" * 1000})

    assert "secret" not in error.message
    assert len(error.message) < 300


def test_a_huge_field_name_is_cut() -> None:
    error = refusal({"name": "n", "x" * 100_000: 1})

    assert len(error.message) < 300
    assert error.message.endswith("unknown field")


def test_many_errors_are_counted_instead_of_listed() -> None:
    error = refusal({"name": "n", "numbers": ["x"] * (MAX_ERRORS + 1)})

    assert error.message == f"{MAX_ERRORS + 1} fields of the body are wrong"


@pytest.mark.parametrize("salt", ["a", "x" * 128, "salt-43_chars.=+", "é", None])
def test_a_good_cache_salt_is_kept(salt: str | None) -> None:
    assert shaped(Outer, {"name": "n", "cache_salt": salt}).cache_salt == salt


@pytest.mark.parametrize("salt", ["", 5, True, [], {"a": 1}])
def test_a_cache_salt_that_is_no_text_is_refused_in_vllms_words(salt: Any) -> None:
    error = refusal({"name": "n", "cache_salt": salt})

    assert error.message == "Parameter 'cache_salt' must be a non-empty string if provided."
    assert error.param == "cache_salt"


@pytest.mark.parametrize("salt", ["a@b", "a/b", "a\\b", "a\0b", "x" * 129])
def test_a_cache_salt_outside_the_rules_is_refused_in_vllms_words(salt: str) -> None:
    assert refusal({"name": "n", "cache_salt": salt}).message == (
        "Parameter 'cache_salt' must be at most 128 characters and must not contain "
        r"'@', '/', '\\', or NUL."
    )


@pytest.mark.parametrize("given", [None, {}])
def test_no_template_options_are_no_options(given: dict[str, Any] | None) -> None:
    assert template_options(given) == {}


def test_template_options_of_the_models_own_are_kept() -> None:
    given = {"enable_thinking": False, "reasoning_effort": "low", "tone": {"deep": [1]}}

    assert template_options(given) == given


def test_options_that_vllm_takes_as_not_given_are_dropped() -> None:
    assert template_options({"tone": None, "effort": "auto", "enable_thinking": None, "n": 0}) == {
        "n": 0
    }


@pytest.mark.parametrize("name", sorted(RESERVED_TEMPLATE_NAMES))
@pytest.mark.parametrize("value", [None, [], "{{ 7*7 }}", True])
def test_a_request_must_not_bring_its_own_template_or_conversation(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        template_options({"tone": "dry", name: value})

    assert refused.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize(
    "renderer",
    [
        PreTrainedTokenizerBase.apply_chat_template,
        ProcessorMixin.apply_chat_template,
        render_jinja_template,
    ],
)
def test_every_parameter_of_transformers_rendering_is_reserved(renderer: Any) -> None:
    named = {
        parameter.name
        for parameter in inspect.signature(renderer).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }

    assert named <= RESERVED_TEMPLATE_NAMES


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
def test_thinking_is_refused_in_vllms_words(name: str) -> None:
    with pytest.raises(RequestError) as refused:
        template_options({name: True})

    assert refused.value.message == ("a read is the reply's first token, so thinking must be off")


@pytest.mark.parametrize("name", ["enable_thinking", "thinking"])
@pytest.mark.parametrize("value", ["false", "true", "auto", "", 0, 1, 0.0, [], {}])
def test_a_non_boolean_never_turns_thinking_on_or_off(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match="must be false"):
        template_options({name: value})


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.text() | st.integers()))
def test_any_template_options_are_kept_or_refused(options: dict[str, Any]) -> None:
    try:
        kept = template_options(options)
    except RequestError:
        return
    assert kept.items() <= options.items()
    assert not kept.keys() & RESERVED_TEMPLATE_NAMES


@pytest.mark.parametrize("questions", [{"a": 1, "b": 2}, [1, 2]])
def test_questions_are_counted_before_they_are_looked_at(questions: Any) -> None:
    refuse_too_many_questions({"questions": questions}, Limits(questions=2))
    with pytest.raises(RequestError, match="at most 1 for this model"):
        refuse_too_many_questions({"questions": questions}, Limits(questions=1))


def test_json_in_a_prompt_is_written_as_vllm_writes_it() -> None:
    assert json_text({"é": [1.0, None, True, "\u2028"]}, "state") == (
        '{"é": [1.0, null, true, "\u2028"]}'
    )


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), pytest.param(10**5000, id="5001 digits")]
)
def test_a_number_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        json_text([value], "state")

    assert refused.value.param == "state"
