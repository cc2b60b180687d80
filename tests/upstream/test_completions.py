from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.upstream.completions import (
    Prompt,
    Read,
    ReadContext,
    batches,
    request_body,
)
from tests.upstream.asking import CONTEXT, SHARED, read

IDS = st.lists(st.integers(0, 200_000), max_size=12)


def bodies(reads: list[Read], *, takes_lists: bool, **limits: int) -> list[dict[str, Any]]:
    bounds = {"max_ids": 128, "list_bytes": 1 << 20, **limits}
    found = batches(reads, takes_lists=takes_lists, **bounds)
    return [orjson.loads(b"".join(request_body(batch, CONTEXT, "id"))) for batch in found]


def test_a_request_says_everything_that_decides_the_answer_and_nothing_else() -> None:
    assert bodies([read(1, 2, labels=(7, 5, 9))], takes_lists=False) == [
        {
            "model": "tiny",
            "prompt": [*SHARED, 1, 2],
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 3,
            "logprob_token_ids": [7, 5, 9],
            "return_tokens_as_token_ids": True,
            "top_p": 1,
            "top_k": 0,
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "n": 1,
            "request_id": "id",
        }
    ]


def test_cache_salt_and_priority_travel_when_they_are_set() -> None:
    context = ReadContext("tiny", "d", cache_salt="s", priority=-3)
    [batch] = batches([read(1)], takes_lists=True, max_ids=128, list_bytes=1000)
    body = orjson.loads(b"".join(request_body(batch, context, "id")))
    assert (body["cache_salt"], body["priority"]) == ("s", -3)


@given(shared=IDS, tail=IDS)
def test_a_prompt_is_its_shared_ids_and_its_tail_whichever_is_empty(
    shared: list[int], tail: list[int]
) -> None:
    prompt = Prompt(",".join(map(str, shared)).encode(), len(shared), tuple(tail))
    [body] = bodies([Read(prompt, (1,))], takes_lists=True)
    assert body["prompt"] == shared + tail
    assert prompt.length == len(shared) + len(tail)


def test_all_questions_travel_as_one_list_that_asks_for_the_labels_of_any() -> None:
    [body] = bodies([read(1, labels=(7, 5)), read(2, labels=(5, 9))], takes_lists=True)
    assert body["prompt"] == [[*SHARED, 1], [*SHARED, 2]]
    assert body["logprob_token_ids"] == [7, 5, 9]
    assert body["logprobs"] == 3


def test_a_server_without_lists_gets_each_question_alone() -> None:
    found = bodies([read(1, labels=(7, 5)), read(2, labels=(5, 9))], takes_lists=False)
    assert [body["prompt"] for body in found] == [[*SHARED, 1], [*SHARED, 2]]
    assert [body["logprob_token_ids"] for body in found] == [[7, 5], [5, 9]]


def test_a_long_shared_part_is_sent_as_it_is_and_never_copied() -> None:
    long = tuple(range(100_000, 110_000))
    reads = [read(token, shared=long) for token in (1, 2)]
    reads[1] = Read(Prompt(reads[0].prompt.shared, len(long), (2,)), (32, 33))
    [batch] = batches(reads, takes_lists=True, max_ids=128, list_bytes=1 << 20)
    pieces = request_body(batch, CONTEXT, "id")
    assert [piece is reads[0].prompt.shared for piece in pieces] == [False, True] * 2 + [False]
    assert orjson.loads(b"".join(pieces))["prompt"] == [[*long, 1], [*long, 2]]


def test_a_list_stays_below_its_size() -> None:
    reads = [read(token) for token in range(10)]
    found = bodies(reads, takes_lists=True, list_bytes=4 * reads[0].prompt.length * 7)
    assert len(found) > 1
    assert [prompt for body in found for prompt in body["prompt"]] == [
        [*SHARED, token] for token in range(10)
    ]


def test_a_prompt_beyond_the_size_of_a_list_travels_alone() -> None:
    found = bodies([read(1), read(2)], takes_lists=True, list_bytes=1)
    assert [body["prompt"] for body in found] == [[*SHARED, 1], [*SHARED, 2]]


def test_labels_beyond_one_request_are_asked_in_several_of_the_same_prompt() -> None:
    found = bodies([read(1, labels=tuple(range(5)))], takes_lists=False, max_ids=2)
    assert [body["logprob_token_ids"] for body in found] == [[0, 1], [2, 3], [4]]
    assert [body["prompt"] for body in found] == [[*SHARED, 1]] * 3


def test_questions_with_the_same_many_labels_share_requests() -> None:
    reads = [read(token, labels=tuple(range(5))) for token in (1, 2)]
    found = bodies(reads, takes_lists=True, max_ids=3)
    assert [body["logprob_token_ids"] for body in found] == [[0, 1, 2], [3, 4]]
    assert [body["prompt"] for body in found] == [[[*SHARED, 1], [*SHARED, 2]]] * 2


@pytest.mark.parametrize("takes_lists", [True, False])
@given(
    labels=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True), max_size=8),
    max_ids=st.integers(1, 12),
    list_bytes=st.integers(1, 400),
)
def test_every_label_of_every_question_is_asked_once_and_no_request_asks_too_much(
    takes_lists: bool, labels: list[list[int]], max_ids: int, list_bytes: int
) -> None:
    reads = [read(number, labels=tuple(ids)) for number, ids in enumerate(labels)]
    found = batches(reads, takes_lists=takes_lists, max_ids=max_ids, list_bytes=list_bytes)
    pieces = [piece for batch in found for piece in batch.pieces]
    asked = {
        number: [
            label
            for piece in sorted(pieces, key=lambda piece: piece.start)
            if piece.read == number
            for label in piece.label_ids
        ]
        for number in range(len(reads))
    }
    assert asked == dict(enumerate(labels))
    assert all(len(batch.ids) <= max_ids for batch in found)
    assert all(
        set(piece.label_ids) <= batch.ids.keys() for batch in found for piece in batch.pieces
    )
    assert all(batch.bytes <= list_bytes or len(batch.pieces) == 1 for batch in found)
