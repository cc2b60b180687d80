"""Texts that tokenizers trip over, as Hypothesis strategies."""

from hypothesis import strategies as st

ENDINGS = (
    "", "\n", "\n\n", "\n\n\n", " ", "  ", "\t", "\r\n", "\r", " \n \n", "'", "’", "1", "12345",
    "é", "e\u0301", "\u0301", "👩\u200d👩\u200d👧", "。", "今天", "<|im_end|>", "<|im_", "<|", "<",
    "a\ud7ff", "…", "<start_of_turn>", "</s>", "\u00a0", "\u2028", "\x0b", "\x1c", "\x00", "ﬁ",
    "ſ", "\u212a", "가", "ᄀ", "ا", "x" * 300, "-" * 300, " " * 300, "\n" * 100, "=", "\u0338",
)  # fmt: skip
OPENINGS = (
    "Question: Is it?", "Question:  two spaces", "\u0301combining", "  indented", "\n\nblank",
    "'s it", "'S", "1st", "👩", "今", "<|im_end|>", "s", "<", "|im_start|>user", "\u200d👩", "ed",
    ".", "\t", "\u3099", "A: false", "=", "\u0338not", "'", "\ufeff",
)  # fmt: skip
FRAGMENTS = (
    "The quick brown fox's 42 jumps. ", "Überraschung! ", "今日は、良い天気。", '\n\n- item: "x"\n',
    "foo_bar(baz)[1];\n", "    indent\n", "12,345.67 ", "数据是新的石油", "naïve café ",
    "안녕하세요 ", "مرحبا ", "e\u0301\u0327 ", "<|im_start|>user\n", "<tool_call>", "</think>",
    "don't WON'T I'll ", "\r\n", "\u00a0\u2003", "👩\u200d💻 ", "aaaaaaaaaaaaaaaa", "        ",
    "\n\n\n\n", "https://example.org/a?b=c&d=%20 ", '{"a": [1, 2.5e-3, null]} ', "ᄀᆞᆼ ", "ſK ",
)  # fmt: skip

odd_characters = st.characters(exclude_categories=["Cs"])
runs = st.builds(
    lambda char, count: char * count,
    st.sampled_from([" ", "\n", "a", "1", "-", "今", "\u0301", "\t", ".", "'"]),
    st.integers(1, 40),
)
pieces = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.sampled_from(ENDINGS),
    runs,
    st.text(odd_characters, max_size=12),
)
states = st.builds(
    lambda parts, repeats, ending: "".join(parts) * repeats + ending,
    st.lists(pieces, max_size=25),
    st.sampled_from([1, 1, 1, 3, 40]),
    st.sampled_from(ENDINGS),
)
openings = st.one_of(st.sampled_from(OPENINGS), st.text(odd_characters, max_size=8))
questions = st.lists(
    st.builds(
        lambda opening, rest: opening + rest, openings, st.lists(pieces, max_size=3).map("".join)
    ),
    min_size=1,
    max_size=5,
)
