"""A client that hangs up, at every moment: its work ends, and nothing is left behind."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from decision_proxy.prompt.budget import Cancelled
from decision_proxy.reads.next_token import NextToken
from tests.app.harness import (
    DECISIONS,
    SYSTEMONE,
    Request,
    ask,
    decisions,
    get,
    others,
    ready,
    running,
    systemone,
    until,
)
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm

pytestmark = pytest.mark.anyio

ROUTES = pytest.mark.parametrize(
    ("path", "body"),
    [
        (SYSTEMONE, json.dumps(systemone(3)).encode()),
        (DECISIONS, json.dumps(decisions(3)).encode()),
    ],
)


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Any:
    """Nothing that happens here is worth a line in an operator's log."""
    yield
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


@ROUTES
async def test_before_the_body(app: Starlette, path: str, body: bytes) -> None:
    before = others()
    await Request(app, path).hangs_up().silence()
    assert others() == before


@ROUTES
async def test_within_the_body(app: Starlette, path: str, body: bytes) -> None:
    before = others()
    await Request(app, path).sends(body[:20], more=True).hangs_up().silence()
    assert others() == before


@ROUTES
async def test_within_a_body_that_is_refused_and_thrown_away(
    make_app: Callable[..., Starlette], path: str, body: bytes
) -> None:
    async with ready(make_app(limits={"body_bytes": 1024})) as app:
        request = Request(app, path, connection="close").sends(b" " * 2000, more=True)
        await request.hangs_up().silence()


@ROUTES
async def test_while_its_prompts_are_made(
    app: Starlette, vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, path: str, body: bytes
) -> None:
    started, go_on, ended, given_up = (threading.Event() for _ in range(4))
    plan = NextToken.plan

    def slow(*given: Any, **options: Any) -> Any:
        started.set()
        go_on.wait(30)
        try:
            return plan(*given, **options)
        except Cancelled:
            given_up.set()
            raise
        finally:
            ended.set()

    monkeypatch.setattr(NextToken, "plan", slow)
    before, reads = others(), len(vllm.reads)
    request = Request(app, path).sends(body)
    await until(started.is_set)
    await request.hangs_up().silence()
    assert others() == before
    go_on.set()
    await until(ended.is_set)
    assert given_up.is_set()
    assert (await ask(app, systemone())).status == 200
    assert len(vllm.reads) == reads + 1


@ROUTES
@pytest.mark.parametrize("lists", [True, False], ids=["list", "singles"])
async def test_during_its_reads(
    vllm: FakeVllm, make_app: Callable[..., Starlette], path: str, body: bytes, lists: bool
) -> None:
    vllm.takes_lists = lists
    async with ready(make_app()) as app:
        before, already = others(), len(vllm.reads)
        vllm.every_read = faults.hang()
        request = Request(app, path).sends(body)
        expected = 1 if lists else 3
        await vllm.until(lambda: len(vllm.reads) == already + expected)
        await request.hangs_up().silence()
        assert {task for task in others() - before if "proxy" in repr(task)} == set()
        await vllm.until(lambda: all(seen.aborted for seen in vllm.reads[already:]))


@ROUTES
async def test_after_the_answer(app: Starlette, path: str, body: bytes) -> None:
    before = others()
    request = Request(app, path).sends(body)
    await until(lambda: bool(request.sent))
    request.hangs_up()
    assert (await request.reply()).status == 200
    assert {task for task in others() - before if "proxy" in repr(task)} == set()


@ROUTES
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_at_any_step_of_the_event_loop(
    app: Starlette, path: str, body: bytes, steps: int
) -> None:
    request = Request(app, path).sends(body[:30], more=True).sends(body[30:])
    for _ in range(steps):
        await asyncio.sleep(0)
    await asyncio.gather(request.hangs_up().task)
    assert [message["type"] for message in request.sent] in (
        [],
        ["http.response.start", "http.response.body"],
    )


async def test_when_the_time_to_shut_down_is_up_what_runs_is_a_503(
    app: Starlette, vllm: FakeVllm
) -> None:
    already = len(vllm.reads)
    vllm.every_read = faults.hang()
    reading = Request(app).sends(json.dumps(systemone()).encode())
    sending = Request(app).sends(b"{", more=True)
    await vllm.until(lambda: len(vllm.reads) == already + 1)
    app.state.closing.set()
    for request in (reading, sending, Request(app).sends(json.dumps(systemone()).encode())):
        reply = await request.reply()
        assert reply.status == 503
        assert reply.message == "The proxy is shutting down."
        assert int(reply.headers["retry-after"]) >= 1
    await vllm.until(lambda: vllm.reads[already].aborted)


async def test_the_end_of_the_application_leaves_no_task(
    make_app: Callable[..., Starlette], vllm: FakeVllm
) -> None:
    before = others()
    async with running(make_app()):
        pass
    async with ready(make_app()) as app:
        await ask(app, systemone(3))
    vllm.drop_idle_connections()
    assert {task for task in others() - before if "proxy" in repr(task)} == set()


async def test_two_hundred_decisions_at_once_are_all_answered(
    make_app: Callable[..., Starlette], vllm: FakeVllm
) -> None:
    async with ready(make_app(reads={"connections": 8}, prompt={"threads": 2})) as app:
        alone = (await ask(app, systemone(64))).body["answers"]
        raw = json.dumps(systemone(64)).encode()
        requests = [Request(app).sends(raw) for _ in range(200)]
        assert (await get(app, "/-/live")).status == 200
        replies = [await request.reply() for request in requests]
    assert [reply.status for reply in replies] == [200] * 200
    assert all(reply.body["answers"] == alone for reply in replies)
    assert len({seen.connection for seen in vllm.reads}) <= 8 + 1
