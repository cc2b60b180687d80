"""Answers through the proxy are vLLM's own, number for number."""

from typing import Any

import pytest

from decision_proxy.embedded.server import VllmServer
from tests.client import call
from tests.prompt.nasty import ENDINGS
from tests.vllm.fixed_set import five_questions, requests, ticket

pytestmark = pytest.mark.vllm
NOISE = 2e-3


def ask_both(native: VllmServer, proxy: str, body: Any) -> tuple[Any, Any]:
    """The native answer on a warm state, then the proxy's; asked one after the other."""
    call(native.url, "/v1/systemone", body)
    theirs = call(native.url, "/v1/systemone", body)
    ours = call(proxy, "/v1/systemone", body)
    assert (theirs.status, ours.status) == (200, 200), (theirs.raw, ours.raw)
    return theirs.body, ours.body


def as_of_0_33(names: list[str]) -> list[str]:
    """vLLM 0.32 has no `joint` yet."""
    return names if "joint" in names else [*names, "joint"]


def assert_same(theirs: Any, ours: Any, *, within: float) -> int:
    """Everything but the numbers' last bits is equal; returns how many answers are identical."""
    assert list(ours) == as_of_0_33(list(theirs))
    assert ours["object"] == theirs["object"]
    assert ours["usage"] == theirs["usage"]
    assert list(ours["answers"]) == list(theirs["answers"])
    assert list(ours["diagnostics"]) == list(theirs["diagnostics"])
    identical = 0
    for id_, answer in theirs["answers"].items():
        found = ours["answers"][id_]
        assert list(found) == list(answer)
        assert list(found["probabilities"]) == list(answer["probabilities"])
        for option, probability in answer["probabilities"].items():
            assert found["probabilities"][option] == pytest.approx(probability, abs=within)
        said, said_by_ours = theirs["diagnostics"][id_], ours["diagnostics"][id_]
        assert list(said_by_ours) == list(said)
        assert said_by_ours["label_mass"] == pytest.approx(said["label_mass"], abs=within)
        identical += answer == found and said == said_by_ours
    return identical


def test_the_fixed_set_of_317_answers_is_vllms_own(
    real_vllm_qwen3: VllmServer, qwen3_proxy: str
) -> None:
    asked = identical = 0
    for _, body in requests(longest=7000):
        theirs, ours = ask_both(real_vllm_qwen3, qwen3_proxy, body)
        identical += assert_same(theirs, ours, within=NOISE)
        asked += len(body["questions"])
    assert asked == 317
    print(f"bit-identical: {identical} of {asked}")
    assert identical >= 300


def test_one_question_at_a_time_is_bit_identical(
    real_vllm_qwen3: VllmServer, qwen3_proxy: str
) -> None:
    for number in range(4):
        for id_, question in five_questions().items():
            body = {"state": ticket(number), "questions": {id_: question}}
            theirs, ours = ask_both(real_vllm_qwen3, qwen3_proxy, body)
            assert assert_same(theirs, ours, within=0) == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_nasty_states_take_the_same_tokens_and_answers(
    real_vllm_qwen3: VllmServer, qwen3_proxy: str, ending: str
) -> None:
    questions = {
        "plain": {"type": "noul", "instructions": "Is it late?"},
        "bare": {"type": "choice", "criteria": {"A": None, "ü\u0301": "<|im_end|>"}},
        "odd": {"type": "score", "instructions": "  \u0301 how?", "criteria": ["1", "\n", "x"]},
    }
    body = {"state": ticket(1) * 30 + ending, "questions": questions}
    theirs, ours = ask_both(real_vllm_qwen3, qwen3_proxy, body)
    assert_same(theirs, ours, within=NOISE)


def test_template_options_and_salts_travel_as_they_do_natively(
    real_vllm_qwen3: VllmServer, qwen3_proxy: str
) -> None:
    body = {
        "state": ticket(2),
        "questions": five_questions(),
        "chat_template_kwargs": {"enable_thinking": False, "unused": [1]},
        "cache_salt": "tenant-1",
        "request_id": "mine",
    }
    theirs, ours = ask_both(real_vllm_qwen3, qwen3_proxy, body)
    assert_same(theirs, ours, within=NOISE)
    assert ours["id"] == theirs["id"] == "decision-mine"
