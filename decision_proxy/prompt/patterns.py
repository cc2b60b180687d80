"""What a pre-tokenizer's regular expression can and cannot match across.

A pattern becomes a position automaton. Three questions about single characters are enough to prove
a cut (see `boundaries`):

* `spans(a, b)`    may some match, or some look-ahead, consume `a` and then at once `b`?
* `looks_after(a)` may a look-ahead be evaluated right after `a` was consumed?
* `starts_at(b)`   does a search at `b` surely match, whatever follows?

The syntax is the part of Oniguruma (as Ruby writes it) that published tokenizers use. Anything
else raises `UnknownPattern`: look-behind, anchors, back-references, class intersections.
"""

from collections.abc import Callable
from functools import lru_cache

from decision_proxy.prompt import characters
from decision_proxy.prompt.automaton import (
    EMPTY,
    LOOK_AHEAD,
    MAX_POSITIONS,
    Part,
    Pattern,
    UnknownPattern,
    alternatives,
    optional,
)
from decision_proxy.prompt.characters import Predicate

__all__ = ["Pattern", "UnknownPattern", "compile_pattern"]


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
        return self.pattern.consume(self.literal(char, ignore_case=ignore_case))

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
        if self.peek("{"):
            return self.counted(part, again)
        for sign, optional_, endless in (("?", True, False), ("*", True, True), ("+", False, True)):
            if self.take(sign):
                possessive = self.take("+")
                if not possessive:
                    self.take("?")
                if endless:
                    part = self.pattern.repeated(part, possessive=possessive)
                return optional(part, possessive=possessive) if optional_ else part
        return part

    def counted(self, part: Part, again: Callable[[], Part]) -> Part:
        """`{2}`, `{1,3}`, `{2,}`. A `+` after it is one more repetition, as in Ruby."""
        low, high = self.bounds()
        if high is None:
            loop = self.pattern.repeated(part, possessive=False)
            part = self.pattern.sequence([*(again() for _ in range(low - 1)), loop])
        else:
            copies = [part, *(again() for _ in range(high - 1))]
            tail = EMPTY
            for copy in reversed(copies[low:]):
                tail = optional(self.pattern.sequence([copy, tail]), possessive=False)
            part = self.pattern.sequence([*copies[:low], tail])
        if self.take("+"):
            return self.pattern.repeated(part, possessive=False)
        if self.take("?") and low == high:
            raise UnknownPattern("a repeat count that is optional is not supported")
        return part

    def bounds(self) -> tuple[int, int | None]:
        end = self.source.find("}", self.at)
        low, comma, high = self.source[self.at + 1 : end].partition(",")
        if end < 0 or not _is_count(low) or (high and not _is_count(high)):
            raise UnknownPattern("a repeat count of this form is not supported")
        self.at = end + 1
        most = int(low) if not comma else int(high) if high else None
        if int(low) < 1 or (most is not None and not int(low) <= most <= MAX_POSITIONS):
            raise UnknownPattern("a repeat count of this size is not supported")
        return int(low), most

    def escape(self, *, ignore_case: bool) -> Predicate:
        char = self.next()
        if char in "pP":
            if ignore_case:
                raise UnknownPattern("a property in a group that ignores case is not supported")
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
        return self.literal(char, ignore_case=ignore_case)

    def literal(self, char: str, *, ignore_case: bool) -> Predicate:
        if ignore_case and not char.isascii() and characters.may_have_case(char):
            raise UnknownPattern(f"{char!r} in a group that ignores case is not supported")
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
        members = [self.class_member(ignore_case=ignore_case)]
        while not self.take("]"):
            members.append(self.class_member(ignore_case=ignore_case))
        predicate = characters.any_of(members)
        return characters.negated(predicate) if negative else predicate

    def class_member(self, *, ignore_case: bool) -> Predicate:
        if self.peek("]"):
            raise UnknownPattern("a class that starts with ] is not supported")
        first = self.class_char(ignore_case=ignore_case)
        if not isinstance(first, str):
            return first
        if not self.peek("-") or self.peek("-]"):
            return self.literal(first, ignore_case=ignore_case)
        self.at += 1
        last = self.class_char(ignore_case=ignore_case)
        if ignore_case or not isinstance(last, str) or last < first:
            raise UnknownPattern("a range of this kind is not supported")
        return characters.between(first, last)

    def class_char(self, *, ignore_case: bool) -> str | Predicate:
        if self.peek("[") or self.peek("&&"):
            raise UnknownPattern("a class inside a class is not supported")
        char = self.next()
        if char != "\\":
            return char
        if self.source[self.at : self.at + 1] in tuple("pPsSdDwW"):
            return self.escape(ignore_case=ignore_case)
        char = self.next()
        if char.isalnum() and char not in "rnt":
            raise UnknownPattern(f"\\{char} is not supported in a class")
        return {"r": "\r", "n": "\n", "t": "\t"}.get(char, char)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


@lru_cache(maxsize=64)
def compile_pattern(source: str) -> Pattern:
    return _Parser(source).parse()
