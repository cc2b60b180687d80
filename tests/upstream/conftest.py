from collections.abc import AsyncIterator

import pytest

from decision_proxy.settings import Reads
from decision_proxy.upstream.reads import ReadClient
from tests.fakes.vllm import FakeVllm


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with FakeVllm() as fake:
        yield fake


@pytest.fixture
async def client(vllm: FakeVllm) -> AsyncIterator[ReadClient]:
    async with ReadClient(vllm.url, Reads()) as reads:
        yield reads
