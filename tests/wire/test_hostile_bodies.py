"""Whatever a body holds, it is a request that can be answered or the client's own mistake."""

import json
import math
import pickle
from collections.abc import Callable
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.errors import Dialect, ProxyError, error_body, error_headers, error_status
from decision_proxy.questions import Answer, Question, label_softmax
from decision_proxy.reads.wording import user_turn
from decision_proxy.settings import Limits
from decision_proxy.wire.body import parse_body
from decision_proxy.wire.decisions import DecisionsRequest
from decision_proxy.wire.systemone import SystemOneRequest
from tests.hostile import DECISIONS, SYSTEMONE, VALUES, mutated, swapped

DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
LIMITS = Limits()
WireRequest = SystemOneRequest | DecisionsRequest
Parse = Callable[[dict[str, Any]], WireRequest]

PARSERS: dict[str, tuple[dict[str, Any], Parse]] = {
    dialect: (
        SYSTEMONE,
        lambda body, dialect=dialect: SystemOneRequest.parse(body, dialect=dialect, limits=LIMITS),
    )
    for dialect in DIALECTS
} | {"decisions": (DECISIONS, lambda body: DecisionsRequest.parse(body, limits=LIMITS))}


def read(question: Question) -> Answer:
    return Answer(
        probabilities=label_softmax([-9999.0 + n for n in range(len(question.options))]),
        label_mass=0.0,
        argmax_is_label=False,
        input_tokens=1,
        output_tokens=1,
    )


def assert_answered_or_refused(raw: bytes, parse: Parse) -> None:
    try:
        request = parse(parse_body(raw, max_bytes=10_000_000))
    except ProxyError as error:
        assert_refused(pickle.loads(pickle.dumps(error)))
    else:
        assert_answered(pickle.loads(pickle.dumps(request)))


def assert_refused(error: ProxyError) -> None:
    for dialect in DIALECTS:
        assert 400 <= error_status(error, dialect) < 500
        assert len(orjson.dumps(error_body(error, dialect))) < 50_000
    assert error_headers(error) == {"x-should-retry": "false"}


def assert_answered(request: WireRequest) -> None:
    decision = request.decision("decision-1")
    for question in decision.questions:
        assert user_turn(decision.state, question).encode()
        assert len(question.labels) == len(question.options)
    assert len(str(decision.instructions).encode()) < 20_000
    assert orjson.dumps([decision.model, decision.cache_salt, decision.priority])
    answer = request.answer("decision-1", "m", [read(q) for q in decision.questions], 1)
    assert_finite(orjson.loads(orjson.dumps(answer)))


def assert_finite(node: Any) -> None:
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            assert_finite(child)
    elif isinstance(node, float):
        assert math.isfinite(node)


@pytest.mark.parametrize("wire", PARSERS)
def test_the_bodies_are_good_before_they_are_mutated(wire: str) -> None:
    body, parse = PARSERS[wire]

    assert_answered(parse(parse_body(json.dumps(body).encode(), max_bytes=10_000)))


@pytest.mark.parametrize("wire", PARSERS)
@given(data=st.data())
def test_any_mutation_is_answered_or_the_clients_mistake(wire: str, data: st.DataObject) -> None:
    body, parse = PARSERS[wire]

    assert_answered_or_refused(data.draw(mutated(body)), parse)


@pytest.mark.parametrize("wire", PARSERS)
@pytest.mark.parametrize("value", VALUES)
def test_any_nasty_value_at_any_place_is_answered_or_the_clients_mistake(
    wire: str, value: str
) -> None:
    body, parse = PARSERS[wire]

    for raw in swapped(body, value):
        assert_answered_or_refused(raw, parse)


@pytest.mark.parametrize("wire", PARSERS)
@given(data=st.data())
def test_any_bytes_inside_are_answered_or_the_clients_mistake(
    wire: str, data: st.DataObject
) -> None:
    body, parse = PARSERS[wire]
    raw = json.dumps(body).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(start + 20, len(raw))))

    assert_answered_or_refused(raw[:start] + data.draw(st.binary(max_size=8)) + raw[end:], parse)
