"""What clients and operators see while vLLM loads, does not fit, goes away or comes back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from transformers import PreTrainedTokenizerFast

from decision_proxy.app import create_app
from decision_proxy.errors import ProxyError
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.reads import served
from decision_proxy.settings import Settings
from tests.app.harness import DECISIONS, ask, decisions, get, ready, running, systemone, until
from tests.client import Reply
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm, Model

pytestmark = pytest.mark.anyio

MakeApp = Callable[..., Starlette]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "RETRY_S", 0.001)


def assert_unavailable(reply: Reply, words: str = "") -> None:
    assert reply.status == 503
    assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert "x-should-retry" not in reply.headers
    assert words in reply.message


async def reasons(app: Starlette, words: str) -> str:
    await until(lambda: words in app.state.served.trouble.message)
    reply = await get(app, "/-/ready")
    assert reply.status == 503
    assert reply.headers["retry-after"] == "2"
    [reason] = reply.body["reasons"]
    return str(reason)


async def test_it_is_alive_and_not_ready_until_vllm_is_there_then_ready_by_itself(
    make_app: MakeApp, vllm: FakeVllm
) -> None:
    vllm.ready = False
    async with running(make_app()) as app:
        assert (await get(app, "/-/live")).status == 200
        assert "not ready: the engine is starting" in await reasons(app, "starting")
        assert_unavailable(await ask(app, systemone()), "starting")
        assert_unavailable(await ask(app, decisions(), DECISIONS), "starting")
        assert (await get(app, "/-/state")).body["model"] is None
        vllm.ready = True
        await until(lambda: app.state.served.model is not None)
        assert (await get(app, "/-/ready")).body == {"ready": True, "reasons": []}
        assert (await ask(app, systemone())).status == 200
        assert (await get(app, "/-/state")).body["model"] == "tiny"


async def test_nothing_listens_there(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    async with running(make_app(upstream="http://127.0.0.1:1")) as app:
        assert await reasons(app, "cannot") == "vLLM cannot be reached"
        reply = await ask(app, systemone())
        assert_unavailable(reply)
        assert "127.0.0.1" not in reply.message
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "127.0.0.1:1" in warning.getMessage()


async def test_the_same_trouble_is_told_once_and_refused_requests_pile_nothing_up(
    make_app: MakeApp, vllm: FakeVllm, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.ready = False
    async with running(make_app()) as app:
        await reasons(app, "starting")
        seen = len(vllm.requests)
        await vllm.until(lambda: len(vllm.requests) > seen + 3)
        errors = []
        for _ in range(2):
            with pytest.raises(ProxyError) as refused:
                app.state.served.current()
            errors.append(refused.value)
        assert errors[0] is not errors[1]
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_a_key_that_vllm_refuses_is_the_operators_trouble_not_the_clients(
    make_app: MakeApp, vllm: FakeVllm
) -> None:
    vllm.api_key = "right"
    async with running(make_app(upstream_api_key="wrong-key")) as app:
        assert "DECISION_PROXY_UPSTREAM_API_KEY" in await reasons(app, "API key")
        reply = await ask(app, systemone(), authorization="Bearer right")
        assert_unavailable(reply)
        assert "wrong-key" not in str(reply)


async def test_the_proxys_key_is_for_its_own_checks_and_shows_nowhere(
    make_app: MakeApp, vllm: FakeVllm, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.api_key = "s3cret"
    caplog.set_level("DEBUG")
    async with ready(make_app(upstream_api_key="s3cret")) as app:
        assert {seen.headers.get("Authorization") for seen in vllm.requests} == {"Bearer s3cret"}
        checks = len(vllm.requests)
        refused = await ask(app, systemone())
        assert refused.status == 401
        answered = await ask(app, systemone(), authorization="Bearer s3cret")
        assert answered.status == 200
        theirs = [seen.headers.get("Authorization") for seen in vllm.requests[checks:]]
        assert theirs == [None, "Bearer s3cret"]
        state = await get(app, "/-/state")
        shown = [refused.raw, answered.raw, state.raw, repr(app.state.served.settings).encode()]
        assert not any(b"s3cret" in text for text in shown)
    assert "s3cret" not in caplog.text


async def test_logits_instead_of_logprobs_are_a_501_that_says_what_to_start(
    make_app: MakeApp, vllm: FakeVllm
) -> None:
    vllm.answers_logits = True
    async with running(make_app()) as app:
        assert "--logprobs-mode raw_logprobs" in await reasons(app, "logits")
        reply = await ask(app, systemone())
        assert reply.status == 501
        assert reply.headers["x-should-retry"] == "false"


async def test_another_tokenizer_than_the_servers_is_never_ready(
    make_app: MakeApp, vllm: FakeVllm
) -> None:
    vllm.tokenize = lambda _body: [1, 2, 3]
    async with running(make_app()) as app:
        assert "at token 0" in await reasons(app, "differs")
        assert_unavailable(await ask(app, systemone()), "differs")


def other_with_a_system_turn(body: Any) -> list[int]:
    return [1, 2, 3] if body["messages"][0]["role"] == "system" else []


async def test_a_template_that_differs_for_a_system_turn_alone_is_never_ready(
    make_app: MakeApp, vllm: FakeVllm
) -> None:
    same = vllm.tokenize
    vllm.tokenize = lambda body: other_with_a_system_turn(body) or same(body)
    async with running(make_app()) as app:
        assert "at token 0" in await reasons(app, "differs")


async def test_a_server_that_takes_no_system_turn_fits_a_template_that_takes_none(
    make_app: MakeApp, vllm: FakeVllm, tokenizer: Tokenizer
) -> None:
    refusing = "{{ raise_exception('no system turn') if messages[0].role == 'system' }}"
    template = refusing + str(tokenizer.hf.chat_template)
    vllm.refuse_system = True
    async with running(make_app()) as app:
        assert "where vLLM has []" in await reasons(app, "differs")
    own = PreTrainedTokenizerFast.from_pretrained(tokenizer.hf.name_or_path)
    own.chat_template = template
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tokenizer, "load", lambda _source, chat_template: Tokenizer(own))
        refusing_app = create_app(Settings(upstream=vllm.url, tokenizer="qwen3"))
    async with ready(refusing_app) as app:
        assert (await ask(app, systemone())).status == 200
        refused = await ask(app, systemone(instructions="Judge."))
        assert (refused.status, "no system turn" in refused.message) == (400, True)


@pytest.mark.parametrize("status", [429, 503])
async def test_overload_is_no_reason_to_be_not_ready(
    app: Starlette, vllm: FakeVllm, status: int
) -> None:
    vllm.every_read = faults.close_connection()
    assert_unavailable(await ask(app, systemone()), "closed the connection")
    already = len(vllm.reads)
    vllm.every_read = faults.status(status, "queue is full")
    await vllm.until(lambda: len(vllm.reads) > already + 2)
    assert (await get(app, "/-/ready")).status == 200
    assert (await ask(app, systemone())).status == status
    vllm.models = (Model("other"),)
    vllm.every_read = None
    await until(lambda: getattr(app.state.served.model, "name", None) == "other")


async def test_overload_at_the_first_start_is_waited_out(make_app: MakeApp, vllm: FakeVllm) -> None:
    vllm.every_read = faults.status(503, "queue is full")
    async with running(make_app()) as app:
        assert await reasons(app, "queue") == "vLLM is not ready: queue is full"
        vllm.every_read = None
        await until(lambda: app.state.served.model is not None)


async def test_without_a_tokenize_route_it_is_ready_with_a_warning(
    make_app: MakeApp, vllm: FakeVllm, caplog: pytest.LogCaptureFixture
) -> None:
    vllm.refuse_tokenize = 404
    async with ready(make_app()) as app:
        assert (await ask(app, systemone())).status == 200
    assert "could not be compared" in caplog.text


async def test_an_alias_of_no_served_model_is_told_to_the_operator(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    async with ready(make_app(aliases={"good": "tiny", "bad": "huge"})) as app:
        assert (await ask(app, systemone(model="good"))).body["model"] == "tiny"
        assert (await ask(app, systemone(model="bad"))).status == 404
    assert "alias 'bad' names 'huge'" in caplog.text
    assert "'good'" not in caplog.text


async def test_vllm_back_with_another_model_is_found_by_the_first_read_that_fails(
    app: Starlette, vllm: FakeVllm
) -> None:
    vllm.models = (Model("other"),)
    assert_unavailable(await ask(app, systemone()), "changing its model")
    await until(lambda: getattr(app.state.served.model, "name", None) == "other")
    assert (await ask(app, systemone())).body["model"] == "other"
    assert (await ask(app, systemone(model="tiny"))).status == 404


async def test_vllm_back_with_another_model_is_found_without_any_read(
    make_app: MakeApp, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "WATCH_S", 0.001)
    async with ready(make_app()) as app:
        vllm.models = (Model("other"), Model("tiny"))
        await until(lambda: app.state.served.model.name == "other")
        assert (await get(app, "/-/ready")).status == 200


async def test_vllm_back_with_another_template_is_not_ready(app: Starlette, vllm: FakeVllm) -> None:
    vllm.tokenize = lambda _body: [1, 2, 3]
    vllm.every_read = faults.close_connection()
    assert_unavailable(await ask(app, systemone()), "closed the connection")
    vllm.every_read = None
    await reasons(app, "differs")
    assert_unavailable(await ask(app, systemone()), "differs")


async def test_vllm_that_goes_away_is_noticed_and_found_again(
    make_app: MakeApp, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "WATCH_S", 0.001)
    async with ready(make_app()) as app:
        vllm.ready = False
        await reasons(app, "starting")
        vllm.ready = True
        await until(lambda: app.state.served.model is not None)
        assert (await ask(app, systemone())).status == 200


async def test_vllm_too_busy_to_say_who_it_is_stays_in_use(
    app: Starlette, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_args: Any, **_options: Any) -> Any:
        raise served.UpstreamTimeout("vLLM did not answer in time")

    looked = asyncio.Event()
    pause = served.Served._pause

    async def told(self: served.Served, seconds: float) -> None:
        looked.set()
        await pause(self, seconds)

    monkeypatch.setattr(served, "discover", busy)
    monkeypatch.setattr(served.Served, "_pause", told)
    app.state.served.doubt()
    await looked.wait()
    assert (await get(app, "/-/ready")).status == 200


async def test_an_unforeseen_failure_while_looking_is_logged_and_tried_again(
    make_app: MakeApp,
    vllm: FakeVllm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    build = served.build

    def fail(*_args: Any) -> Any:
        monkeypatch.setattr(served, "build", build)
        raise ZeroDivisionError

    monkeypatch.setattr(served, "build", fail)
    async with ready(make_app()) as app:
        assert (await ask(app, systemone())).status == 200
    assert caplog.text.count("raise ZeroDivisionError") == 1


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (faults.status(503, "queue is full", retry_after="7"), 503),
        (faults.status(429, "slow down"), 429),
        (faults.status(500), 502),
        (faults.status(401, "Unauthorized"), 401),
        (faults.status(400, "priority scheduling is off", param="priority"), 400),
        (faults.raw(b"garbage"), 502),
        (faults.redirect("http://evil.example/"), 502),
        (faults.close_connection(), 503),
        (faults.die_in_body(), 502),
    ],
    ids=["503", "429", "500", "401", "400", "garbage", "redirect", "closed", "died"],
)
async def test_a_read_that_fails_is_told_as_what_it_is(
    app: Starlette, vllm: FakeVllm, fault: Any, status: int
) -> None:
    vllm.every_read = fault
    reply = await ask(app, systemone())
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert ("retry-after" in reply.headers) == (status in {429, 503})
    assert "evil.example" not in str(reply)
    vllm.every_read = None


async def test_a_server_that_hangs_is_a_504(make_app: MakeApp, vllm: FakeVllm) -> None:
    async with ready(make_app(reads={"timeout_s": 1.0})) as app:
        vllm.every_read = faults.hang()
        assert (await ask(app, systemone())).status == 504


async def test_an_upstream_below_a_path_is_asked_there(
    make_app: MakeApp, vllm: FakeVllm, tokenizer: Tokenizer
) -> None:
    async with running(make_app(upstream=f"{vllm.url}/inner/")) as app:
        await reasons(app, "404")
    assert {seen.path for seen in vllm.requests} == {"/inner/v1/models"}
