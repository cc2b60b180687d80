import json

import pytest

from decision_proxy.commands.question_file import NotQuestions, read_questions


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("2026-01-31", "2026-01-31"),
        ("0x10", "0x10"),
        ("010", "010"),
        (".5", ".5"),
        ("TRUE", "TRUE"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("-12", -12),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ('"1"', "1"),
    ],
)
def test_a_word_of_yaml_is_what_json_would_mean_by_it(written: str, meant: object) -> None:
    assert read_questions(f"q: {{criteria: [{written or '~'}]}}") == {"q": {"criteria": [meant]}}


def test_a_key_of_yaml_is_the_text_that_it_shows() -> None:
    text = "q:\n  criteria: {no: Norway, 1: one, true: t, 2026-01-31: d, null: n, 'x y': s}"
    assert list(read_questions(text)["q"]["criteria"]) == [
        "no",
        "1",
        "true",
        "2026-01-31",
        "null",
        "x y",
    ]


def test_anchors_and_merges_work() -> None:
    text = "a: &a {type: noul}\nb:\n  <<: *a\n  instructions: Late?"
    assert read_questions(text)["b"] == {"type": "noul", "instructions": "Late?"}


def test_json_is_read_as_json_tabs_and_escapes_included() -> None:
    text = '{\t"é\\ud83d\\ude00": {"type": "noul"}}'
    assert read_questions(text) == {"é😀": {"type": "noul"}}


def test_a_whole_request_with_questions_alone_is_taken() -> None:
    questions = {"a": {"type": "noul"}}
    assert read_questions(json.dumps({"questions": questions})) == questions
    assert set(read_questions("questions: {type: noul}\nb: {type: noul}")) == {"questions", "b"}


@pytest.mark.parametrize("text", ["", "null", "[1]", "word", '"text"', "&a [*a]"])
def test_what_maps_nothing_is_refused(text: str) -> None:
    with pytest.raises(NotQuestions, match="must map each question's id"):
        read_questions(text)


@pytest.mark.parametrize(
    "text",
    ["{a: 1", "a: *b", "a: !!python/object:os.system 1", "? [a]\n: b", "a: \x00", "{" * 5000],
)
def test_what_is_neither_json_nor_yaml_is_refused(text: str) -> None:
    with pytest.raises(NotQuestions, match="neither JSON nor YAML"):
        read_questions(text)
