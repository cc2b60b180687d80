import pytest
from hypothesis import example, given, settings
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from decision_proxy.prompt.patterns import Pattern, UnknownPattern, compile_pattern
from tests.prompt.random_tokenizers import PUBLISHED, regexes, texts

GPT2, LLAMA3 = PUBLISHED[:2]


def parts(pattern: str, text: str) -> list[str]:
    """What Oniguruma makes of `text`, as the tokenizers library calls it."""
    try:
        split = Split(Regex(pattern), "isolated")
    except Exception:  # noqa: BLE001 - the library raises bare Exceptions
        return []
    return [part for part, _ in split.pre_tokenize_str(text)]


def is_cut(pattern: Pattern, before: str, after: str) -> bool:
    return (
        pattern.starts_at(after)
        and not pattern.spans(before, after)
        and not pattern.looks_after(before)
    )


@settings(max_examples=1500)
@given(regexes, texts)
@example(r"ba{2}?c|a|b|c", "bc")
@example(r"(?:a|)++a|b", "bab")
@example(r"(?:a?b?)++a|-", "-a-")
@example(r"(?i:ß)|-", "-ss-")
@example(r"(?i:\p{Lu}a)|b", "baab")
@example(r"\p{N}{1,2}+|[^1]", "a1111b")
@example(r"(?i:ss)x|-|x", "-ßx")
def test_a_text_cut_where_the_pattern_allows_it_splits_into_the_same_parts(
    source: str, text: str
) -> None:
    try:
        pattern = compile_pattern(source)
    except UnknownPattern:
        return
    whole = parts(source, text)
    for at in range(1, len(text)):
        if whole and is_cut(pattern, text[at - 1], text[at]):
            assert parts(source, text[:at]) + parts(source, text[at:]) == whole


@pytest.mark.parametrize(
    "source",
    [
        r"(?<=a)b", r"(?<!a)b", r"^a", r"a$", r"\ba", r"a\1", r"(?>a)", r"(?i)a", r"(?<n>a)", ".",
        r"[[:alpha:]]", r"[a-z&&[^b]]", r"[]a]", r"[^]a]", r"[a-[b]]", r"[+-&&a]", r"[a-\d]",
        r"a{2}?", r"a{0,2}", r"a{,2}", r"a{x}", r"a{9999}", r"a*", r"(?:a|)", r"(?=a)", "a(", "a)",
        r"\p{Foo}", r"\pL", r"\x41", r"\G", r"(?i:\p{Lu})", r"(?i:[\p{L}])", r"(?i:ß)", r"(?i:[é])",
        r"(?i:[a-z])", "a**", "+", r"[b-a]", "[a", "\\", r"a{1,600}", r"[\x]", "(?i:é)", r"a{2}+?",
        r"\p{L", "[]", r"a{²}",
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_understood_is_refused(source: str) -> None:
    with pytest.raises(UnknownPattern):
        compile_pattern(source)


@pytest.mark.parametrize("source", PUBLISHED)
def test_published_patterns_are_understood(source: str) -> None:
    assert compile_pattern(source).predicates


def test_a_match_spans_the_characters_it_can_consume_one_after_the_other() -> None:
    pattern = compile_pattern(r"ab?c|d{2}")
    pairs = {a + b for a in "abcd" for b in "abcd" if pattern.spans(a, b)}
    assert pairs == {"ab", "ac", "bc", "dd"}


def test_a_repeated_group_spans_its_end_and_its_start() -> None:
    assert compile_pattern("(?:ab)+").spans("b", "a")
    assert compile_pattern("(?:ab){1,2}").spans("b", "a")
    assert compile_pattern("(?:ab){2,}").spans("b", "a")
    assert not compile_pattern("(?:ab){1}").spans("b", "a")
    assert not compile_pattern("(?:ab)?c").spans("b", "a")


def test_what_a_look_ahead_reads_counts_as_consumed() -> None:
    assert compile_pattern("a(?=bc)").spans("b", "c")
    assert compile_pattern("a(?!bc)").spans("b", "c")


def test_a_look_ahead_after_a_character_is_seen_through_optional_elements() -> None:
    pattern = compile_pattern(r"ab?(?!c)|d")
    assert pattern.looks_after("a")
    assert pattern.looks_after("b")
    assert not pattern.looks_after("d")


def test_a_look_ahead_at_the_start_of_a_loop_is_evaluated_after_its_end() -> None:
    assert compile_pattern("(?:(?!b)a)+").looks_after("a")
    assert not compile_pattern("(?!b)a").looks_after("a")


def test_a_match_surely_starts_only_where_one_character_is_enough() -> None:
    pattern = compile_pattern(r"ab|c(?!d)|e?f|g+|(?!x)h|i?+i")
    assert {char for char in "abcdefghi" if pattern.starts_at(char)} == set("fg")


def test_an_unsure_character_never_surely_starts_a_match_and_may_always_be_spanned() -> None:
    spaces = compile_pattern(r"\s+")
    assert not spaces.starts_at("\x85")
    assert spaces.spans("\x85", " ")


def test_ignoring_case_covers_characters_that_fold_to_ascii() -> None:
    pattern = compile_pattern("(?i:'s)|(?i:k)k")
    assert pattern.spans("'", "S")
    assert pattern.spans("'", "ſ")
    assert pattern.spans("\u212a", "k")
    assert not pattern.spans("'", "é".upper()) or pattern.spans("'", "É")
    assert not pattern.spans("'", "今")


def test_gpt2_may_be_cut_before_a_word_and_not_inside_its_space() -> None:
    pattern = compile_pattern(GPT2)
    assert is_cut(pattern, "a", " ")
    assert is_cut(pattern, "a", ".")
    assert not is_cut(pattern, " ", "a")
    assert not is_cut(pattern, "\n", "a")
    assert not is_cut(pattern, "a", "b")


def test_llama3_may_be_cut_before_a_newline_that_follows_a_letter() -> None:
    pattern = compile_pattern(LLAMA3)
    assert is_cut(pattern, "a", "\n")
    assert not is_cut(pattern, ".", "\n")
    assert not is_cut(pattern, "\n", "\n")
    assert not is_cut(pattern, "1", "2")
