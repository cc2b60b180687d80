"""A regular expression as a position automaton (Glushkov), to ask it about single characters.

One position for each consuming element, the positions that may follow each, and where a look-ahead
may be evaluated. `patterns` builds it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

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

    def repeated(self, part: Part, *, possessive: bool) -> Part:
        self.link(part, part)
        return replace(part, clean_nullable=part.clean_nullable and not possessive)


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
