from math import exp, fsum, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.questions import Answer, Kind, Option, Question, label_softmax

LOGPROBS = st.lists(st.floats(-9999, 0), min_size=1, max_size=26)


@given(LOGPROBS)
def test_label_probabilities_sum_to_one(logprobs: list[float]) -> None:
    probabilities = label_softmax(logprobs)
    assert fsum(probabilities) == pytest.approx(1, abs=1e-12)
    assert all(0 <= p <= 1 for p in probabilities)


@given(LOGPROBS)
def test_the_likelier_label_has_the_larger_probability(logprobs: list[float]) -> None:
    pairs = sorted(zip(logprobs, label_softmax(logprobs), strict=True))
    assert [p for _, p in pairs] == sorted(p for _, p in pairs)


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=10))
def test_ratios_are_those_of_the_model(probabilities: list[float]) -> None:
    found = label_softmax([log(p) for p in probabilities])
    assert found[0] / found[1] == pytest.approx(probabilities[0] / probabilities[1])


def test_labels_that_the_model_rules_out_share_alike_or_get_nothing() -> None:
    assert label_softmax([-9999.0, -9999.0]) == (0.5, 0.5)
    assert label_softmax([-9999.0, -1.0]) == (0.0, 1.0)
    assert label_softmax([-1000.0, -1001.0]) == pytest.approx((1 / (1 + exp(-1)), 1 / (1 + exp(1))))


@pytest.mark.parametrize(
    ("kind", "count", "labels"),
    [
        (Kind.CHOICE, 3, ("A", "B", "C")),
        (Kind.CHOICE, 26, tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        (Kind.NOUL, 2, ("yes", "no")),
        (Kind.SCORE, 10, tuple("0123456789")),
    ],
)
def test_each_kind_has_its_labels_in_option_order(
    kind: Kind, count: int, labels: tuple[str, ...]
) -> None:
    options = tuple(Option(str(i)) for i in range(count))
    assert Question("q", kind, "", options).labels == labels


def test_the_first_of_equals_is_best() -> None:
    assert (
        Answer((0.2, 0.4, 0.4), 1.0, argmax_is_label=True, input_tokens=1, output_tokens=1).best
        == 1
    )
