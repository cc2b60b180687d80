"""The wire-neutral core: what is asked, and what the model said.

Both wire APIs translate into these types, and every model family reads them.
Nothing here knows HTTP, JSON shapes, templates or tokens.
"""

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

LETTERS = tuple(string.ascii_uppercase)
YES_NO = ("yes", "no")
DIGITS = tuple(string.digits)


class Kind(Enum):
    """How a question is put to the model; the value is the labels it uses, in option order."""

    CHOICE = LETTERS
    NOUL = YES_NO
    SCORE = DIGITS

    @property
    def labels(self) -> tuple[str, ...]:
        labels: tuple[str, ...] = self.value
        return labels


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """`name` says which question an error is about ("question 'urgent'", "questions.3")."""

    name: str
    kind: Kind
    instructions: str
    options: tuple[Option, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return self.kind.labels[: len(self.options)]


@dataclass(frozen=True, slots=True)
class Decision:
    """One state and what is asked about it. `instructions` becomes the system message."""

    id: str
    model: str | None
    state: str
    questions: tuple[Question, ...]
    instructions: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What one read found.

    probabilities: one per option, in option order, summing to 1 among the labels.
    label_mass: the labels' summed probability over the whole vocabulary, 0 to 1.
    argmax_is_label: the model's most likely next token is one of the labels.
    """

    probabilities: tuple[float, ...]
    label_mass: float
    argmax_is_label: bool
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def best(self) -> int:
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)


def label_softmax(logprobs: Sequence[float]) -> tuple[float, ...]:
    """Softmax over the labels' logprobs, in the order of operations of vLLM's own endpoint."""
    top = max(logprobs)
    weights = [math.exp(logprob - top) for logprob in logprobs]
    total = sum(weights)
    return tuple(weight / total for weight in weights)
