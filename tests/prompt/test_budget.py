"""No more is read than it takes to know that a prompt is too long, and nothing of it is kept."""

from typing import Any

import pytest

from decision_proxy.errors import RequestError
from decision_proxy.prompt import encoder as encoder_module
from decision_proxy.prompt.budget import Budget, Cancelled, PromptTooLong
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.plain_text import PlainTextSplicer
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.template import ChatTemplate
from decision_proxy.questions import Decision, Kind, Option, Question
from decision_proxy.reads.next_token import NextToken
from decision_proxy.settings import Prompt
from tests.prompt.conftest import real_tokenizer
from tests.prompt.counting import counted
from tests.prompt.small import added, small_file, small_hf, small_splicer, small_tokenizer

BATCH = 40_000
WORDS = "The order of 3 May didn't arrive, say 12 customers. "
TAILS = ["Question: a", "Question: b", "A: c"]
METHODS = {"qwen3": "cut", "smollm2": "cut", "gemma3": "seam", "llama2": "seam"}
CHATML = "<x>{{ messages[-1].content }}<x>"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "BATCH_CHARS", BATCH)


@pytest.fixture(params=METHODS)
def splicer(request: pytest.FixtureRequest) -> Splicer:
    return Splicer(real_tokenizer(request.param), cache_bytes=64 << 20)


def entries(splicer: Splicer) -> int:
    return splicer.pieces.statistics().entries + splicer.windows.statistics().entries


def refused(splicer: Splicer, head: str, tails: list[str], budget: Budget) -> tuple[int, int]:
    """Which prompt was too long, and how many characters were read before that was known."""
    with counted(splicer.tokenizer) as seen, pytest.raises(PromptTooLong) as error:
        splicer.splice(head, tails, budget=budget)
    assert entries(splicer) == 0
    return error.value.prompt, seen.chars


@pytest.mark.parametrize("ending", ["", "\n\n"])
def test_a_state_is_read_no_further_than_the_budget(splicer: Splicer, ending: str) -> None:
    head = WORDS * 40_000 + ending
    prompt, chars = refused(splicer, head, TAILS, Budget(tokens=1000))
    assert prompt == 0
    assert chars < 2 * BATCH


def test_a_question_is_read_no_further_than_the_budget(splicer: Splicer) -> None:
    tails = ["Question: a", "Question: " + WORDS * 40_000, "A: c"]
    prompt, chars = refused(splicer, WORDS * 400, tails, Budget(tokens=20_000))
    assert prompt == 1
    assert chars < 8 * BATCH


def test_one_long_prompt_is_read_no_further_than_the_budget(splicer: Splicer) -> None:
    prompt, chars = refused(splicer, WORDS * 40_000, [""], Budget(tokens=1000))
    assert prompt == 0
    assert chars < 2 * BATCH


def test_a_prompt_of_exactly_the_budget_is_made_and_one_of_more_is_not(splicer: Splicer) -> None:
    head = WORDS * 3000
    ids = splicer.tokenizer.encode_many([head + tail for tail in TAILS])
    most = max(map(len, ids))
    longest = [len(own) for own in ids].index(most)
    assert refused(splicer, head, TAILS, Budget(tokens=most - 1))[0] == longest
    assert splicer.splice(head, TAILS, budget=Budget(tokens=most)).full_ids() == ids
    assert entries(splicer) > 0


def test_a_tokenizer_without_any_proof_reads_prompts_in_turn() -> None:
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0], [" ", -1.0]]}
    splicer = small_splicer(small_file() | {"model": unigram, "pre_tokenizer": None})
    tails = ["a", "a a", " a"]
    prompt, chars = refused(splicer, "a " * BATCH, tails, Budget(tokens=1000))
    assert prompt == 0
    assert chars < 3 * BATCH
    prompt, chars = refused(splicer, "a " * 1000, tails, Budget(tokens=2001))
    assert prompt == 1


def test_prompts_without_a_cut_in_their_beginning_are_named_by_their_own_number() -> None:
    """Each first character is a group of its own, with its cuts in the tails."""
    splicer = Splicer(real_tokenizer("smollm2"), cache_bytes=1 << 20)
    head = " " * 20_000
    tails = ["a: one", "b: one", "a: two", "b: " + WORDS * 20]
    found = splicer.splice(head, tails)
    assert found.full_ids() == splicer.tokenizer.encode_many([head + tail for tail in tails])
    with pytest.raises(PromptTooLong) as error:
        splicer.splice(head, tails, budget=Budget(tokens=found.prompt_tokens()[0] + 50))
    assert error.value.prompt == 3


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_plain_text_prompts_keep_to_the_budget(name: str) -> None:
    tokenizer = real_tokenizer(name)
    plain = PlainTextSplicer(tokenizer, cache_bytes=64 << 20)
    template = ChatTemplate(tokenizer.hf)
    for state, system in ((WORDS * 40_000, None), ("x", WORDS * 40_000)):
        rendered = template.render(Contents(state, TAILS), system=system)
        with counted(plain.splicer.tokenizer) as seen, pytest.raises(PromptTooLong):
            plain.splice(rendered, budget=Budget(tokens=1000))
        assert seen.chars < 3 * BATCH
        assert entries(plain.splicer) == 0
    rendered = template.render(Contents(WORDS * 20, TAILS), system=WORDS)
    wanted = plain.splice(rendered)
    most = max(wanted.prompt_tokens())
    assert plain.splice(rendered, budget=Budget(tokens=most)).full_ids() == wanted.full_ids()
    with pytest.raises(PromptTooLong):
        plain.splice(rendered, budget=Budget(tokens=most - 1))


def test_work_that_nobody_waits_for_stops_between_batches(splicer: Splicer) -> None:
    answers = iter([False, False, True])
    with counted(splicer.tokenizer) as seen, pytest.raises(Cancelled):
        splicer.splice(WORDS * 40_000, TAILS, budget=Budget(cancelled=lambda: next(answers)))
    assert 0 < seen.chars < 3 * BATCH
    assert entries(splicer) == 0


def test_rendering_one_prompt_after_the_other_stops_at_the_first_that_is_too_long() -> None:
    template = ChatTemplate(
        small_hf(small_file(), chat_template="{{ messages[-1].content|upper }}")
    )
    asked = Contents("state ", ["a", "b" * 100, "c"])
    with pytest.raises(PromptTooLong) as error:
        template.render(asked, budget=Budget(chars=50))
    assert (error.value.prompt, error.value.chars) == (1, 106)
    with pytest.raises(Cancelled):
        template.render(asked, budget=Budget(cancelled=lambda: True))


def test_the_characters_of_the_rendered_prompt_count_and_not_those_it_was_made_from() -> None:
    template = ChatTemplate(small_hf(small_file(), chat_template="{{ messages[-1].content|trim }}"))
    asked = Contents(" " * 1000 + "a", ["b"])
    assert template.render(asked, budget=Budget(chars=2)).tails == ("b",)
    with pytest.raises(PromptTooLong):
        template.render(asked, budget=Budget(chars=1))


def test_many_copies_of_a_long_state_are_not_written_out_before_one_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = small_tokenizer(
        small_file(), chat_template="{{ messages[-1].content|replace('z', '') }}"
    )
    prompts = Prompts(tokenizer, Prompt())
    monkeypatch.setattr("decision_proxy.prompt.prompts.MANY_CHARS", 10_000)
    asked = Contents("a b " * 1000, [f"{i}" for i in range(100)])
    with counted(tokenizer) as seen, pytest.raises(PromptTooLong):
        prompts.ids(asked, budget=Budget(tokens=100))
    assert seen.chars < 2 * len(asked.head)
    assert prompts.ids(asked).full_ids() == tokenizer.encode_many(
        [asked.head + tail for tail in asked.tails]
    )


@pytest.mark.parametrize("name", ["gemma3", "llama2"])
@pytest.mark.parametrize("run", ["\n", "\t", "ha", "na na ", "=-", "\n\t\n", "今", "<unused1>"])
def test_a_run_at_the_end_is_not_read_once_for_each_question(name: str, run: str) -> None:
    splicer = Splicer(real_tokenizer(name), cache_bytes=64 << 20)
    head = WORDS * 200 + run * (60_000 // len(run))
    tails = [f"{'QA'[i % 2]}uestion {i}?" for i in range(100)]
    wanted = splicer.tokenizer.encode_many([head + tail for tail in tails])
    with counted(splicer.tokenizer) as seen:
        assert splicer.splice(head, tails).full_ids() == wanted
    assert seen.chars < 6 * len(head)
    assert not splicer.fallbacks


def test_a_long_part_without_a_cut_is_joined_from_windows(splicer: Splicer) -> None:
    head = WORDS * 1500 + "\n\n"
    tails = [*TAILS, "Question: " + WORDS * 1500]
    wanted = splicer.tokenizer.encode_many([head + tail for tail in tails])
    assert splicer.splice(head, tails).full_ids() == wanted
    with counted(splicer.tokenizer) as seen:
        assert splicer.splice(WORDS + head, tails).full_ids()
        assert splicer.splice(head + WORDS, tails).full_ids()
    assert seen.chars < 6 * len(head)


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "smollm2"])
def test_a_long_run_hides_no_cut_behind_it(name: str) -> None:
    splicer = Splicer(real_tokenizer(name), cache_bytes=64 << 20)
    head = "a" * 50_000 + "\n\nA line.\n\n" * 40_000
    assert max(map(len, splicer._cut(head, 16_384))) < 200_000
    assert splicer.splice(head, TAILS).full_ids() == splicer.tokenizer.encode_many(
        [head + tail for tail in TAILS]
    )


def question(name: str, instructions: str = "") -> Question:
    return Question(name, Kind.NOUL, instructions, (Option("yes"), Option("no")))


def decision(state: str, *questions: Question, **fields: Any) -> Decision:
    return Decision(id="d", model=None, state=state, questions=questions, **fields)


@pytest.fixture(scope="module")
def reads() -> NextToken:
    prompts = Prompts(real_tokenizer("qwen3"), Prompt())
    return NextToken(prompts, prompts.labels(), max_model_len=2000)


def test_a_refusal_says_at_least_as_vllm_does(reads: NextToken) -> None:
    asked = decision(WORDS * 4000, question("late"))
    with counted(reads.prompts.tokenizer) as seen, pytest.raises(RequestError) as error:
        reads.plan(asked)
    assert error.value.message == (
        "late: this model's maximum context length is 2000 tokens. However, the prompt contains at "
        "least 2000 input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce its length."
    )
    assert seen.chars < 2 * BATCH
    assert entries(reads.prompts.splicer) == 0


def test_a_text_that_cannot_fit_is_refused_by_its_characters_and_never_read(
    reads: NextToken,
) -> None:
    asked = decision("x", question("short"), question("late", "a" * 300_000))
    with counted(reads.prompts.tokenizer) as seen, pytest.raises(RequestError) as error:
        reads.plan(asked)
    assert seen.chars == 0
    assert error.value.message.startswith(
        "late: this model's maximum context length is 2000 tokens. However, the prompt contains 300"
    )
    assert "(more than 255872 characters, which is the upper bound for 1999 input tokens)" in (
        error.value.message
    )


def test_a_plan_can_be_cancelled(reads: NextToken) -> None:
    with pytest.raises(Cancelled):
        reads.plan(decision("x", question("late")), cancelled=lambda: True)
    assert reads.plan(decision("x", question("late")), cancelled=lambda: False)


def test_a_control_token_after_plain_text_counts_too() -> None:
    tokenizer = small_tokenizer(small_file(tokens=(added("<x>"),)), chat_template=CHATML)
    prompts = Prompts(tokenizer, Prompt(user_text_specials="split"))
    asked = Contents("ab", ["c"])
    (ids,) = prompts.ids(asked).full_ids()
    assert prompts.ids(asked, budget=Budget(tokens=len(ids))).full_ids() == [ids]
    with pytest.raises(PromptTooLong):
        prompts.ids(asked, budget=Budget(tokens=len(ids) - 1))
