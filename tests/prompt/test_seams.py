from typing import Any

import pytest

from decision_proxy.prompt import joining
from decision_proxy.prompt import splice as splice_module
from decision_proxy.prompt.added_tokens import AddedTokens
from decision_proxy.prompt.seams import Seams
from decision_proxy.prompt.windows import Window
from tests.prompt.small import added, small_file, small_splicer, small_tokenizer

SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
ON_SPACE = {
    "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
}  # fmt: skip
MERGES = ("a b", "ab a", "b a", "ab ab")


def seams(**parts: Any) -> Seams:
    file = small_file(*MERGES, **{"pre_tokenizer": None, **parts})
    return Seams(file, AddedTokens.from_json(file["added_tokens"]))


def windows(*texts: str) -> list[Window]:
    tokenizer = small_tokenizer(small_file(*MERGES, pre_tokenizer=None))
    return [Window.of(encoding) for encoding in tokenizer.encode_with_spans(texts)]


def sequence(*normalizers: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(normalizers)}


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"normalizer": SPACE},
        {"normalizer": sequence({"type": "Prepend", "prepend": "▁"}, SPACE)},
        {"normalizer": SPACE, "pre_tokenizer": ON_SPACE},
        {"pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first", "split": False}},
        {"tokens": (added("<x>", normalized=True),)},
    ],
)
def test_windows_of_a_tokenizer_that_never_splits_may_be_joined(parts: dict[str, Any]) -> None:
    assert seams(**parts).unprovable is None


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"dropout": 0.5}, "BPE with these options"),
        ({"ignore_merges": True}, "BPE with these options"),
        ({"continuing_subword_prefix": "##"}, "affixes"),
        ({"end_of_word_suffix": "</w>"}, "affixes"),
        ({"unk_token": None}, "vocabulary drops"),
        ({"byte_fallback": True}, "vocabulary drops"),
        ({"normalizer": {"type": "NFC"}}, "normalizer"),
        ({"normalizer": SPACE | {"pattern": {"String": "ab"}}}, "normalizer"),
        ({"normalizer": SPACE | {"pattern": {"Regex": " "}}}, "normalizer"),
        ({"pre_tokenizer": ON_SPACE}, "pre-tokenizer"),
        ({"pre_tokenizer": ON_SPACE, "normalizer": sequence(SPACE, BACK)}, "pre-tokenizer"),
        (
            {
                "pre_tokenizer": ON_SPACE,
                "normalizer": sequence(SPACE, {"type": "Prepend", "prepend": " "}),
            },
            "pre-tokenizer",
        ),
        ({"pre_tokenizer": {"type": "Metaspace", "split": True}}, "pre-tokenizer"),
        ({"normalizer": SPACE, "tokens": (added("<x>", normalized=True),)}, "after normalization"),
        ({"tokens": (added("-" * 81),)}, "81 characters"),
    ],
)
def test_what_may_make_a_seam_wrong_is_named(parts: dict[str, Any], named: str) -> None:
    assert named in (seams(**parts).unprovable or "")


def test_a_vocabulary_that_is_a_list_has_no_seams() -> None:
    file = small_file()
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]]}
    splicer = small_splicer(file | {"model": unigram})
    assert splicer.method == "full"
    assert splicer.splice("aa", ["b", "a"]).full_ids() == splicer.tokenizer.encode_many(
        ["aab", "aaa"]
    )


def test_all_bytes_but_those_whose_character_is_known_are_enough() -> None:
    file = small_file(pre_tokenizer=None, byte_fallback=True)
    vocab = file["model"]["vocab"]
    for byte in range(0xF5):
        if byte != ord("\n"):
            vocab[f"<0x{byte:02X}>"] = len(vocab)
    assert Seams(file, AddedTokens([])).unprovable is None
    del vocab["<0xC3>"]
    assert Seams(file, AddedTokens([])).unprovable is not None


def test_windows_are_left_and_entered_after_a_token_they_agree_on() -> None:
    left, right = windows("ab-ab-ab-", "b-ab-abab")
    found = Seams(small_file(pre_tokenizer=None), AddedTokens([])).join(left, right, 1)
    assert found is not None
    i, j = found
    (whole,) = windows("ab-ab-abab")
    assert [*left.ids[:i], *right.ids[j:]] == list(whole.ids)


def test_windows_that_agree_nowhere_are_not_joined() -> None:
    left, right = windows("abababab", "bababab")
    assert Seams(small_file(pre_tokenizer=None), AddedTokens([])).join(left, right, 1) is None


def test_windows_are_never_joined_at_an_unknown_character() -> None:
    left, right = windows("☃☃☃☃", "☃☃☃")
    assert seams().join(left, right, 1) is None


def test_a_window_starts_outside_added_tokens() -> None:
    known = seams(tokens=(added("<xyz>"),))
    assert known.window_start("ab<xyz>cd", 4) == 2
    assert known.window_start("ab<xyz>cd", 8) == 8
    assert known.is_clear("ab<xy", 5, "-")
    assert not known.is_clear("ab<xy", 5, "z>")


def test_an_unknown_token_that_moves_behind_bytes_is_no_trap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a few byte tokens only, the library writes an unknown token after later bytes."""
    for module in (splice_module, joining):
        monkeypatch.setattr(module, "WINDOW_CHARS", 20)
    monkeypatch.setattr(splice_module, "SHORT_CHARS", 0)
    file = small_file(pre_tokenizer=None, byte_fallback=True)
    vocab = file["model"]["vocab"]
    for byte in "今".encode():
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    splicer = small_splicer(file)
    text = ("☃" + "今" * 40 + "a") * 20
    assert splicer.splice(text, ["b", "c"]).full_ids() == splicer.tokenizer.encode_many(
        [text + "b", text + "c"]
    )
