"""Small tokenizers with any options, as Hypothesis strategies: what no published file combines."""

import json
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from decision_proxy.prompt.tokenizer import Tokenizer

Json = dict[str, Any]

LETTERS = "ab \n1-é▁"
PUBLISHED = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[\r\n]+|[\p{P}\p{S}]|[A-Za-z]+|\s+",
)

atoms = st.sampled_from(
    [
        "a",
        "b",
        "1",
        "-",
        " ",
        r"\n",
        r"\s",
        r"\S",
        r"\p{L}",
        r"\p{N}",
        r"[ab]",
        r"[^a\s]",
        "é",
        r"[^\p{L}]",
        r"[\r\n]",
        r"[a-c-]",
        "ss",
        "ß",
        r"\d",
        r"\w",
        r"\P{N}",
        r"[^ab]",
        "&",
        r"[1\-]",
    ]
)
quantifiers = st.sampled_from(
    [
        "",
        "",
        "",
        "?",
        "*",
        "+",
        "??",
        "*?",
        "+?",
        "?+",
        "*+",
        "++",
        "{2}",
        "{1,2}",
        "{2,}",
        "{1,3}+",
        "{1,2}?",
        "{2}+",
    ]
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(inner, min_size=1, max_size=3).map("".join)
    choices = st.lists(sequences, min_size=1, max_size=3).map("|".join)
    groups = st.builds(
        lambda kind, body, times: f"({kind}{body}){times}",
        st.sampled_from(["", "?:", "?:", "?i:", "?!", "?="]),
        choices,
        quantifiers,
    )
    return st.one_of(groups, sequences)


quantified = st.builds(lambda atom, times: atom + times, atoms, quantifiers)
invented = st.lists(st.recursive(quantified, _larger, max_leaves=6), min_size=1, max_size=4).map(
    "|".join
)
regexes = st.one_of(st.sampled_from(PUBLISHED), invented, invented)

splits = st.builds(
    lambda regex, behavior, invert: {
        "type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert,
    },
    regexes,
    st.sampled_from(["Isolated", "Isolated", "Removed", "MergedWithNext", "Contiguous"]),
    st.booleans(),
)  # fmt: skip
byte_levels = st.builds(
    lambda prefix, regex: {
        "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex,
    },
    st.sampled_from([False, False, False, True]),
    st.booleans(),
)  # fmt: skip
digits = st.builds(lambda one: {"type": "Digits", "individual_digits": one}, st.booleans())
metaspaces = st.builds(
    lambda scheme, split: {
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split,
    },
    st.sampled_from(["always", "first", "never"]),
    st.booleans(),
)  # fmt: skip
space_split = st.builds(
    lambda behavior: {
        "type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": False,
    },
    st.sampled_from(["MergedWithPrevious", "Isolated"]),
)  # fmt: skip
other_pre_tokenizers = st.sampled_from(
    [{"type": "Whitespace"}, {"type": "BertPreTokenizer"}, {"type": "WhitespaceSplit"}]
)
byte_pre_tokenizers = st.builds(
    lambda stages, last: {"type": "Sequence", "pretokenizers": [*stages, last]},
    st.lists(st.one_of(splits, splits, digits), max_size=2),
    byte_levels,
)
character_pre_tokenizers = st.one_of(
    st.none(), metaspaces, space_split, splits, digits, other_pre_tokenizers,
    st.builds(
        lambda stages: {"type": "Sequence", "pretokenizers": stages},
        st.lists(st.one_of(splits, digits), min_size=1, max_size=2),
    ),
)  # fmt: skip

forms = st.sampled_from(["NFC", "NFC", "NFD", "NFKC", "NFKD"]).map(lambda form: {"type": form})
replaces = st.builds(
    lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new},
    st.sampled_from([" ", " ", "a", "▁", "ab", "é"]),
    st.sampled_from(["▁", "▁", " ", "", "bb", "é"]),
)
prepends = st.just({"type": "Prepend", "prepend": "▁"})
strips = st.just({"type": "Strip", "strip_left": True, "strip_right": True})
lowercase = st.just({"type": "Lowercase"})
one_normalizer = st.one_of(forms, replaces, prepends, replaces, strips, lowercase)
normalizers = st.one_of(
    st.none(),
    one_normalizer,
    st.lists(one_normalizer, max_size=3).map(
        lambda parts: {"type": "Sequence", "normalizers": parts}
    ),
)


@st.composite
def added_tokens(draw: st.DrawFn, first_id: int) -> list[Json]:
    contents = draw(
        st.lists(
            st.one_of(
                st.sampled_from(["<|x|>", "<|", "|>", "<x", "  ", "\n\n", "ab", "fe", "b1", "K"]),
                st.text(LETTERS + "<|>", min_size=1, max_size=5),
            ),
            max_size=5,
            unique=True,
        )
    )
    flags = st.sampled_from([False, False, False, True])
    plain = draw(st.booleans())
    return [
        {
            "id": first_id + i, "content": content, "single_word": not plain and draw(flags),
            "lstrip": not plain and draw(flags), "rstrip": not plain and draw(flags),
            "normalized": not plain and draw(flags), "special": draw(st.booleans()),
        }
        for i, content in enumerate(contents)
    ]  # fmt: skip


@st.composite
def byte_pair_models(draw: st.DrawFn, alphabet: list[str], *, fallback: bool) -> Json:
    """Merges in any order, proper or not: also of parts that no earlier merge makes."""
    vocab = {symbol: i for i, symbol in enumerate(["<unk>", *alphabet])}
    if fallback:
        for byte in range(256 if draw(st.booleans()) else 228):
            vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    parts = list(alphabet[:9])
    merges: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 24))):
        pair = (draw(st.sampled_from(parts)), draw(st.sampled_from(parts)))
        if pair not in merges and len("".join(pair)) <= 16:
            merges.append(pair)
            joined = "".join(pair)
            vocab.setdefault(joined, len(vocab))
            parts.append(joined)
    if draw(st.booleans()):
        merges = draw(st.permutations(merges))
    return {
        "type": "BPE", "dropout": None, "vocab": vocab, "merges": [list(m) for m in merges],
        "unk_token": draw(st.sampled_from(["<unk>", "<unk>", None])),
        "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": draw(st.booleans()), "byte_fallback": fallback,
        "ignore_merges": draw(st.sampled_from([False, False, True])),
    }  # fmt: skip


common_bytes = [*"ab1-", "Ġ", "Ċ", "Ã", "©"]
byte_symbols = [*common_bytes, *sorted(set(ByteLevel.alphabet()) - set(common_bytes))]


@st.composite
def wild_files(draw: st.DrawFn) -> Json:
    """Anything with anything."""
    if draw(st.booleans()):
        model = draw(byte_pair_models(byte_symbols, fallback=False))
        return _file(draw, model, draw(byte_pre_tokenizers), draw(normalizers))
    known = draw(st.sampled_from(["ab1-▁ \né", "ab1▁ ", "ab1-▁ \néfxS<|>"]))
    model = draw(byte_pair_models(list(known), fallback=draw(st.booleans())))
    return _file(draw, model, draw(character_pre_tokenizers), draw(normalizers))


@st.composite
def cut_files(draw: st.DrawFn) -> Json:
    """Patterns and little else, so that most of them can be cut."""
    stages = st.builds(
        lambda regex, behavior, invert: {
            "type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert,
        },
        regexes,
        st.sampled_from(["Isolated", "Isolated", "Removed"]),
        st.booleans(),
    )  # fmt: skip
    first = draw(st.lists(st.one_of(stages, stages, digits), min_size=1, max_size=3))
    last = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
        "use_regex": draw(st.sampled_from([False, False, True])),
    }  # fmt: skip
    model = draw(byte_pair_models(byte_symbols, fallback=False))
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [*first, last]}
    return _file(draw, model, pre_tokenizer, draw(st.one_of(st.none(), st.none(), forms)))


@st.composite
def seam_files(draw: st.DrawFn) -> Json:
    """No pre-tokens, so that windows are joined."""
    known = draw(st.sampled_from(["ab1-▁ \né", "ab1▁", "ab▁", "ab1-▁ \néfxS<|>"]))
    model = draw(byte_pair_models(list(known), fallback=draw(st.booleans())))
    model["ignore_merges"] = False
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer, pre_tokenizer = draw(
        st.sampled_from(
            [
                (None, None),
                (replaced, None),
                (
                    {
                        "type": "Sequence",
                        "normalizers": [{"type": "Prepend", "prepend": "▁"}, replaced],
                    },
                    None,
                ),
                (
                    replaced,
                    {
                        "type": "Split", "pattern": {"String": " "},
                        "behavior": "MergedWithPrevious", "invert": False,
                    },
                ),
                (None, "metaspace"),
            ]
        )
    )  # fmt: skip
    if pre_tokenizer == "metaspace":
        pre_tokenizer = draw(metaspaces) | {"split": False}
    return _file(draw, model, pre_tokenizer, normalizer)


def _file(draw: st.DrawFn, model: Json, pre_tokenizer: Any, normalizer: Any) -> Json:
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": draw(added_tokens(len(model["vocab"]))), "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip


tokenizer_files = st.one_of(wild_files(), cut_files(), cut_files(), seam_files())


def built(file: Json) -> Tokenizer:
    """Rejects what the tokenizers library itself cannot load."""
    try:
        backend = Backend.from_str(json.dumps(file))
        backend.encode("probe", add_special_tokens=False)
    except BaseException as error:
        assume("Interrupt" in type(error).__name__)
        raise
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


texts = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "ab",
                "ba",
                "a",
                "b",
                " ",
                "\n",
                "1",
                "-",
                "é",
                "é",
                "<|x|>",
                "<|",
                "|>",
                "<x",
                "▁",
                "K",
                "K",
                "ß",
                "ss",
                "ſ",
                "S",
                "'s",
                "'ſ",
                "̸",
                "=",
                "f",
                "fe",
                "☃",
                "  ",
                "\n\n",
                "ab1-",
                "漢",
                "가",
                "ᄀ",
                "\r\n",
                "x",
                "&",
                "aaaa",
                "👩",
            ]
        ),
        st.text(LETTERS, min_size=1, max_size=6),
    ),
    max_size=30,
).map("".join)
