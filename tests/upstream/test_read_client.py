import logging

import pytest

from decision_proxy.settings import Reads
from decision_proxy.upstream.reads import ReadClient, ReadContext
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm
from tests.upstream.asking import CONTEXT, SHARED, logprobs, read

pytestmark = pytest.mark.anyio

LISTS = pytest.mark.parametrize("takes_lists", [True, False], ids=["list", "single"])


@LISTS
async def test_each_question_gets_the_logprobs_of_its_own_labels_in_its_order(
    vllm: FakeVllm, client: ReadClient, takes_lists: bool
) -> None:
    reads = [read(1, labels=(33, 32)), read(2, labels=(34,)), read(3, labels=(9, 8, 7))]
    found = await client.read(reads, CONTEXT, takes_lists=takes_lists)
    assert [result.logprobs for result in found] == [
        logprobs((*SHARED, 1), (33, 32)),
        logprobs((*SHARED, 2), (34,)),
        logprobs((*SHARED, 3), (9, 8, 7)),
    ]
    assert len(vllm.reads) == (1 if takes_lists else 3)


@LISTS
async def test_a_question_with_300_labels_is_merged_from_three_requests(
    vllm: FakeVllm, client: ReadClient, takes_lists: bool
) -> None:
    many = tuple(range(1000, 1300))
    reads = [read(1), read(2, labels=many), read(3)]
    found = await client.read(reads, CONTEXT, takes_lists=takes_lists)
    assert found[1].logprobs == logprobs((*SHARED, 2), many)
    assert found[1].output_tokens == 1
    assert found[2].logprobs == logprobs((*SHARED, 3), (32, 33))
    assert len(vllm.reads) == (3 if takes_lists else 5)


async def test_no_question_is_no_request(vllm: FakeVllm, client: ReadClient) -> None:
    assert await client.read([], CONTEXT, takes_lists=True) == []
    assert vllm.requests == []


async def test_answers_are_told_apart_by_their_index(vllm: FakeVllm, client: ReadClient) -> None:
    vllm.every_read = faults.edited(lambda answer: answer["choices"].reverse())
    found = await client.read([read(1), read(2)], CONTEXT, takes_lists=True)
    assert [result.logprobs for result in found] == [
        logprobs((*SHARED, 1), (32, 33)),
        logprobs((*SHARED, 2), (32, 33)),
    ]


async def test_the_sampled_token_and_the_tokens_come_with_the_logprobs(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.probabilities = lambda prompt: {32: 0.1, 151645: 0.8}
    reads = [read(*range(20)), read(*range(40))]
    found = await client.read(reads, CONTEXT, takes_lists=False)
    assert [result.sampled_id for result in found] == [151645, 151645]
    assert [result.output_tokens for result in found] == [1, 1]
    assert [result.cached_tokens for result in found] == [16, 32]


async def test_of_a_list_only_the_last_prompt_says_what_was_cached(
    vllm: FakeVllm, client: ReadClient
) -> None:
    found = await client.read([read(*range(20))] * 3, CONTEXT, takes_lists=True)
    assert [result.cached_tokens for result in found] == [0, 0, 16]


async def test_a_server_that_does_not_tell_what_was_cached_is_fine(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.every_read = faults.edited(lambda answer: answer["usage"].pop("prompt_tokens_details"))
    [found] = await client.read([read(1)], CONTEXT, takes_lists=True)
    assert found.cached_tokens == 0


async def test_a_label_without_any_mass_stays_at_its_floor(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.probabilities = lambda prompt: {32: 1.0, 33: 0.0}
    [found] = await client.read([read(1)], CONTEXT, takes_lists=True)
    assert found.logprobs == (0.0, -9999.0)


async def test_shortest_decimals_are_the_float32_they_stand_for(
    vllm: FakeVllm, client: ReadClient
) -> None:
    def shortest(found: dict[str, float]) -> None:
        found.update({token: float(f"{value:.9g}") for token, value in found.items()})

    [exact] = await client.read([read(1)], CONTEXT, takes_lists=True)
    vllm.every_read = faults.edited_logprobs(shortest)
    [found] = await client.read([read(1)], CONTEXT, takes_lists=True)
    assert found == exact


async def test_every_request_has_an_id_of_its_own_even_for_two_decisions_with_one_id(
    vllm: FakeVllm, client: ReadClient
) -> None:
    await client.read([read(1), read(2)], CONTEXT, takes_lists=False)
    await client.read([read(1), read(2)], CONTEXT, takes_lists=False)
    ids = [seen.body["request_id"] for seen in vllm.reads]
    assert len(set(ids)) == 4
    assert all(name.startswith("decision-1-") for name in ids)


async def test_the_contexts_headers_travel_with_every_read(
    vllm: FakeVllm, client: ReadClient
) -> None:
    headers = {"Authorization": "Bearer k", "traceparent": "00-1-2-01"}
    context = ReadContext("tiny", "d", headers=headers)
    await client.read([read(1), read(2)], context, takes_lists=False)
    for seen in vllm.reads:
        assert {**seen.headers, **headers, "Content-Type": "application/json"} == seen.headers


async def test_environment_proxies_are_ignored(
    vllm: FakeVllm, client: ReadClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert await client.read([read(1)], CONTEXT, takes_lists=True)


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.every_read = faults.with_headers({"Set-Cookie": "user=1; Path=/"})
    await client.read([read(1)], CONTEXT, takes_lists=True)
    await client.read([read(1)], CONTEXT, takes_lists=True)
    assert "Cookie" not in vllm.reads[1].headers


async def test_a_url_may_end_in_a_slash(vllm: FakeVllm) -> None:
    async with ReadClient(f"{vllm.url}/", Reads()) as client:
        assert await client.read([read(1)], CONTEXT, takes_lists=True)


async def test_a_list_of_megabytes_is_sent_without_a_warning(
    vllm: FakeVllm, client: ReadClient, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.models[0].max_model_len = None
    long = tuple(range(100_000, 140_000))
    reads = [read(token, shared=long) for token in range(8)]
    with caplog.at_level(logging.WARNING):
        found = await client.read(reads, CONTEXT, takes_lists=True)
    assert found[7].logprobs == logprobs((*long, 7), (32, 33))
    assert len(vllm.reads[0].raw) > 2_000_000
    assert caplog.records == []


async def test_connections_are_used_again(vllm: FakeVllm, client: ReadClient) -> None:
    for _ in range(3):
        await client.read([read(1)], CONTEXT, takes_lists=True)
    assert [seen.reused_connection for seen in vllm.reads] == [False, True, True]
