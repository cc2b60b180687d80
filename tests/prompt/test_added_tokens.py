import pytest

from decision_proxy.prompt.added_tokens import AddedToken, AddedTokens
from tests.prompt.small import added, small_file, small_tokenizer


def tokens(*contents: str, **flags: bool) -> AddedTokens:
    return AddedTokens(AddedToken(content, i, **flags) for i, content in enumerate(contents))


def test_a_token_straddles_a_cut_inside_it_and_no_other() -> None:
    known = tokens("<|x|>")
    text = "a<|x|>b"
    straddled = [at for at in range(1, len(text)) if known.straddle(text[:at], text[at:])]
    assert straddled == [2, 3, 4, 5]


def test_a_beginning_of_a_token_that_goes_on_differently_straddles_nothing() -> None:
    assert not tokens("<|x|>").straddle("<|", "y|>")


def test_the_edges_of_a_token_are_edges_of_the_scan() -> None:
    known = tokens("<x>")
    assert known.edge("a", "<x>b")
    assert known.edge("a<x>", "b")
    assert not known.edge("a", "b")


def test_the_end_of_a_token_is_no_edge_where_a_longer_one_begins_at_the_same_place() -> None:
    known = tokens("<x", "<x>y")
    assert known.edge("a<x", ">b")
    assert not known.edge("a<x", ">y")


def test_the_end_of_a_token_is_no_edge_where_an_earlier_match_covers_its_start() -> None:
    known = tokens("ab", "bc")
    tokenizer = small_tokenizer(small_file(tokens=(added("ab"), added("bc"))))
    assert tokenizer.encode("abc") == tokenizer.encode("ab") + tokenizer.encode("c")
    assert not known.edge("abc", "d")
    assert known.edge("bc", "d")


def test_a_token_matched_after_normalization_makes_no_edge() -> None:
    assert not tokens("<x>", normalized=True).edge("a", "<x>b")


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_a_token_that_looks_around_forbids_cuts_beside_it(flag: str) -> None:
    known = tokens("<x>", **{flag: True})
    assert known.disturb("a", "<x>")
    assert known.disturb("<x>", "a")
    assert known.disturb(" ", " ")
    assert not known.disturb("a", " ")
    assert not known.edge("a", "<x>")
    assert not tokens("<x>").disturb("a", "<x>")


def test_a_token_without_content_is_left_out() -> None:
    assert tokens("", "a").contents == {"a"}


def test_entries_of_a_tokenizer_file_are_taken_as_they_are() -> None:
    known = AddedTokens.from_json([{"id": 3} | added("<x>", lstrip=True)])
    assert known.tokens == (AddedToken("<x>", 3, lstrip=True, special=True),)
    assert known.longest == 3
