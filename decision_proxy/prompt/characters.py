"""What a character is, as far as every Unicode version agrees on it.

A tokenizer's regex engine and Python carry different Unicode tables. A predicate here answers
True or False where both must agree, and None ("maybe") where they might not: ASCII controls that
engines class differently, and characters assigned or reclassified after Unicode 3.2.
"""

import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal

Predicate = Callable[[str], bool | None]
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

_OLD = unicodedata.ucd_3_2_0
_UNSURE_SPACES = frozenset("\x0b\x0c\x1c\x1d\x1e\x1f\x85\u180e\u200b")
_SCRIPTS_WITHOUT_ASCII = frozenset(
    ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Arabic", "Hebrew", "Cyrillic", "Greek")
)
_CATEGORIES = frozenset(
    {"L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N", "Nd", "Nl", "No"}
    | {"P", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So"}
    | {"Z", "Zs", "Zl", "Zp"}
)


@lru_cache(maxsize=65536)
def stable_category(char: str) -> str | None:
    """The general category, or None where Unicode versions differ."""
    category = unicodedata.category(char)
    if char.isascii():
        return category
    return category if category == _OLD.category(char) and category != "Cn" else None


def in_category(name: str) -> Predicate | None:
    """Predicate of `\\p{name}`; None when the property is not one we can answer for."""
    if name in _CATEGORIES:

        def matches(char: str) -> bool | None:
            category = stable_category(char)
            return None if category is None else category.startswith(name)

        return matches
    if name in _SCRIPTS_WITHOUT_ASCII:
        return lambda char: False if char.isascii() else None
    return None


def is_space(char: str) -> bool | None:
    if char in _UNSURE_SPACES:
        return None
    if char in " \t\n\r":
        return True
    category = stable_category(char)
    return None if category is None else category[0] == "Z"


def is_digit(char: str) -> bool | None:
    category = stable_category(char)
    return None if category is None else category == "Nd"


def is_word(char: str) -> bool | None:
    if not char.isascii():
        return None
    return char.isalnum() or char == "_"


def between(first: str, last: str) -> Predicate:
    return lambda char: first <= char <= last


def may_have_case(char: str) -> bool:
    """Whether a search that ignores case might read other characters, or several, for `char`."""
    category = stable_category(char)
    return category is None or category[0] not in "PZ"


def literal(wanted: str, *, ignore_case: bool = False) -> Predicate:
    if not ignore_case:
        return lambda char: char == wanted

    def matches(char: str) -> bool | None:
        if char.isascii() and wanted.isascii():
            return char.lower() == wanted.lower()
        # Only cased letters fold to another character: ſ to s, the Kelvin sign to k, ﬆ to st.
        cased = stable_category(char) in (None, "Lu", "Ll", "Lt")
        return None if cased or not wanted.isascii() else False

    return matches


def any_of(predicates: list[Predicate]) -> Predicate:
    def matches(char: str) -> bool | None:
        answers = [predicate(char) for predicate in predicates]
        if True in answers:
            return True
        return None if None in answers else False

    return matches


def negated(predicate: Predicate) -> Predicate:
    def matches(char: str) -> bool | None:
        answer = predicate(char)
        return None if answer is None else not answer

    return matches


@cache
def _composition_parts() -> tuple[frozenset[str], frozenset[str]]:
    """Characters that can open, and that can close, a canonical composition."""
    firsts, seconds = set(), set()
    for code in range(0x80, 0x30000):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):  # noqa: PLR2004
            firsts.add(chr(int(parts[0], 16)))
            seconds.add(chr(int(parts[1], 16)))
    return frozenset(firsts), frozenset(seconds)


def _is_hangul(char: str) -> bool:
    return "\u1100" <= char <= "\u11ff" or "\uac00" <= char <= "\ud7ff"


@lru_cache(maxsize=65536)
def inert_before(char: str, form: Form) -> bool:
    """Normalization to `form` leaves `char` as it is and never joins it to what stands before."""
    if char.isascii():
        return True
    if stable_category(char) is None or unicodedata.combining(char) or _is_hangul(char):
        return False
    _, seconds = _composition_parts()
    return unicodedata.normalize(form, char) == char and char not in seconds


@lru_cache(maxsize=65536)
def inert_after(char: str, form: Form) -> bool:
    """Likewise, and nothing that follows can change `char`."""
    firsts, _ = _composition_parts()
    return inert_before(char, form) and char not in firsts
