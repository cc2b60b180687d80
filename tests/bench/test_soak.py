"""`bench/soak.py` in its short form: nothing is left behind when clients hang up."""

from collections.abc import Iterator

import pytest

from bench.engine_process import EngineServer
from bench.soak import Held, Plan, soak
from decision_proxy.embedded.progress import Report
from tests.servers import tokenizer_folder

pytestmark = pytest.mark.anyio

PLAN = Plan(decisions=250, clients=32, seed=7)


@pytest.fixture(scope="module")
def engine(setup_report: Report) -> Iterator[EngineServer]:
    with EngineServer(speed=8) as server:
        server.wait_healthy(60, setup_report)
        yield server


@pytest.mark.parametrize("policy", ["turns", "budget"])
async def test_clients_that_hang_up_leave_nothing_behind(engine: EngineServer, policy: str) -> None:
    seen = await soak(PLAN, policy, engine, tokenizer_folder("qwen3"))
    assert seen.left == []
    assert seen.statuses.total() == PLAN.decisions
    assert set(seen.statuses) <= {"200", "429", "504", "left", "answered before it left"}
    assert seen.statuses["200"] > PLAN.decisions // 4
    assert seen.statuses["left"] > PLAN.decisions // 20


def test_what_is_left_is_told() -> None:
    before = Held(tasks=3, connections=1, files=20, tickets=0)
    assert Held(3, 1, 19, 0).beyond(before) == []
    assert Held(4, 1, 20, 2).beyond(before) == [
        "1 tasks more than before",
        "2 tickets more than before",
    ]
