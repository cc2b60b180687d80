"""Text that a chat template may carry but not look into, to render many prompts at once.

The contents of a decision's prompts differ only in their last lines. A template that merely puts
the content somewhere renders all of them alike, so it is rendered once around a placeholder.
`Opaque` stands in for the content: concatenation and stripping are followed, a question about the
content (`startswith`, `in`, `==`) is answered when the answer is the same for every prompt, and
anything else raises `NotOpaque`. What a placeholder cannot follow (macros, captured blocks, `~`,
other filters) is excluded by `is_followable`, on the template's syntax tree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.filters import do_trim

_FOLLOWED = frozenset(
    {"__new__", "__init__", "__str__", "__class__", "__getattribute__", "__setattr__", "__doc__"}
    | {"__init_subclass__", "__subclasshook__", "__reduce__", "__reduce_ex__", "__dir__"}
    | {"__delattr__", "__getstate__", "__getnewargs__", "__sizeof__"}
)
_UNFOLLOWED_NODES = (
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.AssignBlock,
    nodes.Concat,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
)
_FILTERS = frozenset({"trim", "length"})
_BUILDERS = frozenset({"join", "format", "format_map", "replace"})
_ELSEWHERE = ("tool", "document", "argument")


class NotOpaque(BaseException):
    """The template looked into the content, so every prompt must be rendered by itself.

    Not an Exception: Jinja's own tests swallow those.
    """


@dataclass(frozen=True, slots=True)
class Contents:
    """`head + tail` for each tail: what the placeholder stands for."""

    head: str
    tails: Sequence[str]

    def agree(self, question: Callable[[str], bool], reach: int) -> bool:
        """The common answer; `reach` characters of the head at each end are enough to tell."""
        edge = self.head if len(self.head) <= 2 * reach else ""
        answers = {
            question(edge + tail if edge else self.head[:reach] + "\0" + self.head[-reach:] + tail)
            for tail in self.tails
        }
        if len(answers) != 1:
            raise NotOpaque
        return answers.pop()


class Opaque(str):
    """A placeholder, or a text that contains one. `contents` is set on a bare placeholder only."""

    __slots__ = ("contents", "marks")

    contents: Contents | None
    marks: dict[str, str]

    @classmethod
    def of(cls, contents: Contents, marks: dict[str, str], kind: str = "as_is") -> "Opaque":
        """A new placeholder; `marks` records its text and how the content was stripped."""
        mark = f"\ue000{token_hex(12)}\ue001"
        marks[mark] = kind
        placeholder = cls(mark)
        placeholder.contents, placeholder.marks = contents, marks
        return placeholder

    def __add__(self, other: str) -> "Opaque":
        return self._joined(str(self) + str(other))

    def __radd__(self, other: str) -> "Opaque":
        return self._joined(str(other) + str(self))

    def _joined(self, text: str) -> "Opaque":
        joined = Opaque(text)
        joined.contents, joined.marks = None, self.marks
        return joined

    def _known(self) -> Contents:
        if self.contents is None or self.marks[str(self)] != "as_is":
            raise NotOpaque
        return self.contents

    def __bool__(self) -> bool:
        contents = self._known()
        return contents.agree(bool, 1)

    def __eq__(self, other: object) -> bool:
        contents = self._known()
        if not isinstance(other, str):
            return False
        return contents.agree(lambda text: text == other, len(other) + 1)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        raise NotOpaque

    def __contains__(self, other: object) -> bool:
        contents, part = self._known(), str(other)
        return part in contents.head or contents.agree(lambda text: part in text, len(part))

    def startswith(self, prefix: Any, *span: Any) -> bool:
        contents = self._known()
        if span or not isinstance(prefix, str):
            raise NotOpaque
        return contents.agree(lambda text: text.startswith(prefix), len(prefix))

    def endswith(self, suffix: Any, *span: Any) -> bool:
        contents = self._known()
        if span or not isinstance(suffix, str):
            raise NotOpaque
        return contents.agree(lambda text: text.endswith(suffix), len(suffix))

    def strip(self, chars: Any = None) -> "Opaque":
        return self._stripped("strip", chars)

    def lstrip(self, chars: Any = None) -> "Opaque":
        return self._stripped("lstrip", chars)

    def rstrip(self, chars: Any = None) -> "Opaque":
        return self._stripped("rstrip", chars)

    def _stripped(self, kind: str, chars: object) -> "Opaque":
        if chars is not None:
            raise NotOpaque
        return Opaque.of(self._known(), self.marks, kind)


def trim(value: Any, chars: str | None = None) -> str:
    """Jinja's filter, which would otherwise turn a placeholder into plain text first."""
    return value.strip(chars) if isinstance(value, Opaque) else do_trim(value, chars)


def _refuse(name: str) -> Callable[..., NoReturn]:
    def method(*_args: Any, **_options: Any) -> NoReturn:
        raise NotOpaque(name)

    return method


for _name in set(dir(str)) - _FOLLOWED - set(vars(Opaque)):
    setattr(Opaque, _name, _refuse(_name))


def is_followable(template: nodes.Template) -> bool:
    """Whether a placeholder can be followed through everything this template may do."""
    if next(iter(template.find_all(_UNFOLLOWED_NODES)), None) is not None:
        return False
    return (
        all(_keeps_track(node) for node in template.find_all(nodes.Filter))
        and not any(_builds_text(node) for node in template.find_all(nodes.Call))
        and not any(_searches_text(node) for node in template.find_all(nodes.Compare))
        and not any(_is_text(node.left) for node in template.find_all(nodes.Mod))
    )


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, str)


def _builds_text(call: nodes.Call) -> bool:
    return isinstance(call.node, nodes.Getattr) and call.node.attr in _BUILDERS


def _searches_text(comparison: nodes.Compare) -> bool:
    """Whether an expression is looked for in a literal text, where no placeholder can answer."""
    return not isinstance(comparison.expr, nodes.Const) and any(
        operand.op in ("in", "notin") and isinstance(operand.expr, nodes.Const)
        for operand in comparison.ops
    )


def _keeps_track(node: nodes.Filter) -> bool:
    if node.name in _FILTERS:
        return True
    source = node.node
    while isinstance(source, nodes.Getattr | nodes.Getitem):
        source = source.node
    return isinstance(source, nodes.Name) and source.name.startswith(_ELSEWHERE)
