"""Whatever goes wrong upstream is one ProxyError that says whose fault it is."""

import math
import socket
from typing import Any

import pytest

from decision_proxy.errors import (
    ProxyError,
    UnsuitableModel,
    UpstreamBroken,
    UpstreamOverloaded,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from decision_proxy.settings import Reads
from decision_proxy.upstream.reads import Prompt, Read, ReadClient, ReadContext
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm, Fault
from tests.upstream.asking import CONTEXT, read

pytestmark = pytest.mark.anyio


def set_logprob(value: Any) -> Fault:
    return faults.edited_logprobs(lambda found: found.update({"token_id:32": value}))


def set_all_logprobs(value: float) -> Fault:
    return faults.edited_logprobs(lambda found: found.update(dict.fromkeys(found, value)))


def fail_generation(answer: dict[str, Any]) -> None:
    answer["choices"][0]["finish_reason"] = "error"


def repeat_an_index(answer: dict[str, Any]) -> None:
    answer["choices"][1]["index"] = 0


def sample_nothing(answer: dict[str, Any]) -> None:
    answer["choices"][0]["logprobs"].update(tokens=[], top_logprobs=[])


def error_inside(answer: dict[str, Any]) -> None:
    answer.update(error={"message": "boom"})


BROKEN = {
    "a label is missing": (faults.without_label(33), "leaves out token 33"),
    "a logprob is NaN": (set_logprob(math.nan), "not JSON"),
    "a logprob is null": (set_logprob(None), "not a number"),
    "a logprob is text": (set_logprob("-1"), "not a number"),
    "a logprob is true": (set_logprob(True), "not a number"),
    "a logprob is above 0": (set_logprob(0.01), "logits"),
    "the labels have more mass than 1": (set_all_logprobs(-0.5), "logits"),
    "the body is not JSON": (faults.raw(b"<html>busy</html>"), "not JSON"),
    "the body is empty": (faults.raw(b""), "not JSON"),
    "the body is a list": (faults.raw(b"[]"), "not a JSON object"),
    "the body has no choices": (faults.raw(b"{}"), "shape"),
    "choices are missing": (faults.edited(lambda a: a["choices"].pop()), "1 choices to 2"),
    "there is a choice too many": (
        faults.edited(lambda a: a["choices"].append(a["choices"][0])),
        "3 choices to 2",
    ),
    "two choices have one index": (faults.edited(repeat_an_index), "2 choices to 2"),
    "a choice is null": (faults.edited(lambda a: a.update(choices=[None, None])), "shape"),
    "there are no logprobs": (
        faults.edited(lambda a: a["choices"][0].update(logprobs=None)),
        "shape",
    ),
    "no token was sampled": (faults.edited(sample_nothing), "shape"),
    "a generation failed": (faults.edited(fail_generation), "failed"),
    "an error comes with status 200": (faults.edited(error_inside), "boom"),
    "the status is 500": (faults.status(500, "engine died"), "500: engine died"),
    "the status is 502 in plain text": (faults.raw(b"bad gateway", code=502), "bad gateway"),
    "the answer is a redirect": (faults.redirect("http://inner/"), "307"),
    "the body ends early": (faults.die_in_body(), "before it is complete"),
    "the answer is not HTTP": (faults.not_http(), "not HTTP"),
}


async def failure(client: ReadClient, *, context: ReadContext = CONTEXT) -> ProxyError:
    with pytest.raises(ProxyError) as caught:
        await client.read([read(1), read(2)], context, takes_lists=True)
    return caught.value


@pytest.mark.parametrize(("fault", "words"), BROKEN.values(), ids=BROKEN)
async def test_an_answer_that_makes_no_sense_is_a_broken_upstream(
    vllm: FakeVllm, client: ReadClient, fault: Fault, words: str
) -> None:
    vllm.every_read = fault
    error = await failure(client)
    assert isinstance(error, UpstreamBroken)
    assert words in error.message
    assert len(vllm.reads) == 1


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 413, 422])
async def test_a_refusal_keeps_the_status_the_words_and_the_field(
    vllm: FakeVllm, client: ReadClient, code: int
) -> None:
    vllm.every_read = faults.status(code, "prompt is too long", param="prompt")
    error = await failure(client)
    assert isinstance(error, UpstreamRefused)
    assert (error.status, error.message, error.param) == (code, "prompt is too long", "prompt")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'"no"', "no"),
        (b"plain \xff words", "plain � words"),
        (b"", "vLLM answered 404"),
    ],
)
async def test_a_refusal_is_read_in_every_form_that_servers_use(
    vllm: FakeVllm, client: ReadClient, body: bytes, words: str
) -> None:
    vllm.every_read = faults.raw(body, code=404)
    assert (await failure(client)).message == words


async def test_a_refusal_with_a_status_nobody_knows_is_a_400(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.every_read = faults.raw(b"", code=499)
    assert (await failure(client)).status == 400


async def test_an_unknown_model_is_vllms_own_404(vllm: FakeVllm, client: ReadClient) -> None:
    error = await failure(client, context=ReadContext("nope", "d"))
    assert (error.status, error.param) == (404, "model")


async def test_what_vllm_cannot_do_for_this_model_is_an_unsuitable_model(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.every_read = faults.status(501, "no Completions API")
    error = await failure(client)
    assert isinstance(error, UnsuitableModel)
    assert error.message == "no Completions API"


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [(None, 1), ("7", 7), ("60", 60), ("61", 60), ("0", 1), ("-5", 1), ("soon", 1), ("9" * 99, 60)],
)
async def test_overload_keeps_its_status_and_a_wait_of_at_most_a_minute(
    vllm: FakeVllm, client: ReadClient, code: int, retry_after: str | None, seconds: int
) -> None:
    vllm.every_read = faults.status(code, "queue is full", retry_after=retry_after)
    error = await failure(client)
    assert isinstance(error, UpstreamOverloaded)
    assert (error.status, error.retry_after_s) == (code, seconds)
    assert len(vllm.reads) == 1


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with ReadClient(f"http://127.0.0.1:{bound.getsockname()[1]}", Reads()) as client:
            error = await failure(client)
    assert isinstance(error, UpstreamUnavailable)
    assert error.message == "vLLM cannot be reached"


async def test_a_server_that_accepts_nobody_is_unavailable() -> None:
    with socket.socket() as full, socket.socket() as first:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        first.connect(full.getsockname())
        settings = Reads(connect_timeout_s=0.01)
        async with ReadClient(f"http://127.0.0.1:{full.getsockname()[1]}", settings) as client:
            error = await failure(client)
    assert isinstance(error, UpstreamUnavailable)
    assert "in time" in error.message


@pytest.mark.parametrize(
    "fault", [faults.close_connection(), faults.reset_connection()], ids=["closed", "reset"]
)
async def test_a_new_connection_lost_before_the_answer_is_unavailable_and_not_tried_again(
    vllm: FakeVllm, client: ReadClient, fault: Fault
) -> None:
    vllm.every_read = fault
    assert isinstance(await failure(client), UpstreamUnavailable)
    assert len(vllm.reads) == 1


async def test_an_answer_that_does_not_come_is_a_timeout(vllm: FakeVllm) -> None:
    vllm.every_read = faults.hang()
    async with ReadClient(vllm.url, Reads(timeout_s=0.5)) as client:
        assert isinstance(await failure(client), UpstreamTimeout)
    await vllm.until(lambda: vllm.reads[0].aborted)


async def test_a_request_that_the_server_never_takes_in_is_a_timeout() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        huge = Read(Prompt(b"1" * 16_000_000, 1, ()), (1,))
        async with ReadClient(url, Reads(timeout_s=0.5)) as client:
            with pytest.raises(UpstreamTimeout):
                await client.read([huge], CONTEXT, takes_lists=True)


async def test_the_time_limit_does_not_run_while_a_read_waits_for_its_turn(
    vllm: FakeVllm,
) -> None:
    vllm.every_read = faults.delayed(0.3)
    async with ReadClient(vllm.url, Reads(connections=1, timeout_s=1.5)) as client:
        reads = [read(token) for token in range(6)]
        assert len(await client.read(reads, CONTEXT, takes_lists=False)) == 6


async def test_the_messages_do_not_show_where_vllm_is(client: ReadClient, vllm: FakeVllm) -> None:
    vllm.every_read = faults.close_connection()
    assert "127.0.0.1" not in (await failure(client)).message
