"""The token that each label is, as the first token of the reply.

Found in context, as vLLM finds them: the ids of a short prompt after its last added token are
decoded, the label is appended, and the text is encoded again. It must give the same ids and one
new, distinct one; otherwise this model cannot answer with that label.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from decision_proxy.errors import UnsuitableModel
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.questions import Kind, Question


@dataclass(frozen=True, slots=True)
class Labels:
    """`tail`: the ids that every prompt must end with for these label ids to hold."""

    tail: tuple[int, ...]
    ids: Mapping[Kind, Mapping[str, int]]
    unsuitable: Mapping[Kind, Mapping[str, str]]

    def of(self, question: Question) -> tuple[int, ...]:
        """Raises UnsuitableModel naming the first label that is not one distinct token."""
        for label in question.labels:
            if reason := self.unsuitable[question.kind].get(label):
                raise UnsuitableModel(
                    f"This model cannot answer a question with these labels: {reason}."
                )
        return tuple(self.ids[question.kind][label] for label in question.labels)

    def reasons(self) -> list[str]:
        return [reason for kind in Kind for reason in self.unsuitable[kind].values()]


def find_labels(tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]) -> Labels:
    """`prompts`: ids of at least two chats that differ in their content only, the shortest first.

    The first one's ids after its last added token are what vLLM looks at. What all prompts end with
    reaches further back, and is what every prompt must end with: where an added token is the last,
    vLLM looks at nothing, but other chat options may still end the prompt in another way.
    """
    context = _after_added(prompts[0], tokenizer.added_ids)
    text = tokenizer.decode(context)
    ids: dict[Kind, Mapping[str, int]] = {}
    unsuitable: dict[Kind, Mapping[str, str]] = {}
    for kind in Kind:
        ids[kind], unsuitable[kind] = _label_ids(tokenizer, context, text, kind.labels)
    return Labels(tuple(_common_tail(prompts)), ids, unsuitable)


def _after_added(ids: Sequence[int], added: frozenset[int]) -> list[int]:
    start = max((i + 1 for i, token in enumerate(ids) if token in added), default=0)
    return list(ids[start:])


def _common_tail(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The last ids, as far back as all prompts agree."""
    tail: list[int] = []
    for ids in zip(*map(reversed, prompts), strict=False):
        if len(set(ids)) > 1:
            break
        tail.append(ids[0])
    return tail[::-1]


def _label_ids(
    tokenizer: Tokenizer, tail: list[int], text: str, labels: Iterable[str]
) -> tuple[dict[str, int], dict[str, str]]:
    ids: dict[str, int] = {}
    unsuitable: dict[str, str] = {}
    for label in labels:
        extended = tokenizer.encode(text + label)
        *kept, last = extended or [-1]
        if kept != tail:
            added = len(extended) - len(tail)
            how = f"adds {added} tokens" if added > 1 else "merges with the end of the chat prompt"
            unsuitable[label] = f"label {label!r} {how}, where one is needed"
        elif last in ids.values():
            twin = next(other for other, i in ids.items() if i == last)
            unsuitable[label] = f"label {label!r} is the same token as label {twin!r}"
        else:
            ids[label] = last
    return ids, unsuitable
