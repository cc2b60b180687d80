import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.questions import Answer, Kind, label_softmax
from decision_proxy.wire.confidence import (
    best_over_vocabulary,
    closeness_to_best,
    confidence,
    lead_over_chance,
)

LOGPROBS = st.lists(st.floats(-50, 0), min_size=1, max_size=26)
KINDS = st.sampled_from(Kind)
DIALECTS = st.sampled_from(["vllm", "typesafe"])


def answer(*probabilities: float, label_mass: float = 1.0) -> Answer:
    return Answer(
        probabilities=probabilities,
        label_mass=label_mass,
        argmax_is_label=True,
        input_tokens=1,
        output_tokens=1,
    )


def test_vllms_confidence_is_the_best_labels_share_of_the_whole_vocabulary() -> None:
    assert best_over_vocabulary(answer(0.25, 0.75, label_mass=0.5)) == 0.375


@pytest.mark.parametrize("kind", Kind)
def test_vllms_confidence_is_the_same_for_every_kind(kind: Kind) -> None:
    assert confidence(kind, answer(0.25, 0.75, label_mass=0.5), "vllm") == 0.375


def test_typesafes_confidence_of_a_choice_is_its_lead_over_chance() -> None:
    assert confidence(Kind.CHOICE, answer(0.5, 0.25, 0.125, 0.125), "typesafe") == pytest.approx(
        (0.5 - 0.25) / (1 - 0.25)
    )


def test_typesafes_confidence_of_a_noul_is_that_of_a_choice_of_two() -> None:
    assert confidence(Kind.NOUL, answer(0.25, 0.75), "typesafe") == 0.5


def test_typesafes_confidence_of_a_score_falls_with_the_distance_from_the_best_level() -> None:
    near, far = answer(0.0, 0.25, 0.75), answer(0.25, 0.0, 0.75)

    assert confidence(Kind.SCORE, near, "typesafe") == pytest.approx(1 - 0.25 / (2 / 3))
    assert confidence(Kind.SCORE, far, "typesafe") == pytest.approx(1 - 0.5 / (2 / 3))


def test_typesafes_confidence_ignores_the_label_mass() -> None:
    assert confidence(Kind.CHOICE, answer(1.0, 0.0, label_mass=0.1), "typesafe") == 1.0


def test_a_score_split_between_both_ends_is_not_below_zero() -> None:
    assert closeness_to_best([0.5, 0.0, 0.0, 0.0, 0.5], 0) == 0.0


@pytest.mark.parametrize("kind", [Kind.CHOICE, Kind.SCORE])
def test_one_option_alone_is_certain(kind: Kind) -> None:
    assert confidence(kind, answer(1.0), "typesafe") == 1.0


@pytest.mark.parametrize("count", [2, 3, 7, 10, 26])
def test_a_flat_choice_has_no_lead(count: int) -> None:
    assert lead_over_chance([1 / count] * count) == 0.0


@pytest.mark.parametrize("count", [2, 3, 7, 10, 26])
def test_a_settled_answer_is_certain(count: int) -> None:
    settled = [0.0] * (count - 1) + [1.0]

    assert lead_over_chance(settled) == 1.0
    assert closeness_to_best(settled, count - 1) == 1.0


@given(LOGPROBS, KINDS, DIALECTS)
def test_confidence_is_between_zero_and_one(
    logprobs: list[float], kind: Kind, dialect: str
) -> None:
    read = answer(*label_softmax(logprobs))

    assert 0.0 <= confidence(kind, read, dialect) <= 1.0  # type: ignore[arg-type]
