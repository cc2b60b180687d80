import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.normalizers import NFC, NFD, NFKC, NFKD
from tokenizers.pre_tokenizers import Split

from decision_proxy.prompt import characters
from decision_proxy.prompt.characters import Form, Predicate, inert_after, inert_before

LIBRARY = {"NFC": NFC(), "NFD": NFD(), "NFKC": NFKC(), "NFKD": NFKD()}
EVERY = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
PREDICATES: dict[str, Predicate | None] = {
    r"\s": characters.is_space,
    r"\d": characters.is_digit,
    r"\w": characters.is_word,
    **{
        rf"\p{{{name}}}": characters.in_category(name)
        for name in ("L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S", "Z", "Han")
    },
}


@pytest.mark.parametrize("source", PREDICATES)
def test_a_sure_answer_is_the_regex_engines_answer_for_every_character(source: str) -> None:
    predicate = PREDICATES[source]
    assert predicate is not None
    matched = set()
    for start in range(0, len(EVERY), 1 << 14):
        chunk = "".join(EVERY[start : start + (1 << 14)])
        for _, (first, last) in Split(Regex(source), "removed", invert=True).pre_tokenize_str(
            chunk
        ):
            matched.update(chunk[first:last])
    wrong = [char for char in EVERY if predicate(char) not in (None, char in matched)]
    assert wrong == []


def test_letters_and_digits_of_every_day_have_sure_answers() -> None:
    letter, number = characters.in_category("L"), characters.in_category("N")
    assert letter is not None
    assert number is not None
    assert [letter(char) for char in "aZé今가а1 -"] == [True] * 6 + [False] * 3
    assert number("1") is True
    assert number("a") is False
    assert characters.is_space("\n") is True


@pytest.mark.parametrize("char", "\x0b\x0c\x1c\x85\u200b\u180e")
def test_spaces_that_engines_class_differently_are_unsure(char: str) -> None:
    assert characters.is_space(char) is None


def test_an_unknown_property_has_no_predicate() -> None:
    assert characters.in_category("Emoji") is None


def test_negation_and_choice_keep_what_is_unsure() -> None:
    unsure = characters.any_of([characters.is_space, characters.literal("a")])
    assert unsure("\x85") is None
    assert unsure("a") is True
    assert characters.negated(unsure)("\x85") is None
    assert characters.negated(unsure)("b") is True
    assert characters.between("a", "c")("b") is True
    assert characters.between("a", "c")("d") is False


@pytest.mark.parametrize(
    ("char", "has"), [("’", False), ("é", True), ("Ⓐ", True), ("\u0345", True)]
)
def test_only_punctuation_and_spaces_surely_have_no_case(char: str, *, has: bool) -> None:
    assert characters.may_have_case(char) is has


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_an_inert_character_is_left_alone_by_the_librarys_normalizer(form: Form) -> None:
    normalizer = LIBRARY[form]
    inert = [char for char in EVERY if inert_before(char, form)]
    assert len(inert) > 20_000
    joined = "a".join(inert)
    assert normalizer.normalize_str(joined) == joined


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@given(before=st.text(min_size=1, max_size=3), char=st.characters(), after=st.text(max_size=3))
def test_a_text_cut_before_an_inert_character_normalizes_in_parts(
    form: Form, before: str, char: str, after: str
) -> None:
    before = re.sub("[\ud800-\udfff]", "", before)
    if not inert_before(char, form):
        return
    normalize = LIBRARY[form].normalize_str
    assert normalize(before + char + after) == normalize(before) + normalize(char + after)


@pytest.mark.parametrize(
    ("form", "char"),
    [
        ("NFC", "́"),
        ("NFC", "K"),
        ("NFC", "ᅡ"),
        ("NFC", "가"),
        ("NFC", "া"),
        ("NFD", "é"),
        ("NFKC", "ﬁ"),
        ("NFKD", "①"),
    ],
)
def test_a_character_that_normalization_joins_or_changes_is_not_inert(
    form: Form, char: str
) -> None:
    assert not inert_before(char, form)


def test_a_letter_that_an_accent_may_join_is_inert_before_but_not_after() -> None:
    assert inert_before("e", "NFC")
    assert not inert_after("e", "NFC")
    assert not inert_after("=", "NFC")
    assert inert_after("|", "NFC")
    assert unicodedata.normalize("NFC", "=\u0338") == "≠"
