import json
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.errors import BodyTooLarge, RequestError, error_body
from decision_proxy.wire.body import MAX_DEPTH, parse_body

MIB = 1024 * 1024


def parse(raw: bytes | str) -> dict[str, Any]:
    return parse_body(raw if isinstance(raw, bytes) else raw.encode(), max_bytes=MIB)


def refusal(raw: bytes | str) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parse(raw)
    assert refused.value.status == 400
    return refused.value


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    """An object whose deepest container is at `depth`."""
    return '{"state": ' + opening * (depth - 1) + closing * (depth - 1) + "}"


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON), st.booleans())
def test_any_json_object_is_read_as_python_reads_it(body: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only)

    read = parse_body(raw.encode(), max_bytes=len(raw) * 4)

    assert repr(read) == repr(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_a_refusal(raw: bytes) -> None:
    try:
        assert isinstance(parse(raw), dict)
    except RequestError as error:
        json.dumps(error_body(error, "vllm"), ensure_ascii=False).encode()


@given(st.text('{}[]"\\,:0123456789eE+-.utdD8fNaInity ', max_size=60))
def test_anything_shaped_like_json_is_an_object_or_a_refusal(text: str) -> None:
    try:
        body = parse('{"state": ' + text + "}")
    except RequestError:
        return
    json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def test_the_order_of_keys_is_kept() -> None:
    assert list(parse('{"b": 1, "a": 2, "c": 3}')) == ["b", "a", "c"]


def test_the_last_of_two_equal_keys_wins() -> None:
    assert parse('{"state": "first", "state": "last"}') == {"state": "last"}


def test_large_integers_are_kept_exact() -> None:
    digits = "9" * 4000

    assert str(parse(f'{{"state": {digits}}}')["state"]) == digits


def test_floats_are_pythons_floats() -> None:
    assert parse('{"state": [1.0, 1e2, 1e-400, 1.7976931348623157e308]}') == {
        "state": [1.0, 100.0, 0.0, sys.float_info.max]
    }


def test_a_byte_order_mark_is_skipped_as_vllm_skips_it() -> None:
    assert parse(b'\xef\xbb\xbf{"state": 1}') == {"state": 1}


def test_escaped_pairs_are_one_character() -> None:
    assert parse(r'{"state": "\ud83d\ude00"}') == {"state": "😀"}


def test_an_escaped_backslash_before_ud83d_is_plain_text() -> None:
    assert parse(r'{"state": "\\ud83d"}') == {"state": r"\ud83d"}


@pytest.mark.parametrize(
    "raw", [b"\xff", b'{"state": "\xed\xa0\xbd"}', '{"state": 1}'.encode("utf-16")]
)
def test_what_is_not_utf8_is_refused(raw: bytes) -> None:
    assert "UTF-8" in refusal(raw).message


def test_a_syntax_error_says_where_it_is() -> None:
    assert refusal('{\n  "state": ?\n}').message == (
        "the body is not JSON: Expecting value at line 2 column 12"
    )


@pytest.mark.parametrize(
    "raw", ["", "{", '{"a": 1,}', "{'a': 1}", '{"a": 1} x', '{"a": "\n"}', "{a: 1}"]
)
def test_what_is_not_json_is_refused(raw: str) -> None:
    assert refusal(raw).message.startswith("the body is not JSON: ")


@pytest.mark.parametrize("raw", ["null", "true", "1", '"text"', "[]", '[{"state": 1}]'])
def test_json_that_is_no_object_is_refused(raw: str) -> None:
    assert refusal(raw).message == "the body must be a JSON object"


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_pythons_own_number_words_are_refused(literal: str) -> None:
    assert literal in refusal(f'{{"state": [{literal}]}}').message


@pytest.mark.parametrize(
    "literal",
    ["1e400", "-1e400", "1E+400", "1.5e0400", "1e309", "9" * 400 + ".5", "1" + "0" * 250 + "e99"],
)
def test_a_number_that_overflows_is_refused(literal: str) -> None:
    assert refusal(f'{{"state": {literal}}}').message == (
        "the body holds a number that is too large"
    )


def test_text_that_looks_like_a_huge_number_is_text() -> None:
    text = "1e400 " + "0" * 300

    assert parse(json.dumps({"state": text})) == {"state": text}


def test_an_integer_of_five_thousand_digits_is_refused() -> None:
    assert "integer" in refusal('{"state": ' + "1" * 5000 + "}").message


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_two_hundred_thousand_brackets_are_refused(opening: str, closing: str) -> None:
    raw = '{"state": ' + opening * 200_000 + "1" + closing * 200_000 + "}"

    with pytest.raises(RequestError, match="nested deeper"):
        parse_body(raw.encode(), max_bytes=4 * MIB)


def test_brackets_that_are_never_closed_are_refused() -> None:
    assert refusal("[" * 200_000).message == f"the body is nested deeper than {MAX_DEPTH} levels"


def test_the_deepest_body_is_accepted_and_one_level_more_is_not() -> None:
    assert parse(nested(MAX_DEPTH))
    assert "nested deeper" in refusal(nested(MAX_DEPTH + 1)).message


def test_the_deepest_body_can_be_written_again_from_a_deep_stack() -> None:
    body = parse(nested(MAX_DEPTH))

    def write(frames: int) -> str:
        return write(frames - 1) if frames else json.dumps(body, indent=2)

    assert write(200)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert parse(json.dumps({"state": [[]] * 1000, "text": "[" * 1000}))


def test_a_body_is_read_in_a_thread_as_well() -> None:
    bodies: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: bodies.append(parse(nested(MAX_DEPTH))))
    thread.start()
    thread.join()

    assert len(bodies) == 1


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (r'{"state": "a\ud83d"}', "state"),
        (r'{"state": "a\uD83D"}', "state"),
        (r'{"state": "\ude00\ud83d"}', "state"),
        (r'{"model": "\udfff"}', "model"),
        (r'{"state": ["😀", {"deep": ["\udc80"]}]}', "state.1.deep.0"),
        (r'{"questions": {"u": {"criteria": {"ok": "\ud83d"}}}}', "questions.u.criteria.ok"),
        (r'{"questions": {"a\ud83d": {}}}', r"questions.a\ud83d"),
        (r'{"\ud83d": 1}', r"\ud83d"),
    ],
)
def test_a_lone_surrogate_is_refused_and_its_field_named(raw: str, param: str) -> None:
    error = refusal(raw)

    assert error.param == param
    assert param in error.message


def test_the_path_to_a_lone_surrogate_keeps_keys_whole() -> None:
    assert refusal(r'{"a.b": [1, {"": "\ud83d"}]}').path == ("a.b", 1, "")


@pytest.mark.parametrize("dialect", ["vllm", "typesafe"])
def test_the_refusal_of_a_lone_surrogate_can_be_encoded(dialect: Any) -> None:
    error = refusal(r'{"a\ud83d": {"b": "\ud83d"}}')

    assert json.dumps(error_body(error, dialect), ensure_ascii=False).encode()


def test_a_huge_key_is_not_echoed() -> None:
    error = refusal('{"' + "k" * 100_000 + r'": "\ud83d"}')

    assert len(error.message) < 300


def test_a_body_of_the_largest_size_is_read_and_one_byte_more_is_not() -> None:
    raw = b'{"state": 1}'

    assert parse_body(raw, max_bytes=len(raw))
    with pytest.raises(BodyTooLarge) as refused:
        parse_body(raw, max_bytes=len(raw) - 1)
    assert refused.value.status == 413
