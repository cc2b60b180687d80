import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.errors import Dialect, RequestError
from decision_proxy.questions import Answer, Kind, Option, label_softmax
from decision_proxy.settings import Limits
from decision_proxy.wire.body import parse_body
from decision_proxy.wire.systemone import SystemOneRequest

CHOICE = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"Billing": "Money", "Tech": None},
}
NOUL = {"type": "noul", "instructions": "Is it urgent?"}
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Cross", "Furious"]}
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)


def asking(questions: Any, **fields: Any) -> dict[str, Any]:
    return {"state": "s", "questions": questions, **fields}


def parse(body: dict[str, Any], dialect: Dialect = "vllm", **limits: int) -> SystemOneRequest:
    return SystemOneRequest.parse(body, dialect=dialect, limits=Limits(**limits))


def refusal(body: dict[str, Any], dialect: Dialect = "vllm", **limits: int) -> RequestError:
    with pytest.raises(RequestError) as refused:
        parse(body, dialect, **limits)
    assert refused.value.status == 400
    return refused.value


def read(*probabilities: float, label_mass: float = 1.0, label: bool = True) -> Answer:
    return Answer(
        probabilities=probabilities,
        label_mass=label_mass,
        argmax_is_label=label,
        input_tokens=100,
        output_tokens=1,
        cached_tokens=64,
    )


# The decision


def test_a_decision_carries_everything_that_was_asked() -> None:
    body = asking(
        {"team": CHOICE, "urgent": NOUL},
        model="qwen",
        instructions="Be strict.",
        chat_template_kwargs={"tone": "dry"},
        cache_salt="pepper",
        priority=-3,
        request_id="mine",
    )

    decision = parse(body).decision("decision-7")

    assert (decision.id, decision.model, decision.state) == ("decision-7", "qwen", "s")
    assert decision.instructions == "Be strict."
    assert decision.template_kwargs == {"tone": "dry"}
    assert (decision.cache_salt, decision.priority) == ("pepper", -3)
    assert parse(body).request_id == "mine"


def test_what_was_not_given_is_left_to_the_server() -> None:
    request = parse(asking({"urgent": NOUL}))
    decision = request.decision("decision-7")

    assert (decision.model, decision.instructions, decision.cache_salt) == (None, None, None)
    assert (decision.template_kwargs, decision.priority, request.request_id) == ({}, 0, None)


def test_empty_instructions_make_no_system_message() -> None:
    assert parse(asking({"q": NOUL}, instructions="")).decision("d").instructions is None


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("", ""),
        ("text \n", "text \n"),
        (None, "null"),
        (False, "false"),
        (1e22, "1e+22"),
        ({"b": "é", "a": [1, 2.0]}, '{"b": "é", "a": [1, 2.0]}'),
    ],
)
def test_a_state_is_text_or_json_as_vllm_writes_it(state: Any, text: str) -> None:
    assert parse({"state": state, "questions": {"q": NOUL}}).decision("d").state == text


def test_a_missing_state_is_refused_but_null_is_a_state() -> None:
    error = refusal({"questions": {"q": NOUL}})

    assert (error.message, error.param) == ("state: required", "state")


def test_options_keep_their_order_and_descriptions() -> None:
    [question] = parse(asking({"team": CHOICE})).questions

    assert question.kind is Kind.CHOICE
    assert question.options == (Option("Billing", "Money"), Option("Tech"))
    assert question.labels == ("A", "B")


def test_a_noul_always_has_both_sides_yes_first() -> None:
    [question] = parse(asking({"q": {**NOUL, "criteria": {"false": "no way"}}})).questions

    assert question.options == (Option("yes"), Option("no", "no way"))


def test_level_names_are_names_and_their_places_are_the_labels() -> None:
    [question] = parse(asking({"q": {**SCORE, "criteria": ["20", "21", "22"]}})).questions

    assert question.labels == ("0", "1", "2")
    assert [option.name for option in question.options] == ["20", "21", "22"]


def test_a_question_is_named_in_errors_but_not_in_the_prompt() -> None:
    [question] = parse(asking({"is it urgent": NOUL})).questions

    assert question.name == "question 'is it urgent'"
    assert "urgent'" not in question.instructions


STRUCTURE = {"task": "Décide", "of": [None, True, 1.0]}
AS_PYTHON = "{'task': 'Décide', 'of': [None, True, 1.0]}"
AS_JSON = '{"task": "Décide", "of": [null, true, 1.0]}'


@pytest.mark.parametrize(("dialect", "text"), [("vllm", AS_PYTHON), ("typesafe", AS_JSON)])
def test_structures_as_instructions_are_written_as_the_dialect_does(
    dialect: Dialect, text: str
) -> None:
    [question] = parse(asking({"q": {**NOUL, "instructions": STRUCTURE}}), dialect).questions

    assert question.instructions == text


@pytest.mark.parametrize(("dialect", "text"), [("vllm", AS_PYTHON), ("typesafe", AS_JSON)])
def test_structures_as_descriptions_are_written_as_the_dialect_does(
    dialect: Dialect, text: str
) -> None:
    questions = {
        "choice": {"type": "choice", "criteria": {"a": STRUCTURE}},
        "noul": {"type": "noul", "criteria": {"true": STRUCTURE}},
        "score": {"type": "score", "criteria": [STRUCTURE, "b"]},
    }

    choice, noul, score = parse(asking(questions), dialect).questions

    assert choice.options[0].description == noul.options[0].description == text
    assert score.options[0].name == text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_absent_and_null_instructions_are_none_at_all(dialect: Dialect) -> None:
    questions = {"absent": {"type": "noul"}, "null": {"type": "noul", "instructions": None}}

    assert [q.instructions for q in parse(asking(questions), dialect).questions] == ["", ""]


# What is refused


@pytest.mark.parametrize("criteria", [[1, "1"], ["a", "b", "a"], [None, "None"], [1.0, "1.0"]])
def test_levels_that_read_the_same_are_refused(criteria: list[Any]) -> None:
    error = refusal(asking({"q": {**SCORE, "criteria": criteria}}))

    assert error.message == "question 'q': duplicate option names"
    assert error.param == "questions.q.criteria"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("levels", [0, 1, 11])
def test_a_score_has_two_to_ten_levels(dialect: Dialect, levels: int) -> None:
    criteria = [f"level {n}" for n in range(levels)]

    assert refusal(asking({"q": {**SCORE, "criteria": criteria}}), dialect).param == (
        "questions.q.criteria"
    )


def test_a_choice_has_as_many_options_as_the_setting_allows() -> None:
    question = {"type": "choice", "criteria": {"a": None, "b": None, "c": None}}

    assert parse(asking({"q": question}), options=3)
    assert refusal(asking({"q": question}), options=2).message == (
        "question 'q': at most 2 options for this model"
    )


def test_there_are_as_many_questions_as_the_setting_allows() -> None:
    assert parse(asking({"a": NOUL, "b": NOUL}), questions=2)
    assert refusal(asking({"a": NOUL, "b": NOUL}), questions=1).param == "questions"


def test_four_hundred_questions_are_answered_by_default() -> None:
    questions = {str(n): NOUL for n in range(400)}

    assert len(parse(asking(questions)).questions) == 400
    assert refusal(asking({**questions, "one more": NOUL})).message == (
        "questions: at most 400 for this model"
    )


@pytest.mark.parametrize("kind", ["box", "CHOICE", "", "predicate"])
def test_an_unknown_question_type_is_refused(kind: str) -> None:
    error = refusal(asking({"q": {"type": kind}}))

    assert error.message.startswith(f"unknown question type {kind!r}")
    assert error.param == "questions.q.type"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_unknown_field_of_a_question_is_refused(dialect: Dialect) -> None:
    error = refusal(asking({"q": {**NOUL, "labels": []}}), dialect)

    assert error.message == "question 'q': unknown field(s) ['labels']"
    assert error.param == "questions.q.labels"


def test_an_unknown_top_level_field_is_refused_as_vllm_does() -> None:
    error = refusal(asking({"q": NOUL}, seed=7))

    assert (error.message, error.param) == ("seed: unknown field", "seed")


def test_an_unknown_top_level_field_is_ignored_as_typesafe_does() -> None:
    assert parse(asking({"q": NOUL}, seed=7, x_trace={"a": 1}), "typesafe").ids == ("q",)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("questions", [], "must be an object"),
        ("questions", {"q": "noul"}, "must be an object"),
        ("questions", {"q": {}}, "required"),
        ("questions", {"q": {"type": None}}, "must be a string"),
        ("model", 5, "must be a string"),
        ("instructions", ["a"], "must be a string"),
        ("joint", "yes", "must be true or false"),
        ("joint", None, "must be true or false"),
        ("priority", True, "must be an integer"),
        ("priority", 1.0, "must be an integer"),
        ("priority", "1", "must be an integer"),
        ("priority", 2**63, "must be less than or equal to 9223372036854775807"),
        ("priority", -(2**63) - 1, "must be greater than or equal to -9223372036854775808"),
        ("request_id", 5, "must be a string"),
        ("request_id", None, "must be a string"),
        ("images", "http://x", "must be a list"),
        ("videos", [1], "must be a string"),
        ("chat_template_kwargs", [], "must be an object"),
        ("chat_template_kwargs", "{}", "must be an object"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_field_of_the_wrong_kind_is_refused_by_name(
    field: str, value: Any, words: str, dialect: Dialect
) -> None:
    error = refusal({**asking({"q": NOUL}), field: value}, dialect)

    assert error.message == f"{error.param}: {words}"
    assert (error.param or "").split(".")[0] == field


@pytest.mark.parametrize("digits", [20, 4000])
def test_a_priority_of_any_length_is_refused_without_a_crash(digits: int) -> None:
    assert refusal(asking({"q": NOUL}, priority=10**digits)).param == "priority"


@pytest.mark.parametrize("priority", [-(2**63), 0, 2**63 - 1])
def test_a_priority_is_any_64_bit_integer(priority: int) -> None:
    assert parse(asking({"q": NOUL}, priority=priority)).decision("d").priority == priority


@pytest.mark.parametrize(
    ("fields", "names", "param"),
    [
        ({"images": ["data:,"]}, "image", "images"),
        ({"audio": ["data:,"]}, "audio", "audio"),
        ({"videos": ["a"], "images": ["b"]}, "image, video", "images"),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_media_is_refused_and_never_dropped(
    fields: dict[str, Any], names: str, param: str, dialect: Dialect
) -> None:
    error = refusal(asking({"q": NOUL}, **fields), dialect)

    assert (error.message, error.param) == (f"this model does not take {names} inputs", param)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("assets", [{"a": {"type": "image"}}, [{"type": "image"}], "data:,"])
def test_assets_are_refused_and_never_dropped(dialect: Dialect, assets: Any) -> None:
    assert refusal(asking({"q": NOUL}, assets=assets), dialect).param == "assets"


@pytest.mark.parametrize("nothing", [None, []])
def test_no_media_is_no_media(nothing: Any) -> None:
    assert parse(asking({"q": NOUL}, images=nothing, audio=nothing, videos=nothing))
    assert parse(asking({"q": NOUL}, assets=nothing), "typesafe")


@pytest.mark.parametrize("questions", [{"a": NOUL}, {"a": NOUL, "b": NOUL}])
def test_a_joint_read_is_refused_in_vllms_words(questions: dict[str, Any]) -> None:
    assert refusal(asking(questions, joint=True)).message == (
        "joint: this model reads each question on its own; joint reads need DiffusionGemma"
    )
    assert parse(asking(questions, joint=False))


@pytest.mark.parametrize(
    "options",
    [
        {"chat_template": "{{ 7*7 }}"},
        {"messages": []},
        {"add_generation_prompt": False},
        {"enable_thinking": "false"},
        {"enable_thinking": True},
    ],
)
def test_template_options_that_would_move_the_read_are_refused(options: dict[str, Any]) -> None:
    error = refusal(asking({"q": NOUL}, chat_template_kwargs=options))

    assert (error.param or "").startswith("chat_template_kwargs.")


@pytest.mark.parametrize("salt", ["", "a@b", "x" * 129])
def test_a_cache_salt_outside_the_rules_is_refused(salt: str) -> None:
    assert refusal(asking({"q": NOUL}, cache_salt=salt)).param == "cache_salt"


@pytest.mark.parametrize(
    "questions",
    [
        {"x" * 100_000: {"type": "box"}},
        {"q": {"type": "x" * 100_000}},
        {"q": {**NOUL, "x" * 100_000: 1}},
        {"x" * 100_000: {"type": 5}},
    ],
)
def test_a_huge_request_makes_a_short_error(questions: dict[str, Any]) -> None:
    error = refusal(asking(questions))

    assert len(error.message) < 500
    assert len(error.param or "") < 300


@pytest.mark.parametrize("id_", ["a.b", "criteria.type", "...", "a/b", "\n", "questions"])
@pytest.mark.parametrize(
    ("question", "path"),
    [
        ({"type": "box"}, ("type",)),
        ({"type": 5}, ("type",)),
        ({**NOUL, "x.y": 1}, ("x.y",)),
        ({**SCORE, "criteria": []}, ("criteria",)),
        ({}, ("type",)),
    ],
)
def test_the_path_to_a_mistake_keeps_ids_whole(
    id_: str, question: Any, path: tuple[str, ...]
) -> None:
    error = refusal(asking({id_: question}))

    assert error.path == ("questions", id_, *path)
    assert error.param == ".".join(error.path)


def test_the_path_into_template_options_keeps_names_whole() -> None:
    options = {"enable_thinking": "no"}

    assert refusal(asking({"q": NOUL}, chat_template_kwargs=options)).path == (
        "chat_template_kwargs",
        "enable_thinking",
    )
    assert refusal(asking({"q": NOUL}, **{"a.b": 1})).path == ("a.b",)


# The answer


def test_an_answer_has_the_shape_that_vllm_gives_it() -> None:
    request = parse(asking({"team": CHOICE, "urgent": NOUL, "anger": SCORE}))
    reads = [
        read(0.75, 0.25, label_mass=0.5),
        read(0.125, 0.875, label=False),
        read(0.25, 0.5, 0.25),
    ]

    body = request.answer("decision-7", "qwen", reads, 1700000000)

    assert body == {
        "id": "decision-7",
        "object": "structured_decision",
        "created": 1700000000,
        "model": "qwen",
        "answers": {
            "team": {
                "type": "choice",
                "choice": "Billing",
                "probabilities": {"Billing": 0.75, "Tech": 0.25},
                "confidence": 0.375,
            },
            "urgent": {
                "type": "noul",
                "noul": 0.125,
                "probabilities": {"yes": 0.125, "no": 0.875},
                "confidence": 0.875,
            },
            "anger": {
                "type": "score",
                "score": 1.0,
                "legend": {"0": "Calm", "1": "Cross", "2": "Furious"},
                "probabilities": {"0": 0.25, "1": 0.5, "2": 0.25},
                "confidence": 0.5,
            },
        },
        "usage": {"input_tokens": 300, "output_tokens": 3},
        "diagnostics": {
            "team": {"label_mass": 0.5, "argmax_is_label": True},
            "urgent": {"label_mass": 1.0, "argmax_is_label": False},
            "anger": {"label_mass": 1.0, "argmax_is_label": True},
        },
        "joint": None,
    }
    assert list(body)[-2:] == ["diagnostics", "joint"]


def test_an_answer_in_typesafes_dialect_is_as_sure_as_typesafe_would_be() -> None:
    request = parse(asking({"team": CHOICE, "urgent": NOUL, "anger": SCORE}), "typesafe")
    reads = [read(0.75, 0.25, label_mass=0.5), read(0.125, 0.875), read(0.0, 1.0, 0.0)]

    body = request.answer("decision-7", "jev-latest", reads, 1)

    assert [answer["confidence"] for answer in body["answers"].values()] == [0.5, 0.75, 1.0]
    assert "joint" not in body


def test_the_first_of_equally_likely_options_is_chosen() -> None:
    body = parse(asking({"team": CHOICE})).answer("d", "m", [read(0.5, 0.5)], 1)

    assert body["answers"]["team"]["choice"] == "Billing"


def test_a_score_is_a_place_and_never_a_level_name() -> None:
    request = parse(asking({"age": {**SCORE, "criteria": ["20", "21", "22"]}}))

    answer = request.answer("d", "m", [read(0.0, 0.5, 0.5)], 1)["answers"]["age"]

    assert answer["score"] == 1.5
    assert answer["legend"] == {"0": "20", "1": "21", "2": "22"}
    assert list(answer["probabilities"]) == ["0", "1", "2"]


def test_too_few_reads_never_make_an_answer() -> None:
    with pytest.raises(ValueError, match="shorter"):
        parse(asking({"a": NOUL, "b": NOUL})).answer("d", "m", [read(0.5, 0.5)], 1)


# Laws

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.lists(TEXT, min_size=2, max_size=26, unique=True)
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
FIELDS = st.sampled_from([*SystemOneRequest.__dataclass_fields__, "joint", "images", "assets", "x"])
ALMOST_QUESTIONS = st.dictionaries(
    TEXT,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["choice", "noul", "score"]) | JSON},
        optional={"instructions": JSON, "criteria": JSON, "more": JSON},
    )
    | JSON,
    max_size=4,
)


@given(NAMES, NAMES, LOGPROBS, st.sampled_from(DIALECTS))
def test_any_unicode_names_come_back_byte_exact_and_in_order(
    ids: list[str], names: list[str], logprobs: list[float], dialect: Dialect
) -> None:
    ids = [id_ or "q" for id_ in ids]
    question = {"type": "choice", "criteria": dict.fromkeys(names)}
    raw = json.dumps(asking(dict.fromkeys(ids, question))).encode()
    request = parse(parse_body(raw, max_bytes=len(raw)), dialect)
    reads = [read(*label_softmax(logprobs[: len(names)])) for _ in request.questions]

    body = json.loads(json.dumps(request.answer("d", "m", reads, 1), allow_nan=False))

    assert list(body["answers"]) == list(body["diagnostics"]) == list(dict.fromkeys(ids))
    for answer in body["answers"].values():
        assert list(answer["probabilities"]) == names
        assert answer["choice"] == names[reads[0].best]
        assert answer["probabilities"][answer["choice"]] == max(answer["probabilities"].values())


@given(st.lists(st.floats(-60, 0), min_size=2, max_size=10), st.sampled_from(DIALECTS))
def test_nothing_is_rounded(logprobs: list[float], dialect: Dialect) -> None:
    levels = [f"level {n}" for n in range(len(logprobs))]
    request = parse(asking({"q": {**SCORE, "criteria": levels}}), dialect)
    probabilities = label_softmax(logprobs)

    answer = request.answer("d", "m", [read(*probabilities)], 1)["answers"]["q"]

    assert tuple(answer["probabilities"].values()) == probabilities
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-12)
    assert answer["score"] == sum(n * p for n, p in enumerate(probabilities))


@given(ALMOST_QUESTIONS, st.dictionaries(FIELDS, JSON, max_size=4), st.sampled_from(DIALECTS))
def test_any_json_is_parsed_or_refused(
    questions: dict[str, Any], fields: dict[str, Any], dialect: Dialect
) -> None:
    try:
        request = parse(asking(questions) | fields, dialect)
    except RequestError:
        return
    for question in request.decision("d").questions:
        assert len(question.labels) == len(question.options)
