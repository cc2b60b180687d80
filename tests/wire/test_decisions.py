import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.errors import RequestError
from decision_proxy.questions import Answer, Kind, Option, label_softmax
from decision_proxy.settings import Limits
from decision_proxy.wire.body import parse_body
from decision_proxy.wire.decisions import DecisionsRequest

PREDICATE = {"type": "predicate", "instructions": "Is it urgent?"}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "Money"}, {"value": True}],
}
SCORE = {
    "type": "score",
    "instructions": "How angry?",
    "levels": [{"label": "calm"}, {"label": "cross", "description": "some"}, {"label": "furious"}],
}


def asking(*questions: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "s", "questions": list(questions), **fields}


def choosing(*values: Any) -> dict[str, Any]:
    return {
        "type": "choice",
        "instructions": "?",
        "choices": [{"value": value} for value in values],
    }


def user(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **fields}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "input_text", "text": said, **fields}


def parse(body: dict[str, Any], **limits: int) -> DecisionsRequest:
    return DecisionsRequest.parse(body, limits=Limits(**limits))


def state(given: Any) -> str:
    return parse(asking(PREDICATE, input=given)).decision("d").state


def refusal(body: dict[str, Any], **limits: int) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parse(body, **limits)
    assert refused.value.status == 400
    return refused.value


def read(*probabilities: float, label_mass: float = 1.0) -> Answer:
    return Answer(
        probabilities=probabilities,
        label_mass=label_mass,
        argmax_is_label=True,
        input_tokens=100,
        output_tokens=1,
        cached_tokens=64,
    )


# The decision


def test_a_decision_carries_everything_that_was_asked() -> None:
    decision = parse(asking(PREDICATE, CHOICE, cache_salt="pepper")).decision("decision-7")

    assert (decision.id, decision.model, decision.state) == ("decision-7", "m", "s")
    assert (decision.cache_salt, decision.instructions) == ("pepper", None)
    assert (decision.template_kwargs, decision.priority) == ({}, 0)
    assert [question.name for question in decision.questions] == ["questions.0", "questions.1"]


def test_every_type_is_read_by_letters() -> None:
    questions = parse(asking(PREDICATE, CHOICE, SCORE)).questions

    assert {question.kind for question in questions} == {Kind.CHOICE}
    assert [question.labels for question in questions] == [("A", "B"), ("A", "B"), ("A", "B", "C")]


def test_a_predicate_offers_false_first() -> None:
    [question] = parse(asking(PREDICATE)).questions

    assert question.options == (Option("false"), Option("true"))


def test_choice_values_are_shown_as_json_literals() -> None:
    [question] = parse(asking(choosing(True, "true", "é\n", "a b"))).questions

    assert [option.name for option in question.options] == ["true", '"true"', '"é\\n"', '"a b"']


def test_score_levels_are_shown_by_their_labels() -> None:
    [question] = parse(asking(SCORE)).questions

    assert [option.name for option in question.options] == ["calm", "cross", "furious"]
    assert question.options[1].description == "some"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain", "plain"),
        ("", ""),
        ([], ""),
        ([user("one"), user("two", type="message")], "one\n\ntwo"),
        ([user([text("a"), text("b")]), user([])], "a\nb\n\n"),
    ],
)
def test_messages_are_joined_by_blank_lines_and_parts_by_newlines(given: Any, shown: str) -> None:
    assert state(given) == shown


@pytest.mark.parametrize("data", [{"b": "é", "a": [1, None]}, [{"a": 1}, {}]])
def test_a_json_part_is_shown_as_json(data: Any) -> None:
    shown = json.dumps(data, ensure_ascii=False)

    assert state([user([text("see:"), {"type": "input_json", "data": data}])]) == f"see:\n{shown}"


def test_instructions_may_be_parts_as_well() -> None:
    parts = [text("one"), text("two"), {"type": "input_json", "data": {"a": 1}}]

    [question] = parse(asking({**PREDICATE, "instructions": parts})).questions

    assert question.instructions == 'one\ntwo\n{"a": 1}'


def test_what_openai_says_about_prompt_caches_is_accepted_without_effect() -> None:
    marked = [user([text("s", prompt_cache_breakpoint={"mode": "explicit"})])]
    body = asking(
        PREDICATE,
        input=marked,
        prompt_cache_key="k",
        prompt_cache_options={"mode": "explicit", "ttl": "30m"},
        prompt_cache_breakpoint={"mode": "explicit"},
        safety_identifier="user-1",
    )

    assert parse(body).decision("d") == parse(asking(PREDICATE)).decision("d")


# What is refused


def test_a_string_and_a_boolean_with_the_same_text_are_two_values() -> None:
    assert parse(asking(choosing(True, "true", False, "false")))


@pytest.mark.parametrize("values", [("a", "b", "a"), (True, "x", True), ("", "")])
def test_equal_values_are_refused(values: tuple[Any, ...]) -> None:
    error = refusal(asking(PREDICATE, choosing(*values)))

    assert error.message == "questions.1.choices: choice values must be distinct"
    assert error.param == "questions.1.choices"


@pytest.mark.parametrize("value", [1, 0, 1.5, None, [], {"str": 1}])
def test_a_choice_value_is_text_or_a_boolean(value: Any) -> None:
    error = refusal(asking(choosing("a", value)))

    assert error.message == "questions.0.choices.1.value: must be a string or a boolean"


def test_there_are_as_many_options_as_the_setting_allows() -> None:
    assert parse(asking(choosing("a", "b", "c")), options=3)
    error = refusal(asking(PREDICATE, choosing("a", "b", "c")), options=2)

    assert error.message == "This model supports at most 2 choices per question"
    assert (error.param, error.path) == ("questions.1", ("questions", 1))


@pytest.mark.parametrize("count", [0, 1, 256])
def test_a_choice_has_2_to_255_values(count: int) -> None:
    values = [str(n) for n in range(count)]

    assert refusal(asking(choosing(*values))).param == "questions.0.choices"


@pytest.mark.parametrize("count", [0, 1, 11])
def test_a_score_has_2_to_10_levels(count: int) -> None:
    levels = [{"label": str(n)} for n in range(count)]

    assert refusal(asking({**SCORE, "levels": levels})).param == "questions.0.levels"


def test_levels_may_share_a_label() -> None:
    assert parse(asking({**SCORE, "levels": [{"label": "x"}, {"label": "x"}]}))


def test_there_are_1_to_400_questions() -> None:
    assert len(parse(asking(*[PREDICATE] * 400)).questions) == 400
    assert refusal(asking(*[PREDICATE] * 401)).message == "questions: at most 400 for this model"
    assert refusal(asking()).param == "questions"


@pytest.mark.parametrize(
    "content",
    [[{"type": "input_image", "image_url": "data:,"}], [text("a"), {"type": "input_image"}]],
)
def test_an_image_is_refused_in_vllms_words_and_never_dropped(content: list[Any]) -> None:
    words = "Decisions supports text input only; images are not supported"

    assert refusal(asking(PREDICATE, input=[user(content)])).message == f"input.0.content: {words}"
    assert refusal(asking({**PREDICATE, "instructions": content})).message == (
        f"questions.0.instructions: {words}"
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": None}, "model: must be a string"),
        ({"input": 5}, "input: must be a string or a list of messages"),
        ({"input": {"role": "user"}}, "input: must be a string or a list of messages"),
        ({"input": ["s"]}, "input.0: must be an object"),
        ({"input": [{"role": "user"}]}, "input.0.content: required"),
        ({"input": [user("s", role="robot")]}, "input.0.role: must be 'user'"),
        ({"input": [user("s", type="call")]}, "input.0.type: must be 'message'"),
        ({"input": [user(5)]}, "input.0.content: must be a string or a list of parts"),
        (
            {"input": [user([text("s"), {"type": "x"}])]},
            "input.0.content.1: type must be one of 'input_text', 'input_json'",
        ),
        ({"input": [user([{"type": "input_text"}])]}, "input.0.content.0.text: required"),
        ({"input": [user([text("s", text=5)])]}, "input.0.content.0.text: must be a string"),
        ({"input": [user([{"type": "input_json", "data": "s"}])]}, None),
        ({"questions": {}}, "questions: must be a list"),
        ({"questions": [5]}, None),
        ({"questions": [{}]}, "questions.0: needs a type"),
        (
            {"questions": [{"type": "noul"}]},
            "questions.0: type must be one of 'predicate', 'choice', 'score'",
        ),
        ({"questions": [{"type": "predicate"}]}, "questions.0.instructions: required"),
        (
            {"questions": [{**PREDICATE, "name": None}]},
            "questions.0.name: must be a string when provided",
        ),
        ({"questions": [{**PREDICATE, "choice": 1}]}, "questions.0.choice: unknown field"),
        ({"questions": [{"type": "choice", "instructions": ""}]}, "questions.0.choices: required"),
        (
            {"questions": [{**CHOICE, "choices": [1, 2]}]},
            "questions.0.choices.0: must be an object",
        ),
        (
            {"questions": [{**SCORE, "levels": [{"label": 1}, {}]}]},
            "questions.0.levels.0.label: must be a string",
        ),
        ({"safety_identifier": "x" * 129}, "safety_identifier: must have at most 128 characters"),
        ({"joint": 1}, "joint: must be true or false"),
        ({"prompt_cache_key": 1}, "prompt_cache_key: must be a string"),
        ({"seed": 7}, "seed: unknown field"),
        ({"priority": 7}, "priority: unknown field"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_name(
    fields: dict[str, Any], message: str | None
) -> None:
    error = refusal(asking(PREDICATE) | fields)

    assert error.message.startswith(f"{error.param}: ")
    assert message is None or error.message == message


def test_a_field_called_like_the_type_is_not_taken_for_the_field_at_fault() -> None:
    error = refusal(asking({**CHOICE, "choice": 1, "choices": 5}))

    assert error.path == ("questions", 0, "choices")
    assert refusal(asking({**CHOICE, "choice": 1})).path == ("questions", 0, "choice")


@pytest.mark.parametrize("field", ["model", "input", "questions"])
def test_model_input_and_questions_are_required(field: str) -> None:
    body = asking(PREDICATE)
    del body[field]

    assert refusal(body).message == f"{field}: required"


def test_a_joint_read_is_refused_in_vllms_words() -> None:
    assert refusal(asking(PREDICATE, joint=True)).message == (
        "joint: this model reads each question on its own; joint reads need DiffusionGemma"
    )


@pytest.mark.parametrize("salt", ["", "a@b", "x" * 129, 5])
def test_a_cache_salt_outside_the_rules_is_refused(salt: Any) -> None:
    assert refusal(asking(PREDICATE, cache_salt=salt)).param == "cache_salt"


def test_text_beyond_ten_mebibytes_is_refused_by_the_field_it_came_in() -> None:
    long = "x" * (10 * 1024 * 1024)

    assert state(long) == long
    assert refusal(asking(PREDICATE, input=long + "x")).param == "input"
    assert refusal(asking(PREDICATE, input=[user(long + "x")])).param == "input.0.content"


# The answer


def test_an_answer_has_the_shape_that_vllm_gives_it() -> None:
    request = parse(asking(PREDICATE, CHOICE, SCORE))
    reads = [read(0.25, 0.75), read(0.125, 0.875, label_mass=0.5), read(0.25, 0.5, 0.25)]

    assert request.answer("decision-7", "gpt", reads, 1) == {
        "model": "gpt",
        "answers": [
            {"type": "predicate", "name": None, "probability": 0.75},
            {
                "type": "choice",
                "name": "team",
                "choice": True,
                "probabilities": [
                    {"value": "billing", "probability": 0.125},
                    {"value": True, "probability": 0.875},
                ],
                "confidence": 0.4375,
            },
            {
                "type": "score",
                "name": None,
                "score": 1.0,
                "probabilities": [
                    {"value": 0, "label": "calm", "probability": 0.25},
                    {"value": 1, "label": "cross", "probability": 0.5},
                    {"value": 2, "label": "furious", "probability": 0.25},
                ],
                "confidence": 0.5,
            },
        ],
        "usage": {
            "input_tokens": 300,
            "input_tokens_details": {"cached_tokens": 192, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 303,
        },
    }


@pytest.mark.parametrize("value", [True, "true", False, "false"])
def test_a_value_comes_back_with_its_json_type(value: str | bool) -> None:
    request = parse(asking(choosing(value, "other")))

    [answer] = request.answer("d", "m", [read(1.0, 0.0)], 1)["answers"]

    assert json.dumps(answer["choice"]) == json.dumps(value)
    assert json.dumps(answer["probabilities"][0]["value"]) == json.dumps(value)


def test_too_few_reads_never_make_an_answer() -> None:
    with pytest.raises(ValueError, match="shorter"):
        parse(asking(PREDICATE, PREDICATE)).answer("d", "m", [read(0.5, 0.5)], 1)


# Laws

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.lists(TEXT | st.booleans(), min_size=2, max_size=26, unique_by=lambda v: (type(v), v))
LOGPROBS = st.lists(st.floats(-60, 0), min_size=26, max_size=26)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
TYPES = st.sampled_from(["predicate", "choice", "score", "input_text", "input_json", "message"])
ALMOST = st.recursive(
    JSON | st.fixed_dictionaries({"type": TYPES}, optional={"text": JSON, "data": JSON}),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": TYPES, "instructions": inner},
            optional={"choices": inner, "levels": inner, "name": inner},
        )
        | st.fixed_dictionaries({"role": st.just("user"), "content": inner})
        | st.fixed_dictionaries({}, optional={"value": inner, "label": inner, "description": inner})
    ),
    max_leaves=10,
)


@given(VALUES, TEXT, LOGPROBS)
def test_any_unicode_comes_back_byte_exact_and_in_order(
    values: list[str | bool], name: str, logprobs: list[float]
) -> None:
    raw = json.dumps(asking({**choosing(*values), "name": name})).encode()
    request = parse(parse_body(raw, max_bytes=len(raw)))
    probabilities = label_softmax(logprobs[: len(values)])

    body = json.loads(json.dumps(request.answer("d", "m", [read(*probabilities)], 1)))

    [answer] = body["answers"]
    assert answer["name"] == name
    assert repr([each["value"] for each in answer["probabilities"]]) == repr(values)
    assert tuple(each["probability"] for each in answer["probabilities"]) == probabilities
    assert sum(each["probability"] for each in answer["probabilities"]) == pytest.approx(1.0)


@given(st.dictionaries(st.sampled_from(["input", "questions", "joint", "name", "x"]), ALMOST))
def test_any_json_is_parsed_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = parse(asking(PREDICATE) | fields)
    except RequestError:
        return
    for question in request.decision("d").questions:
        assert len(question.labels) == len(question.options)


@given(st.lists(ALMOST, max_size=3), st.lists(ALMOST, max_size=3))
def test_any_messages_and_questions_are_parsed_or_refused(
    given: list[Any], questions: list[Any]
) -> None:
    try:
        request = parse(asking(PREDICATE, *questions, input=given))
    except RequestError:
        return
    request.decision("d").state.encode()
