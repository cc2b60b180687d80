from typing import Any

import pytest

from decision_proxy.prompt import boundaries as boundaries_module
from decision_proxy.prompt.boundaries import BYTE_LEVEL, Boundaries
from tests.prompt.small import WORDS, added, small_file

NFC, NFD, NFKC = ({"type": form} for form in ("NFC", "NFD", "NFKC"))
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def sequence(*stages: Any) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(stages)}


def cuts(boundaries: Boundaries, text: str) -> list[int]:
    return [at for at in range(1, len(text)) if boundaries.is_cut(text, at, text[at:])]


def test_words_may_be_cut_before_their_spaces() -> None:
    assert cuts(Boundaries(small_file()), "ab cd,1 2") == [2, 5, 6, 7, 8]


def test_the_last_cut_holds_for_every_tail() -> None:
    boundaries = Boundaries(small_file())
    assert boundaries.last_cut("ab cd", [" ef", " gh"]) == 5
    assert boundaries.last_cut("ab cd", [" ef", "gh"]) == 2
    assert boundaries.last_cut("abcd", ["ef"]) is None


def test_a_tail_of_nothing_leaves_no_cut_at_the_end() -> None:
    assert Boundaries(small_file()).last_cut("ab cd", [""]) == 2


def test_the_next_cut_is_the_first_at_or_after_a_place_and_before_the_end() -> None:
    boundaries = Boundaries(small_file())
    assert boundaries.next_cut("ab cd ef", 2) == 2
    assert boundaries.next_cut("ab cd ef", 3) == 5
    assert boundaries.next_cut("ab cd ef", 6) is None


def test_a_search_for_a_cut_ends_within_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries_module, "SEARCH_CHARS", 8)
    boundaries = Boundaries(small_file())
    assert boundaries.last_cut("a b" + "c" * 7, ["c"]) is None
    assert boundaries.last_cut("a b" + "c" * 5, ["c"]) == 1
    assert boundaries.next_cut("a" * 12 + " b", 1) is None


def test_no_cut_is_inside_an_added_token_or_what_could_become_one() -> None:
    boundaries = Boundaries(small_file(tokens=(added("-1-"),)))
    assert cuts(boundaries, "a-1-a") == [1, 4]
    assert boundaries.last_cut("a-1", ["-a", "1"]) == 1
    assert boundaries.last_cut("a-1", ["a", "1"]) == 3


def test_a_token_that_strips_spaces_forbids_cuts_beside_it() -> None:
    plain = Boundaries(small_file(tokens=(added("-"),)))
    strips = Boundaries(small_file(tokens=(added("-", lstrip=True),)))
    assert cuts(plain, "ab -1") == [2, 3, 4]
    assert cuts(strips, "ab -1") == [2]


def test_every_stage_must_allow_the_cut_and_one_must_make_it() -> None:
    halves = {"type": "Split", "pattern": {"Regex": "b-"}, "behavior": "Isolated", "invert": False}
    file = small_file(pre_tokenizer=sequence(halves, WORDS))
    assert cuts(Boundaries(file), "ab-1-") == [3, 4]
    digits = {"type": "Digits", "individual_digits": False}
    assert cuts(Boundaries(small_file(pre_tokenizer=digits)), "ab12ab") == [2]


def test_digits_taken_one_by_one_may_be_cut_between_them() -> None:
    digits = {"type": "Digits", "individual_digits": True}
    assert cuts(Boundaries(small_file(pre_tokenizer=digits)), "ab12ab") == [2, 3]


def test_byte_level_brings_gpt2s_pattern() -> None:
    explicit = {
        "type": "Split", "pattern": {"Regex": BYTE_LEVEL}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    text = "it's a test,  12 \n\nof\n it "
    implied = cuts(Boundaries(small_file(pre_tokenizer=BYTES)), text)
    assert implied == cuts(Boundaries(small_file(pre_tokenizer=explicit)), text)
    assert implied


@pytest.mark.parametrize("normalizer", [NFC, {"type": "Sequence", "normalizers": [NFC, NFC]}])
def test_no_cut_is_where_normalization_joins_or_changes_characters(normalizer: Any) -> None:
    boundaries = Boundaries(small_file(normalizer=normalizer))
    assert cuts(boundaries, "a==bb") == [1, 2, 3]
    assert cuts(boundaries, "a=\u0338b-") == [4]
    assert cuts(boundaries, "a-\u212ab-") == [1, 4]


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"pre_tokenizer": None}, "no pre-tokenizer"),
        ({"pre_tokenizer": sequence()}, "never splits"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
        ({"pre_tokenizer": sequence(sequence(WORDS))}, "Sequence"),
        ({"pre_tokenizer": sequence(BYTES, WORDS)}, "after ByteLevel"),
        ({"pre_tokenizer": BYTES | {"add_prefix_space": True}}, "ByteLevel"),
        ({"pre_tokenizer": BYTES | {"use_regex": False}}, "never splits"),
        ({"pre_tokenizer": WORDS | {"behavior": "MergedWithNext"}}, "Split"),
        ({"pre_tokenizer": WORDS | {"behavior": "Contiguous"}}, "Split"),
        ({"pre_tokenizer": WORDS | {"pattern": {"String": "a"}}}, "Split"),
        ({"pre_tokenizer": WORDS | {"pattern": {"Regex": "(?<=a)b"}}}, "not supported"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"normalizer": {"type": "Sequence", "normalizers": [NFC, NFD]}}, "several"),
        ({"dropout": 0.1}, "dropout"),
        ({"type": "Unigram"}, "Unigram"),
    ],
)
def test_a_part_that_the_proof_does_not_cover_is_named(parts: dict[str, Any], named: str) -> None:
    file = small_file(**parts)
    boundaries = Boundaries(file)
    assert named in (boundaries.unprovable or "")
    assert cuts(boundaries, "ab cd ef") == []


@pytest.mark.parametrize("normalizer", [NFD, NFKC])
def test_a_token_matched_after_normalization_may_come_from_other_characters(
    normalizer: Any,
) -> None:
    file = small_file(normalizer=normalizer, tokens=(added("-e", normalized=True),))
    assert "'-e', matched after" in (Boundaries(file).unprovable or "")


@pytest.mark.parametrize("content", ["K", "é", ";", "`"])
def test_a_token_that_composition_may_make_is_refused(content: str) -> None:
    file = small_file(normalizer=NFC, tokens=(added(content, normalized=True),))
    assert Boundaries(file).unprovable is not None


def test_a_token_in_ascii_that_is_matched_after_composition_is_no_objection() -> None:
    file = small_file(normalizer=NFC, tokens=(added("-e", normalized=True),))
    assert Boundaries(file).unprovable is None


def test_edges_of_added_tokens_are_cuts_whatever_the_rest_does() -> None:
    file = small_file(pre_tokenizer=None, normalizer={"type": "Lowercase"}, tokens=(added("<x>"),))
    boundaries = Boundaries(file)
    assert cuts(boundaries, "ab<x>cd") == [2, 5]
    assert boundaries.next_cut("ab<x>cd", 1) == 2
    assert boundaries.next_cut("ab<x>cd", 3) == 5


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}},
        {"normalizer": {"type": "Lowercase"}, "tokens": (added("<x>", normalized=True),)},
    ],
)
def test_there_are_no_edges_where_a_piece_depends_on_its_place(parts: dict[str, Any]) -> None:
    file = small_file(**{"tokens": (added("<x>"),), "pre_tokenizer": None, **parts})
    assert cuts(Boundaries(file), "ab<x>cd") == []
