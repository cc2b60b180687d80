"""Text that a chat template may carry but not look into, to render many prompts at once.

The contents of a decision's prompts differ only in their last lines. A template that merely puts
the content somewhere renders all of them alike, so it is rendered once around a placeholder.
`Opaque` stands in for the content: concatenation and stripping are followed, a question about the
content (`startswith`, `in`, `==`) is answered when the answer is the same for every prompt, and
anything else raises `NotOpaque`. `following` keeps Jinja itself from turning a placeholder into
plain text that could then be asked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NoReturn

_FOLLOWED = frozenset(
    {"__new__", "__init__", "__str__", "__class__", "__getattribute__", "__setattr__", "__doc__"}
    | {"__init_subclass__", "__subclasshook__", "__reduce__", "__reduce_ex__", "__dir__"}
    | {"__delattr__", "__getstate__", "__getnewargs__", "__sizeof__"}
)


class NotOpaque(BaseException):
    """The template looked into the content, so every prompt must be rendered by itself.

    Not an Exception: Jinja's own tests swallow those.
    """


@dataclass(frozen=True, slots=True)
class Contents:
    """`head + tail` for each tail: what the placeholder stands for."""

    head: str
    tails: Sequence[str]

    def ends(self, reach: int) -> str:
        """The head, or only its two ends where they are enough to tell."""
        if len(self.head) <= 2 * reach:
            return self.head
        return self.head[:reach] + self.head[-reach:]

    def agree(self, question: Callable[[str], bool], ahead: str) -> bool:
        """The common answer about `ahead + tail`, for each tail."""
        answers = {question(ahead + tail) for tail in self.tails}
        if len(answers) != 1:
            raise NotOpaque
        return answers.pop()


class Opaque(str):
    """A placeholder, or a text that contains one. `_contents` is set on a bare placeholder only."""

    __slots__ = ("_contents", "_marks")

    _contents: Contents | None
    _marks: dict[str, str]

    def __add__(self, other: str) -> "Opaque":
        return self._joined(str(self) + _text(other))

    def __radd__(self, other: str) -> "Opaque":
        return self._joined(_text(other) + str(self))

    def _joined(self, text: str) -> "Opaque":
        joined = Opaque(text)
        joined._contents, joined._marks = None, self._marks
        return joined

    def _known(self) -> Contents:
        if self._contents is None or self._marks[str(self)] != "as_is":
            raise NotOpaque
        return self._contents

    def __bool__(self) -> bool:
        contents = self._known()
        return contents.agree(bool, contents.ends(1))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, str):
            return False
        contents, text = self._known(), _plain(other)
        return contents.agree(lambda content: content == text, contents.ends(len(text) + 1))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise NotOpaque

    def __contains__(self, other: object) -> bool:
        contents, part = self._known(), _plain(other)
        return part in contents.head or contents.agree(
            lambda content: part in content, contents.head[-len(part) :]
        )

    def startswith(self, prefix: Any, *span: Any) -> bool:
        contents, text = self._known(), _plain(prefix, *span)
        return contents.agree(lambda content: content.startswith(text), contents.ends(len(text)))

    def endswith(self, suffix: Any, *span: Any) -> bool:
        contents, text = self._known(), _plain(suffix, *span)
        return contents.agree(lambda content: content.endswith(text), contents.ends(len(text)))

    def strip(self, chars: Any = None) -> "Opaque":
        return self._stripped("strip", chars)

    def lstrip(self, chars: Any = None) -> "Opaque":
        return self._stripped("lstrip", chars)

    def rstrip(self, chars: Any = None) -> "Opaque":
        return self._stripped("rstrip", chars)

    def _stripped(self, kind: str, chars: object) -> "Opaque":
        if chars is not None:
            raise NotOpaque
        return placeholder(self._known(), self._marks, kind)


def placeholder(contents: Contents, marks: dict[str, str], kind: str = "as_is") -> Opaque:
    """A new placeholder; `marks` records its text and how the content was stripped."""
    mark = f"\ue000{token_hex(12)}\ue001"
    marks[mark] = kind
    made = Opaque(mark)
    made._contents, made._marks = contents, marks  # noqa: SLF001
    return made


def _text(other: object) -> str:
    """What Python's `+` takes beside a text; for anything else the template's own error counts."""
    if type(other) not in (str, Opaque):
        raise NotOpaque
    return str(other)


def _plain(other: object, *more: object) -> str:
    """The one plain text that a question may be asked with."""
    if type(other) is not str or more:
        raise NotOpaque
    return other


def _refuse(name: str) -> Callable[..., NoReturn]:
    def method(*_args: Any, **_options: Any) -> NoReturn:
        raise NotOpaque(name)

    return method


for _name in set(dir(str)) - _FOLLOWED - set(vars(Opaque)):
    setattr(Opaque, _name, _refuse(_name))
