"""What a pre-tokenizer's regular expression can and cannot match across.

A pattern becomes a position automaton (Glushkov): one position for each consuming element, the
positions that may follow each, and where a look-ahead may be evaluated. Three questions about
single characters are enough to prove a cut (see `boundaries`):

* `spans(a, b)`    may some match, or some look-ahead, consume `a` and then at once `b`?
* `looks_after(a)` may a look-ahead be evaluated right after `a` was consumed?
* `starts_at(b)`   does a search at `b` surely match, whatever follows?

The syntax is the part of Oniguruma that published tokenizers use. Anything else raises
`UnknownPattern`: look-behind, anchors, back-references, class intersections.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from decision_proxy.prompt import characters
from decision_proxy.prompt.characters import Predicate

MAX_POSITIONS = 512


class UnknownPattern(ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Part:
    """A sub-expression: its nullability and its first and last positions.

    `clean_*` leave out every path that crosses a look-ahead or gives up a possessive element.
    `looks`: a look-ahead may be evaluated before anything is consumed.
    """

    nullable: bool
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()
    clean_nullable: bool = False
    clean_first: frozenset[int] = frozenset()
    clean_last: frozenset[int] = frozenset()
    looks: bool = False


EMPTY = Part(nullable=True, clean_nullable=True)
LOOK_AHEAD = Part(nullable=True, looks=True)


@dataclass(slots=True)
class Pattern:
    predicates: list[Predicate] = field(default_factory=list)
    follow: list[set[int]] = field(default_factory=list)
    followed_by_look: set[int] = field(default_factory=set)
    whole: Part = EMPTY

    def spans(self, before: str, after: str) -> bool:
        return any(
            self.predicates[following](after) is not False
            for position in self._maybe(before)
            for following in self.follow[position]
        )

    def looks_after(self, char: str) -> bool:
        return not self.followed_by_look.isdisjoint(self._maybe(char))

    def starts_at(self, char: str) -> bool:
        return any(
            self.predicates[position](char) is True
            for position in self.whole.clean_first & self.whole.clean_last
        )

    def _maybe(self, char: str) -> list[int]:
        return [i for i, matches in enumerate(self.predicates) if matches(char) is not False]

    def consume(self, predicate: Predicate) -> Part:
        position = len(self.predicates)
        if position >= MAX_POSITIONS:
            raise UnknownPattern(f"more than {MAX_POSITIONS} elements")
        self.predicates.append(predicate)
        self.follow.append(set())
        here = frozenset({position})
        return Part(nullable=False, first=here, last=here, clean_first=here, clean_last=here)

    def link(self, before: Part, after: Part) -> None:
        for position in before.last:
            self.follow[position] |= after.first
        if after.looks:
            self.followed_by_look |= before.last

    def sequence(self, parts: Iterable[Part]) -> Part:
        whole = EMPTY
        for part in parts:
            self.link(whole, part)
            whole = Part(
                nullable=whole.nullable and part.nullable,
                first=whole.first | (part.first if whole.nullable else frozenset()),
                last=part.last | (whole.last if part.nullable else frozenset()),
                clean_nullable=whole.clean_nullable and part.clean_nullable,
                clean_first=whole.clean_first
                | (part.clean_first if whole.clean_nullable else frozenset()),
                clean_last=part.clean_last
                | (whole.clean_last if part.clean_nullable else frozenset()),
                looks=whole.looks or (whole.nullable and part.looks),
            )
        return whole

    def repeated(self, part: Part) -> Part:
        self.link(part, part)
        return part


def alternatives(parts: list[Part]) -> Part:
    return Part(
        nullable=any(part.nullable for part in parts),
        first=frozenset().union(*(part.first for part in parts)),
        last=frozenset().union(*(part.last for part in parts)),
        clean_nullable=any(part.clean_nullable for part in parts),
        clean_first=frozenset().union(*(part.clean_first for part in parts)),
        clean_last=frozenset().union(*(part.clean_last for part in parts)),
        looks=any(part.looks for part in parts),
    )


def optional(part: Part, *, possessive: bool) -> Part:
    return Part(
        nullable=True,
        first=part.first,
        last=part.last,
        clean_nullable=not possessive,
        clean_first=part.clean_first,
        clean_last=part.clean_last,
        looks=part.looks,
    )


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.pattern = Pattern()

    def parse(self) -> Pattern:
        self.pattern.whole = self.alternation(ignore_case=False)
        if self.at != len(self.source):
            raise UnknownPattern(f"unbalanced at {self.at}")
        if self.pattern.whole.nullable:
            raise UnknownPattern("it can match nothing")
        return self.pattern

    def peek(self, text: str) -> bool:
        return self.source.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def next(self) -> str:
        if self.at >= len(self.source):
            raise UnknownPattern("it ends too early")
        self.at += 1
        return self.source[self.at - 1]

    def alternation(self, *, ignore_case: bool) -> Part:
        branches = [self.branch(ignore_case=ignore_case)]
        while self.take("|"):
            branches.append(self.branch(ignore_case=ignore_case))
        return alternatives(branches)

    def branch(self, *, ignore_case: bool) -> Part:
        parts = []
        while self.at < len(self.source) and not self.peek("|") and not self.peek(")"):
            start = self.at
            part = self.atom(ignore_case=ignore_case)

            def again(start: int = start) -> Part:
                end, self.at = self.at, start
                copy = self.atom(ignore_case=ignore_case)
                self.at = end
                return copy

            parts.append(self.quantified(part, again))
        return self.pattern.sequence(parts)

    def atom(self, *, ignore_case: bool) -> Part:
        if self.take("("):
            return self.group(ignore_case=ignore_case)
        if self.take("["):
            return self.pattern.consume(self.char_class(ignore_case=ignore_case))
        char = self.next()
        if char == "\\":
            return self.pattern.consume(self.escape(ignore_case=ignore_case))
        if char in "^$.*+?{":
            raise UnknownPattern(f"{char!r} is not supported")
        return self.pattern.consume(characters.literal(char, ignore_case=ignore_case))

    def group(self, *, ignore_case: bool) -> Part:
        if self.take("?!") or self.take("?="):
            self.alternation(ignore_case=ignore_case)
            self.close()
            return LOOK_AHEAD
        if self.take("?i:"):
            ignore_case = True
        elif self.peek("?") and not self.take("?:"):
            raise UnknownPattern("a group of this kind is not supported")
        inside = self.alternation(ignore_case=ignore_case)
        self.close()
        return inside

    def close(self) -> None:
        if not self.take(")"):
            raise UnknownPattern("a group does not close")

    def quantified(self, part: Part, again: Callable[[], Part]) -> Part:
        low, high = self.bounds()
        if (low, high) == (1, 1):
            return part
        possessive = self.take("+")
        if not possessive:
            self.take("?")
        if high is None:
            loop = self.pattern.repeated(part)
            parts = [again() for _ in range(low - 1)]
            return self.pattern.sequence(
                [*parts, loop if low else optional(loop, possessive=possessive)]
            )
        copies = [part, *(again() for _ in range(high - 1))]
        tail = EMPTY
        for copy in reversed(copies[low:]):
            tail = optional(self.pattern.sequence([copy, tail]), possessive=possessive)
        return self.pattern.sequence([*copies[:low], tail])

    def bounds(self) -> tuple[int, int | None]:
        for sign, bounds in (("?", (0, 1)), ("*", (0, None)), ("+", (1, None))):
            if self.take(sign):
                return bounds
        if not self.take("{"):
            return 1, 1
        end = self.source.find("}", self.at)
        low, comma, high = self.source[self.at : end].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            raise UnknownPattern("a repeat count of this form is not supported")
        self.at = end + 1
        most = int(low) if not comma else int(high) if high else None
        if int(low) < 1 or (most is not None and not int(low) <= most <= MAX_POSITIONS):
            raise UnknownPattern("a repeat count of this size is not supported")
        return int(low), most

    def escape(self, *, ignore_case: bool) -> Predicate:
        char = self.next()
        if char in "pP":
            return self.property(negative=char == "P")
        known: dict[str, Predicate] = {
            "s": characters.is_space,
            "d": characters.is_digit,
            "w": characters.is_word,
        }
        if char.lower() in known:
            predicate = known[char.lower()]
            return predicate if char.islower() else characters.negated(predicate)
        controls = {"r": "\r", "n": "\n", "t": "\t"}
        if char in controls:
            return characters.literal(controls[char])
        if char.isalnum():
            raise UnknownPattern(f"\\{char} is not supported")
        return characters.literal(char, ignore_case=ignore_case)

    def property(self, *, negative: bool) -> Predicate:
        if not self.take("{"):
            raise UnknownPattern("a property without braces is not supported")
        end = self.source.find("}", self.at)
        name = self.source[self.at : end]
        self.at = end + 1
        if name.startswith("^"):
            name, negative = name[1:], not negative
        predicate = characters.in_category(name)
        if end < 0 or predicate is None:
            raise UnknownPattern(f"\\p{{{name}}} is not supported")
        return characters.negated(predicate) if negative else predicate

    def char_class(self, *, ignore_case: bool) -> Predicate:
        negative = self.take("^")
        members: list[Predicate] = []
        while not self.take("]"):
            if self.peek("&&") or self.peek("["):
                raise UnknownPattern("a class inside a class is not supported")
            members.append(self.class_member(ignore_case=ignore_case))
        predicate = characters.any_of(members)
        return characters.negated(predicate) if negative else predicate

    def class_member(self, *, ignore_case: bool) -> Predicate:
        first = self.class_char()
        if not isinstance(first, str):
            return first
        if not self.peek("-") or self.peek("-]"):
            return characters.literal(first, ignore_case=ignore_case)
        self.at += 1
        last = self.class_char()
        if ignore_case or not isinstance(last, str):
            raise UnknownPattern("a range of this kind is not supported")
        return characters.between(first, last)

    def class_char(self) -> str | Predicate:
        char = self.next()
        if char != "\\":
            return char
        if self.source[self.at : self.at + 1] in tuple("pPsSdDwW"):
            return self.escape(ignore_case=False)
        char = self.next()
        if char.isalnum() and char not in "rnt":
            raise UnknownPattern(f"\\{char} is not supported in a class")
        return {"r": "\r", "n": "\n", "t": "\t"}.get(char, char)


@lru_cache(maxsize=64)
def compile_pattern(source: str) -> Pattern:
    return _Parser(source).parse()
