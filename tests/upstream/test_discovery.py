import json
import socket

import pytest

from decision_proxy.errors import UpstreamBroken, UpstreamRefused, UpstreamUnavailable
from decision_proxy.settings import Reads
from decision_proxy.upstream.discovery import ServedModel, Upstream, discover, server_prompt_ids
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm, Model

pytestmark = pytest.mark.anyio

MESSAGES = [{"role": "user", "content": "hé"}]


async def found(vllm: FakeVllm, api_key: str | None = None) -> Upstream:
    return await discover(vllm.url, api_key=api_key, settings=Reads())


async def prompt_ids(vllm: FakeVllm) -> list[int] | None:
    return await server_prompt_ids(
        vllm.url,
        MESSAGES,
        {"enable_thinking": False},
        model="tiny",
        api_key=None,
        settings=Reads(),
    )


async def test_models_version_lists_and_logprobs_are_found(vllm: FakeVllm) -> None:
    upstream = await found(vllm)
    assert upstream == Upstream(
        models=(ServedModel("tiny", "/models/tiny", 8192),), version="0.33.0", takes_lists=True
    )
    assert upstream.logprobs_fault is None


async def test_an_adapter_names_its_base_model_and_shares_its_length(vllm: FakeVllm) -> None:
    adapter = Model("poet", "/loras/poet", max_model_len=None, parent="tiny")
    vllm.models = [adapter, Model()]
    assert (await found(vllm)).models == (
        ServedModel("tiny", "/models/tiny", 8192),
        ServedModel("poet", "/loras/poet", 8192, parent="tiny"),
    )
    assert vllm.reads[0].body["model"] == "tiny"


async def test_lists_are_found_by_asking_with_one(vllm: FakeVllm) -> None:
    await found(vllm)
    [probe] = vllm.reads
    assert [len(prompt) for prompt in probe.body["prompt"]] == [1, 1]
    assert probe.body["max_tokens"] == 1


async def test_a_server_that_refuses_lists_is_asked_again_without(vllm: FakeVllm) -> None:
    vllm.takes_lists = False
    upstream = await found(vllm)
    assert not upstream.takes_lists
    assert upstream.logprobs_fault is None
    assert len(vllm.reads) == 2


@pytest.mark.parametrize("takes_lists", [True, False])
async def test_logits_instead_of_logprobs_are_found_with_the_remedy(
    vllm: FakeVllm, takes_lists: bool
) -> None:
    vllm.takes_lists, vllm.answers_logits = takes_lists, True
    upstream = await found(vllm)
    assert upstream.takes_lists is takes_lists
    assert upstream.logprobs_fault is not None
    assert "--logprobs-mode raw_logprobs" in (upstream.logprobs_fault or "")


async def test_a_server_that_does_not_know_the_labels_is_found(vllm: FakeVllm) -> None:
    vllm.every_read = faults.without_label(77)
    assert (await found(vllm)).logprobs_fault == "vLLM's answer leaves out token 77"


async def test_a_server_that_refuses_every_read_says_why(vllm: FakeVllm) -> None:
    vllm.every_read = faults.status(400, "not a generative model")
    with pytest.raises(UpstreamRefused, match="not a generative model"):
        await found(vllm)


async def test_an_older_server_without_a_version_is_fine(vllm: FakeVllm) -> None:
    vllm.version = None
    assert (await found(vllm)).version is None


async def test_a_server_that_is_loading_is_unavailable(vllm: FakeVllm) -> None:
    vllm.ready = False
    with pytest.raises(UpstreamUnavailable, match="the engine is starting"):
        await found(vllm)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(UpstreamUnavailable):
            await discover(url, api_key=None, settings=Reads())


@pytest.mark.parametrize("api_key", [None, "wrong"])
async def test_a_missing_key_says_which_setting_holds_it(
    vllm: FakeVllm, api_key: str | None
) -> None:
    vllm.api_key = "secret"
    with pytest.raises(UpstreamRefused, match="DECISION_PROXY_UPSTREAM_API_KEY") as caught:
        await found(vllm, api_key)
    assert caught.value.status == 401


async def test_the_right_key_opens_everything(vllm: FakeVllm) -> None:
    vllm.api_key = "secret"
    assert (await found(vllm, "secret")).logprobs_fault is None


async def test_a_server_without_models_is_broken(vllm: FakeVllm) -> None:
    vllm.models = []
    with pytest.raises(UpstreamBroken, match="no model"):
        await found(vllm)


async def test_the_servers_own_ids_come_from_its_template_as_we_would_fill_it(
    vllm: FakeVllm,
) -> None:
    vllm.tokenize = lambda body: [1, 2, 3]
    assert await prompt_ids(vllm) == [1, 2, 3]
    assert json.loads(vllm.requests[0].raw) == {
        "model": "tiny",
        "messages": MESSAGES,
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize("code", [404, 405, 501])
async def test_a_server_that_does_not_tokenize_gives_no_ids(vllm: FakeVllm, code: int) -> None:
    vllm.refuse_tokenize = code
    assert await prompt_ids(vllm) is None


async def test_a_template_that_refuses_the_chat_says_why(vllm: FakeVllm) -> None:
    vllm.refuse_tokenize = 400
    with pytest.raises(UpstreamRefused):
        await prompt_ids(vllm)
