"""Bodies that would stop all threads while they are parsed are parsed in a process of their own."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from anyio import to_process
from starlette.applications import Starlette

from decision_proxy.wire.endpoint import BIG_BODY_BYTES
from tests.app.harness import DECISIONS, SYSTEMONE, Request, ask, decisions, systemone, until
from tests.fakes.vllm import FakeVllm

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize(
    ("path", "body"), [(SYSTEMONE, systemone(3)), (DECISIONS, decisions(3))]
)


def big(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode().replace(b"{", b"{" + b" " * BIG_BODY_BYTES, 1)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of each call of a worker process."""
    outcomes: list[str] = []
    original = to_process.run_sync

    async def watched(*given: Any, **options: Any) -> Any:
        outcomes.append("runs")
        try:
            result = await original(*given, **options)
        except BaseException as error:
            outcomes[-1] = type(error).__name__
            raise
        outcomes[-1] = "done"
        return result

    monkeypatch.setattr("decision_proxy.admission.to_process.run_sync", watched)
    return outcomes


@BOTH
async def test_a_big_body_is_answered_like_a_small_one(
    app: Starlette,
    threads_of: Callable[[str, str], list[str]],
    apart: list[str],
    path: str,
    body: dict[str, Any],
) -> None:
    here = threads_of("decision_proxy.wire.endpoint", "parse_body")
    reply = await ask(app, big(body), path)
    assert (reply.status, here, apart) == (200, [], ["done"])
    small = await ask(app, body, path)
    assert small.body["answers"] == reply.body["answers"]
    assert (len(here), apart) == (1, ["done"])


@BOTH
async def test_its_mistakes_are_explained_like_those_of_a_small_one(
    app: Starlette, typesafe_app: Starlette, apart: list[str], path: str, body: dict[str, Any]
) -> None:
    for wrong in (big({**body, "questions": None}), big(body)[:-1], big(body) + b"\xff"):
        small = wrong.replace(b" " * BIG_BODY_BYTES, b"")
        for each in (app, typesafe_app):
            refused, expected = await ask(each, wrong, path), await ask(each, small, path)
            assert (refused.status, expected.status // 100) == (expected.status, 4)
            assert set(refused.body) == set(expected.body)
    assert apart == ["RequestError"] * 6


async def test_its_client_may_leave(app: Starlette, vllm: FakeVllm, apart: list[str]) -> None:
    reads = len(vllm.reads)
    request = Request(app).sends(big(systemone()))
    await until(lambda: apart == ["runs"])
    await request.hangs_up().silence()
    assert apart == ["CancelledError"]
    assert (await ask(app, big(systemone()))).status == 200
    assert len(vllm.reads) == reads + 1
