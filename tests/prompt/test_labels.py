import pytest

from decision_proxy.errors import UnsuitableModel
from decision_proxy.prompt.labels import find_labels
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.spliced import Ids, Spliced
from decision_proxy.questions import Kind, Option, Question
from decision_proxy.settings import Prompt
from tests.prompt.conftest import real_tokenizer
from tests.prompt.small import added, small_file, small_tokenizer

WITH_TEMPLATE = ("qwen3", "gemma3", "llama3", "llama3_1", "deepseek_v3", "smollm2", "gemini")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 <>:\n"
YES_NO = ("y e", "ye s", "n o")


def asked(kind: Kind, options: int) -> Question:
    return Question("q", kind, "", tuple(Option(str(i)) for i in range(options)))


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_labels_are_the_tokens_that_vllm_reads(name: str) -> None:
    """vLLM: the ids of a chat that says "x", after the last added token, and the label."""
    tokenizer = real_tokenizer(name)
    hf = tokenizer.hf
    labels = Prompts(tokenizer, Prompt(cache_bytes=1 << 20)).labels()
    probe = Prompts(tokenizer, Prompt(cache_bytes=1 << 20)).template._text(
        "x", None, {"enable_thinking": False}
    )
    prompt = hf.encode(probe, add_special_tokens=False)
    special = set(hf.get_added_vocab().values())
    start = max((i + 1 for i, token in enumerate(prompt) if token in special), default=0)
    tail = prompt[start:]
    for kind in Kind:
        for label in kind.labels:
            *kept, last = hf.encode(hf.decode(tail) + label, add_special_tokens=False)
            assert kept == tail
            assert labels.ids[kind][label] == last
    assert labels.reasons() == []


def test_every_label_is_found_after_the_end_of_the_prompt() -> None:
    tokenizer = small_tokenizer(small_file(*YES_NO, letters=LETTERS, tokens=(added("<x>"),)))
    prompts = [tokenizer.encode(f"<x>{content}<x>:") for content in ("x", "two words")]
    labels = find_labels(tokenizer, prompts)
    assert labels.tail == tuple(tokenizer.encode("<x>:"))
    assert labels.of(asked(Kind.CHOICE, 2)) == tuple(
        map(tokenizer.json["model"]["vocab"].get, "AB")
    )
    assert labels.of(asked(Kind.NOUL, 2)) == tuple(
        tokenizer.json["model"]["vocab"][label] for label in ("yes", "no")
    )
    assert labels.reasons() == []


def test_a_label_of_several_tokens_is_refused_with_their_number() -> None:
    tokenizer = small_tokenizer(small_file("n o", letters=LETTERS, tokens=(added("<x>"),)))
    labels = find_labels(tokenizer, [tokenizer.encode("<x>")])
    with pytest.raises(UnsuitableModel, match="label 'yes' adds 3 tokens") as refused:
        labels.of(asked(Kind.NOUL, 2))
    assert refused.value.status == 501
    assert labels.of(asked(Kind.CHOICE, 1))


def test_a_label_that_merges_with_the_end_of_the_prompt_is_refused() -> None:
    words = {"type": "Split", "pattern": {"Regex": r"[^\n]+"}, "behavior": "Isolated", "invert": 0}
    words["invert"] = False
    file = small_file(*YES_NO, ": A", letters=LETTERS, pre_tokenizer=words)
    tokenizer = small_tokenizer(file)
    labels = find_labels(tokenizer, [tokenizer.encode("x\n:")])
    with pytest.raises(UnsuitableModel, match="label 'A' merges with the end"):
        labels.of(asked(Kind.CHOICE, 2))


def test_two_labels_that_are_one_token_are_refused() -> None:
    file = small_file(*YES_NO, letters=LETTERS, normalizer={"type": "Lowercase"})
    file["normalizer"] = {"type": "Replace", "pattern": {"String": "B"}, "content": "A"}
    tokenizer = small_tokenizer(file)
    labels = find_labels(tokenizer, [tokenizer.encode(":")])
    with pytest.raises(UnsuitableModel, match="label 'B' is the same token as label 'A'"):
        labels.of(asked(Kind.CHOICE, 2))


def test_without_an_added_token_at_the_end_the_whole_prompt_is_the_context() -> None:
    tokenizer = small_tokenizer(small_file(*YES_NO, letters=LETTERS))
    prompts = [tokenizer.encode(f"{content} Answer: ") for content in ("x", "a\nlonger one")]
    labels = find_labels(tokenizer, prompts)
    assert labels.reasons() == []
    assert tokenizer.decode(labels.tail).replace(" ", "") == "Answer:"


def test_the_tail_is_no_longer_than_what_all_prompts_end_with() -> None:
    tokenizer = small_tokenizer(small_file(*YES_NO, letters=LETTERS, tokens=(added("<x>"),)))
    prompts = [tokenizer.encode(text) for text in ("x<x>a:", "x<x>b:")]
    assert find_labels(tokenizer, prompts).tail == tuple(tokenizer.encode(":"))
    same = [tokenizer.encode(text) for text in ("x<x>:", "yx<x>:")]
    assert find_labels(tokenizer, same).tail == tuple(tokenizer.encode("x<x>:"))


ENDINGS = {
    "qwen3": "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "gemma3": "<end_of_turn>\n<start_of_turn>model\n",
    "deepseek_v3": "<｜Assistant｜>",
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_tail_reaches_back_over_added_tokens_to_the_end_of_the_content(name: str) -> None:
    tokenizer = real_tokenizer(name)
    labels = Prompts(tokenizer, Prompt()).labels()
    assert tokenizer.decode(labels.tail) == ENDINGS[name]


def test_an_ending_may_reach_over_several_shared_pieces() -> None:
    spliced = Spliced((Ids.of([1, 2]), Ids.of([3]), Ids.of([])), ([4], [], [5, 4]))
    assert spliced.ends_with([2, 3, 4]) == [True, False, False]
    assert spliced.ends_with([3]) == [False, True, False]
    assert spliced.ends_with([]) == [True, True, True]
    assert spliced.ends_with([0, 1, 2, 3]) == [False, False, False]
