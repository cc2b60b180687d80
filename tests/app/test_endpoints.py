"""The two routes: what is answered, what is refused, and always in JSON with an id."""

import json
from typing import Any

import pytest
from starlette.applications import Starlette

from decision_proxy.prompt.splice import Splicer
from decision_proxy.wire.endpoint import FEW_QUESTIONS, SMALL_BODY_BYTES
from decision_proxy.wire.responses import MAX_ID_CHARS
from tests.app.harness import (
    DECISIONS,
    SYSTEMONE,
    Request,
    ask,
    decisions,
    get,
    questions,
    ready,
    systemone,
)
from tests.client import Reply
from tests.fakes.vllm import FakeVllm

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


def options(**given: Any) -> Json:
    return systemone(chat_template_kwargs=given)


def asked(kind: str, criteria: Any) -> Json:
    return {"state": "x", "questions": {"q": {"type": kind, "criteria": criteria}}}


LONG = "m" * 3_000_000
WRONG: dict[str, tuple[Json | bytes, str]] = {
    "its own template": (options(chat_template="{{ 7*7 }}"), "chat_template_kwargs"),
    "its own messages": (options(messages=[]), "chat_template_kwargs"),
    "a generation prompt": (options(add_generation_prompt=False), "chat_template_kwargs"),
    "thinking as text": (options(enable_thinking="false"), "enable_thinking"),
    "thinking as a number": (options(enable_thinking=0), "enable_thinking"),
    "numbers that collide": (asked("score", [1, "1"]), "duplicate"),
    "one level": (asked("score", ["low"]), "levels"),
    "a lone surrogate": (b'{"state": "a\\ud83d", "questions": {}}', "state"),
    "a lone surrogate as id": (
        b'{"state": "a", "questions": {"\\ud83d": {"type": "noul"}}}',
        "surrogate",
    ),
    "NaN": (b'{"state": NaN}', "NaN"),
    "1e400": (b'{"state": 1e400}', "too large"),
    "5000 digits": (b'{"state": ' + b"9" * 5000 + b"}", "digits"),
    "200k brackets": (b'{"state": ' + b"[" * 200_000, "nested"),
    "no salt": (systemone(cache_salt=""), "cache_salt"),
    "a salt with @": (systemone(cache_salt="a@b"), "cache_salt"),
    "a salt of 129 characters": (systemone(cache_salt="s" * 129), "cache_salt"),
    "an empty body": (b"", "not JSON"),
    "a list": (b"[]", "object"),
    "UTF-16": ('{"state": 1}'.encode("utf-16"), "UTF-8"),
    "a state too long": ({"state": "late " * 20_000, "questions": questions()}, "maximum context"),
    "quadratic input": ({"state": "a" * 400_000, "questions": questions()}, "maximum context"),
    "401 questions": (systemone(401), "at most 400"),
    "a huge type": (asked(LONG, None), "unknown question type"),
    "a huge id": ({"state": "x", "questions": {LONG: {"type": "noul", "x": 1}}}, "unknown field"),
}


def assert_refused(reply: Reply, status: int, words: str) -> None:
    assert reply.status == status, reply.raw[:500]
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"] == reply.headers["x-typesafe-request-id"] != ""
    assert reply.headers["x-should-retry"] == "false"
    assert words in json.dumps(reply.body)
    assert len(reply.raw) < 10_000


@pytest.mark.parametrize(("body", "words"), WRONG.values(), ids=WRONG)
async def test_a_clients_mistake_is_a_400_that_names_it(
    app: Starlette, vllm: FakeVllm, body: Json | bytes, words: str
) -> None:
    before = len(vllm.reads)
    reply = await ask(app, body)
    assert_refused(reply, 400, words)
    assert set(reply.body["error"]) == {"message", "type", "param", "code"}
    assert len(vllm.reads) == before


@pytest.mark.parametrize(("body", "words"), WRONG.values(), ids=WRONG)
async def test_in_typesafes_dialect_it_is_a_422_with_a_detail(
    typesafe_app: Starlette, body: Json | bytes, words: str
) -> None:
    reply = await ask(typesafe_app, body)
    assert_refused(reply, 422, words)
    [detail] = reply.body["detail"]
    assert set(detail) == {"loc", "msg", "type"}
    assert detail["loc"][0] == "body"


async def test_a_detail_leads_to_the_field_through_ids_of_any_kind(typesafe_app: Starlette) -> None:
    reply = await ask(typesafe_app, {"state": "x", "questions": {"v1.0 ok?": {"type": "box"}}})
    assert reply.body["detail"][0]["loc"] == ["body", "questions", "v1.0 ok?", "type"]


async def test_a_header_that_is_wrong_is_not_called_the_body(
    app: Starlette, typesafe_app: Starlette
) -> None:
    reply = await ask(app, systemone(), x_decision_timeout_s="soon")
    assert reply.body["error"]["param"] == "x-decision-timeout-s"
    reply = await ask(typesafe_app, systemone(), x_decision_timeout_s="soon")
    assert reply.status == 422
    assert reply.body["detail"][0]["loc"] == ["header", "x-decision-timeout-s"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b'{"model": "tiny", "input": "\\udfff", "questions": []}', "input"),
        (decisions(cache_salt="a\0"), "cache_salt"),
        (decisions(input="late " * 20_000), "questions.0: this model's maximum context"),
        (decisions(401), "at most 400"),
        (decisions(input=[{"role": "user", "content": [{"type": "input_image"}]}]), "images"),
    ],
    ids=["empty", "surrogate", "salt", "long", "401", "image"],
)
async def test_decisions_speak_openais_errors_in_either_dialect(
    typesafe_app: Starlette, body: Json | bytes, words: str
) -> None:
    reply = await ask(typesafe_app, body, DECISIONS)
    assert_refused(reply, 400, words)
    assert reply.body["error"]["code"] == 400


@pytest.mark.parametrize(("path", "body"), [(SYSTEMONE, systemone), (DECISIONS, decisions)])
async def test_an_unknown_model_is_a_404_however_long_its_name(
    app: Starlette, path: str, body: Any
) -> None:
    reply = await ask(app, body(model="m" * 1_000_000), path)
    assert_refused(reply, 404, "does not exist. Valid aliases: tiny")
    assert reply.body["error"]["param"] == "model"


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "BREW"])
@pytest.mark.parametrize("path", [SYSTEMONE, DECISIONS])
async def test_another_method_is_a_405_that_names_the_right_one(
    app: Starlette, path: str, method: str
) -> None:
    reply = await Request(app, path, method=method).sends().reply()
    assert_refused(reply, 405, "POST")
    assert reply.headers["allow"] == "POST"


async def test_errors_of_routing_speak_the_dialect_of_their_path(typesafe_app: Starlette) -> None:
    assert "detail" in (await get(typesafe_app, SYSTEMONE)).body
    assert "error" in (await get(typesafe_app, DECISIONS)).body


@pytest.mark.parametrize(
    "path",
    ["/", "/nope", "/v1/systemone/", "//v1/systemone", "//evil.example/x", "/v1/../v1/systemone"],
)
async def test_an_unknown_path_is_a_404_and_never_a_redirect(app: Starlette, path: str) -> None:
    reply = await ask(app, systemone(), path)
    assert_refused(reply, 404, path)


async def test_a_host_header_that_is_no_host_changes_nothing(app: Starlette) -> None:
    reply = await ask(app, systemone(), "/nope", host="[::1")
    assert_refused(reply, 404, "/nope")


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "\xff", ""])
async def test_only_json_is_taken(app: Starlette, kind: str) -> None:
    assert_refused(await ask(app, systemone(), content_type=kind), 400, "application/json")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/vnd.api+json"])
async def test_any_kind_of_json_is_taken(app: Starlette, kind: str) -> None:
    assert (await ask(app, systemone(), content_type=kind)).status == 200


async def test_an_unknown_content_encoding_is_a_415(app: Starlette) -> None:
    assert_refused(await ask(app, systemone(), content_encoding="br"), 415, "br")


@pytest.mark.parametrize("announced", ["99999999999", "9" * 5000])
async def test_a_body_that_is_announced_too_large_is_refused_unread(
    app: Starlette, announced: str
) -> None:
    reply = await Request(app, content_length=announced).reply()
    assert_refused(reply, 413, "larger than")


@pytest.mark.parametrize("announced", ["5", "-5", "x", ""])
async def test_a_body_that_grows_too_large_is_refused_whatever_was_announced(
    make_app: Any, announced: str
) -> None:
    async with ready(make_app(limits={"body_bytes": 1024})) as app:
        request = Request(app, content_length=announced)
        reply = await request.sends(b" " * 1000, more=True).sends(b" " * 25, more=True).reply()
        assert_refused(reply, 413, "larger than 1024 bytes")


async def test_who_closes_after_a_body_too_large_is_heard_out_first(make_app: Any) -> None:
    async with ready(make_app(limits={"body_bytes": 1024})) as app:
        request = Request(app, connection="close").sends(b" " * 2000, more=True)
        request.sends(b" " * 100, more=True).sends(b"!")
        assert_refused(await request.reply(), 413, "larger than")
        assert request.unread == 0
        endless = Request(app, connection="close")
        for _ in range(9):
            endless.sends(b" " * 1000, more=True)
        assert_refused(await endless.reply(), 413, "larger than")


@pytest.mark.parametrize(("path", "body"), [(SYSTEMONE, systemone), (DECISIONS, decisions)])
async def test_a_body_may_come_in_any_pieces(app: Starlette, path: str, body: Any) -> None:
    whole = await ask(app, body(3), path)
    request = Request(app, path)
    for byte in json.dumps(body(3)).encode():
        request.sends(bytes([byte]), more=True)
    pieces = await request.sends(b"").reply()
    assert pieces.status == 200
    assert pieces.body["answers"] == whole.body["answers"]


@pytest.mark.parametrize(("path", "body"), [(SYSTEMONE, systemone), (DECISIONS, decisions)])
async def test_the_callers_request_id_comes_back(app: Starlette, path: str, body: Any) -> None:
    reply = await ask(app, body(), path, x_request_id="mine")
    assert reply.headers["x-request-id"] == reply.headers["x-typesafe-request-id"] == "mine"


async def test_the_bodys_request_id_counts_where_no_header_names_one(app: Starlette) -> None:
    named = systemone(request_id="body's")
    reply = await ask(app, named)
    assert reply.headers["x-request-id"] == "body's"
    assert reply.body["id"] == "decision-body's"
    assert (await ask(app, named, x_request_id="mine")).body["id"] == "decision-mine"
    assert (await ask(app, named, x_request_id=" \t")).body["id"] == "decision-body's"
    refused = await ask(app, {**named, "model": "unknown"})
    assert refused.headers["x-request-id"] == "body's"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\nb\r\nset-cookie: x=y", "a?b??set-cookie: x=y"),
        ("é今", "é?"),
        ("i" * 1_000_000, "i" * MAX_ID_CHARS),
        (" a\tb ", "a?b"),
        ("i" * (MAX_ID_CHARS - 1) + " \n", "i" * (MAX_ID_CHARS - 1)),
    ],
    ids=["line ends", "unicode", "long", "tab", "long and blank"],
)
async def test_no_request_id_can_break_a_header(
    app: Starlette, vllm: FakeVllm, given: str, shown: str
) -> None:
    reply = await ask(app, systemone(request_id=given))
    assert reply.status == 200
    assert reply.headers["x-request-id"] == reply.headers["x-typesafe-request-id"] == shown
    assert reply.body["id"] == f"decision-{shown}"
    assert vllm.reads[-1].body["request_id"].startswith(f"decision-{shown}-")
    assert set(reply.headers) == {
        "content-length",
        "content-type",
        "x-request-id",
        "x-typesafe-request-id",
    }


@pytest.mark.parametrize("blank", ["", " ", "\t", " \t "])
async def test_a_blank_request_id_is_none_at_all(app: Starlette, blank: str) -> None:
    replies = [
        await ask(app, systemone(), x_request_id=blank),
        await ask(app, systemone(request_id=blank)),
        await ask(app, b"{", x_request_id=blank),
        await Request(app, "/nope", x_request_id=blank).sends().reply(),
    ]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == len(replies)
    assert all(len(id_) == 32 and id_.isalnum() for id_ in ids)


async def test_every_read_has_an_id_of_its_own(app: Starlette, vllm: FakeVllm) -> None:
    requests = [Request(app, x_request_id="twin") for _ in range(5)]
    for request in requests:
        request.sends(json.dumps(systemone()).encode())
    assert [(await request.reply()).status for request in requests] == [200] * 5
    ids = [read.body["request_id"] for read in vllm.reads]
    assert len(set(ids)) == len(ids)


async def test_reads_carry_the_callers_key_and_trace_and_nothing_else_of_his(
    app: Starlette, vllm: FakeVllm
) -> None:
    await ask(
        app,
        systemone(),
        authorization="Bearer theirs",
        traceparent="00-1-2-01",
        tracestate="a=b",
        cookie="secret",
        x_vllm_priority="-9",
        x_request_id="mine",
        x_forwarded_for="10.0.0.1",
        user_agent="agent",
    )
    sent = {name.lower(): value for name, value in vllm.reads[-1].headers.items()}
    assert sent["authorization"] == "Bearer theirs"
    assert (sent["traceparent"], sent["tracestate"]) == ("00-1-2-01", "a=b")
    assert not sent.keys() & {"cookie", "x-vllm-priority", "x-request-id", "x-forwarded-for"}
    assert sent["user-agent"] != "agent"


async def test_an_unforeseen_failure_is_a_500_in_json_and_one_entry_in_the_log(
    app: Starlette, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Splicer, "splice", fail)
    for path, body in ((SYSTEMONE, systemone()), (DECISIONS, decisions())):
        caplog.clear()
        reply = await ask(app, body, path, x_request_id="mine")
        assert_refused(reply, 500, "its log says why")
        assert "secret" not in str(reply.body)
        assert reply.headers["x-request-id"] == "mine"
        [entry] = [record for record in caplog.records if record.levelname == "ERROR"]
        assert entry.getMessage() == f"POST {path} ('mine') failed"
        assert "ZeroDivisionError" in caplog.text


async def test_big_work_is_done_by_threads_and_small_work_by_the_event_loop(
    app: Starlette, threads_of: Any
) -> None:
    parsing = threads_of("decision_proxy.wire.endpoint", "parse_body")
    planning = threads_of("decision_proxy.reads.next_token.NextToken", "plan")
    writing = threads_of("decision_proxy.wire.endpoint", "_written")
    reading = threads_of("decision_proxy.upstream.reads", "batch_results")
    asking = threads_of("decision_proxy.upstream.reads", "request_body")
    await ask(app, systemone())
    big = {"state": "x " * SMALL_BODY_BYTES, "questions": questions(400)}
    big["state"] = "The parcel is late. " * 1500
    assert (await ask(app, big)).status == 200
    assert [name.startswith("prompt") for name in parsing] == [False, True]
    assert [name.startswith("prompt") for name in planning] == [True, True]
    assert [name.startswith("prompt") for name in writing] == [False, True]
    assert "MainThread" not in reading[1:] + asking[1:]
    assert reading[0] == asking[0] == "MainThread"
    assert FEW_QUESTIONS < 400
