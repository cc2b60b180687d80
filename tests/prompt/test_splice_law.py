"""The law: spliced ids equal the ids of the whole prompt, for every tokenizer. No exceptions."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decision_proxy.errors import RequestError
from decision_proxy.prompt import boundaries, encoder, joining, seams
from decision_proxy.prompt import splice as splice_module
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.template import ChatTemplate
from tests.prompt.conftest import NAMES, real_tokenizer
from tests.prompt.nasty import ENDINGS, OPENINGS, questions, states
from tests.prompt.random_tokenizers import built, texts, tokenizer_files

WITH_TEMPLATE = ("qwen3", "gemma3", "llama3", "llama3_1", "deepseek_v3", "smollm2", "gemini")
CHATML = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n")
EXPECTED_METHOD = {"llama2": "seam", "gemma3": "seam", "gemini": "seam"}

lawful = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", params=NAMES)
def splicer(request: pytest.FixtureRequest) -> Splicer:
    return Splicer(real_tokenizer(request.param), cache_bytes=16 << 20)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and windows so small that short states have many of them."""
    monkeypatch.setattr(splice_module, "BLOCK_CHARS", 160)
    monkeypatch.setattr(splice_module, "PIECE_CHARS", 32)
    monkeypatch.setattr(encoder, "BATCH_CHARS", 600)
    for module in (splice_module, joining):
        monkeypatch.setattr(module, "WINDOW_CHARS", 400)
    monkeypatch.setattr(splice_module, "SHORT_CHARS", 0)


@pytest.fixture
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, size in (
        (splice_module, "BLOCK_CHARS", 24),
        (splice_module, "PIECE_CHARS", 8),
        (splice_module, "SHORT_CHARS", 0),
        (splice_module, "WINDOW_CHARS", 40),
        (joining, "WINDOW_CHARS", 40),
        (splice_module, "OVERLAP_CHARS", 20),
        (joining, "OVERLAP_CHARS", 20),
        (seams, "OVERLAP_CHARS", 20),
        (splice_module, "REACHES", (5, 20, 60)),
        (splice_module, "SEARCH_CHARS", 30),
        (boundaries, "SEARCH_CHARS", 30),
        (encoder, "BATCH_CHARS", 100),
    ):
        monkeypatch.setattr(module, name, size)


def assert_lawful(splicer: Splicer, head: str, tails: list[str]) -> None:
    spliced = splicer.splice(head, tails)
    whole = splicer.tokenizer.encode_many([head + tail for tail in tails])
    assert spliced.full_ids() == whole
    assert spliced.prompt_tokens() == [len(ids) for ids in whole]
    shared = spliced.shared_json().decode()
    assert [int(i) for i in shared.split(",") if i] == [i for p in spliced.shared for i in p.ids]


@pytest.mark.parametrize("name", NAMES)
def test_each_tokenizer_is_spliced_by_the_method_it_allows(name: str) -> None:
    method = Splicer(real_tokenizer(name), cache_bytes=0).method
    assert method == EXPECTED_METHOD.get(name, "cut")


@lawful
@given(state=states, asked=questions)
def test_spliced_ids_are_the_ids_of_the_whole(
    splicer: Splicer, state: str, asked: list[str]
) -> None:
    opening, closing = CHATML
    assert_lawful(splicer, opening + state + "\n\n", [q + closing for q in asked])


@settings(
    lawful,
    suppress_health_check=[*lawful.suppress_health_check, HealthCheck.function_scoped_fixture],
)
@given(state=states, asked=questions)
def test_many_small_pieces_still_make_the_whole(
    splicer: Splicer, small_pieces: None, state: str, asked: list[str]
) -> None:
    assert_lawful(splicer, state, asked)


def test_every_nasty_ending_meets_every_nasty_opening(splicer: Splicer) -> None:
    text = "The order of 3 May didn't arrive. 今日は、良い天気。 " * 20
    for ending in ENDINGS:
        assert_lawful(splicer, text + ending, [f"{opening} more" for opening in OPENINGS])


@settings(
    lawful,
    max_examples=400,
    suppress_health_check=[*lawful.suppress_health_check, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_invented_tokenizers_are_spliced_exactly_too(
    tiny_pieces: None, data: st.DataObject
) -> None:
    tokenizer = built(data.draw(tokenizer_files))
    splicer = Splicer(tokenizer, cache_bytes=1 << 20)
    unit = data.draw(texts)
    head = data.draw(texts) + unit * data.draw(st.sampled_from([1, 3, 30])) + data.draw(texts)
    tails = data.draw(st.lists(texts, min_size=1, max_size=4))
    try:
        whole = tokenizer.encode_many([head + tail for tail in tails])
    except RequestError:
        return
    assert splicer.splice(head, tails).full_ids() == whole
    assert splicer.splice(head, tails).full_ids() == whole


@settings(lawful, max_examples=60)
@given(state=states, growth=states, asked=questions)
def test_a_state_that_grows_is_exact_and_reuses_what_it_had(
    splicer: Splicer, state: str, growth: str, asked: list[str]
) -> None:
    long_state = state + "A plain sentence to fill the piece. " * 400
    assert_lawful(splicer, long_state, asked)
    assert_lawful(splicer, long_state + growth, asked)


@pytest.mark.parametrize("name", WITH_TEMPLATE)
@settings(lawful, max_examples=80)
@given(state=states, asked=questions, system=st.none() | states)
def test_followed_templates_render_what_full_renders_give(
    name: str, state: str, asked: list[str], system: str | None
) -> None:
    template = ChatTemplate(real_tokenizer(name).hf)
    if name == "gemini":
        system = None
    contents = Contents(state + "\n\n", [f"{q}\nAnswer with yes or no only." for q in asked])
    rendered = template.render(contents, system=system)
    options = {"enable_thinking": False}
    for tail, spliced in zip(contents.tails, rendered.tails, strict=True):
        whole = template._text(contents.head + tail, system, options)
        assert rendered.head + spliced == whole
