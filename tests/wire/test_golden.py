"""What vLLM's own code made of many requests (see golden/make.py), and what ours makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from decision_proxy.errors import RequestError
from decision_proxy.questions import Answer, Question
from decision_proxy.reads.wording import question_text, user_turn
from decision_proxy.settings import Limits
from decision_proxy.wire.decisions import DecisionsRequest
from decision_proxy.wire.systemone import SystemOneRequest

GOLDEN = Path(__file__).parents[1] / "golden"
AS_VLLM = Limits(questions=64)


def golden(name: str) -> list[Any]:
    cases: list[Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return cases


def parse(wire: str, body: dict[str, Any]) -> SystemOneRequest | DecisionsRequest:
    if wire == "systemone":
        return SystemOneRequest.parse(body, dialect="vllm", limits=AS_VLLM)
    return DecisionsRequest.parse(body, limits=AS_VLLM)


def read(case: dict[str, Any]) -> Answer:
    return Answer(
        probabilities=tuple(case["read"]["probabilities"]),
        label_mass=case["read"]["label_mass"],
        argmax_is_label=True,
        input_tokens=len(case["ids"]),
        output_tokens=1,
    )


EVERY_CASE = [
    pytest.param(wire, case, id=f"{wire}-{number}")
    for wire in ("systemone", "decisions")
    for number, case in enumerate(golden(wire))
]


@pytest.mark.parametrize(("wire", "case"), EVERY_CASE)
def test_every_question_is_worded_as_vllm_words_it(wire: str, case: dict[str, Any]) -> None:
    decision = parse(wire, case["request"]).decision("decision-1")

    turns = [user_turn(decision.state, question) for question in decision.questions]

    assert turns == [question["user_turn"] for question in case["questions"]]


@pytest.mark.parametrize(("wire", "case"), EVERY_CASE)
def test_every_question_has_the_labels_that_vllm_reads(wire: str, case: dict[str, Any]) -> None:
    decision = parse(wire, case["request"]).decision("decision-1")

    labels = [list(question.labels) for question in decision.questions]

    assert labels == [question["labels"] for question in case["questions"]]


@pytest.mark.parametrize(("wire", "case"), EVERY_CASE)
def test_equal_reads_become_the_answers_that_vllm_builds(wire: str, case: dict[str, Any]) -> None:
    reads = [read(question) for question in case["questions"]]

    body = parse(wire, case["request"]).answer("decision-1", "m", reads, 1)

    assert json.dumps(body["answers"]) == json.dumps(case["answers"])


@pytest.mark.parametrize("case", golden("systemone"))
def test_the_system_message_is_the_requests_instructions(case: dict[str, Any]) -> None:
    decision = parse("systemone", case["request"]).decision("decision-1")

    assert (decision.instructions or "") == case["request"].get("instructions", "")


@pytest.mark.parametrize("case", golden("refusals"))
def test_what_vllm_refuses_is_refused_in_its_words(case: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        parse("systemone", case["request"])

    assert refused.value.message == case["message"]
    assert (refused.value.param or "").startswith("questions")


def test_yes_no_questions_are_worded_differently_on_the_two_routes() -> None:
    ask = "Is it urgent?"
    noul = parse(
        "systemone", {"state": "", "questions": {"q": {"type": "noul", "instructions": ask}}}
    )
    predicate = parse(
        "decisions",
        {"model": "m", "input": "", "questions": [{"type": "predicate", "instructions": ask}]},
    )

    assert question_text(only(noul)) == (
        "Question: Is it urgent?\nyes\nno\nAnswer with yes or no only."
    )
    assert question_text(only(predicate)) == (
        "Question: Is it urgent?\nA: false\nB: true\nAnswer with the letter of one option only."
    )


def test_score_levels_are_digits_on_systemone_and_letters_on_decisions() -> None:
    levels = ["low", "high"]
    score = parse(
        "systemone", {"state": "", "questions": {"q": {"type": "score", "criteria": levels}}}
    )
    asked = {"type": "score", "instructions": "", "levels": [{"label": level} for level in levels]}
    rated = parse("decisions", {"model": "m", "input": "", "questions": [asked]})

    assert (
        question_text(only(score)) == "0: low\n1: high\nAnswer with the number of one level only."
    )
    assert (
        question_text(only(rated)) == "A: low\nB: high\nAnswer with the letter of one option only."
    )


def only(request: SystemOneRequest | DecisionsRequest) -> Question:
    [question] = request.questions
    return question


@pytest.mark.parametrize("name", ["systemone", "decisions", "refusals"])
def test_golden_files_stay_small_enough_to_review(name: str) -> None:
    assert (GOLDEN / f"{name}.json").stat().st_size < 400_000


@pytest.mark.parametrize("name", ["systemone", "decisions"])
def test_golden_files_hold_sixty_requests_or_more(name: str) -> None:
    assert len(golden(name)) >= 60
