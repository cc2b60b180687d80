"""How sure an answer says it is."""

from collections.abc import Sequence

from decision_proxy.errors import Dialect
from decision_proxy.questions import Answer, Kind


def confidence(kind: Kind, answer: Answer, dialect: Dialect) -> float:
    if dialect == "vllm":
        return best_over_vocabulary(answer)
    if kind is Kind.SCORE:
        return closeness_to_best(answer.probabilities, answer.best)
    return lead_over_chance(answer.probabilities)


def best_over_vocabulary(answer: Answer) -> float:
    """Low too when the model wanted to say something that is no label."""
    return answer.probabilities[answer.best] * answer.label_mass


def lead_over_chance(probabilities: Sequence[float]) -> float:
    """0 when all options are equally likely, 1 when one has everything."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    chance = 1 / count
    return max(0.0, (max(probabilities) - chance) / (1 - chance))


def closeness_to_best(probabilities: Sequence[float], best: int) -> float:
    """1 minus the mean distance from the best level, in units of a flat answer's spread."""
    count = len(probabilities)
    if count == 1:
        return 1.0
    flat = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
    distance = sum(p * abs(level - best) for level, p in enumerate(probabilities))
    return max(0.0, 1 - distance / flat)
