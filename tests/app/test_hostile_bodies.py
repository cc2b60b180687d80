"""What may be wrong in a body never becomes a 5xx, however far into the proxy it comes."""

from typing import Any

import pytest
from starlette.applications import Starlette

from tests.app.harness import DECISIONS as DECISIONS_PATH
from tests.app.harness import SYSTEMONE as SYSTEMONE_PATH
from tests.app.harness import ask, systemone
from tests.fakes.vllm import FakeVllm
from tests.hostile import DECISIONS, SYSTEMONE, VALUES, swapped

pytestmark = pytest.mark.anyio

BODIES = [(SYSTEMONE_PATH, SYSTEMONE), (DECISIONS_PATH, DECISIONS)]
NAMES = ["bos_token", "role", "content", "loop", "true", "", "0", "x y", "é", "__class__", "tojson"]


@pytest.mark.parametrize("value", [value for value in VALUES if len(value) < 20_000])
async def test_no_value_at_any_place_fails_the_proxy(app: Starlette, value: str) -> None:
    for path, body in BODIES:
        for raw in swapped({**body, "model": "tiny"}, value):
            assert (await ask(app, raw, path)).status in {200, 400, 404}


@pytest.mark.parametrize("value", [None, 1, "x", [], [[1]], {"a": 1}, 10**30, True, 1.5, "\0"])
async def test_no_template_option_fails_the_proxy(
    app: Starlette, vllm: FakeVllm, value: Any
) -> None:
    for name in NAMES:
        reply = await ask(app, systemone(chat_template_kwargs={name: value}))
        assert reply.status in {200, 400}
    assert vllm.reads
