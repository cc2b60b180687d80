import http.client
import json
import sys
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.server import HOST, Server, http_get, http_post

DECISION_TIMEOUT_S = 300.0


class ProxyServer(Server):
    """This project's proxy as a child process, in front of `upstream`."""

    name = "the proxy"
    title = "The proxy"
    ready_path = "/-/ready"
    grace_s = 10.0

    def __init__(self, upstream: str, tokenizer: Path, *, log: Path, port: int) -> None:
        super().__init__(port=port, log=log, flag="--port")
        self._upstream = upstream
        self._tokenizer = tokenizer.absolute()

    def command(self) -> Sequence[str | Path]:
        # -P: what lies in the folder it is called from is no module of ours
        module = [sys.executable, "-P", "-m", "decision_proxy", "serve"]
        what: list[str | Path] = ["--upstream", self._upstream, "--tokenizer", self._tokenizer]
        return [*module, *what, "--host", HOST, "--port", str(self.port)]

    def stage(self) -> str:
        """The proxy's own reasons for not being ready."""
        try:
            _, body = http_get(self.port, self.ready_path)
            answer = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError):
            return "loading"
        reasons = answer.get("reasons", answer) if isinstance(answer, dict) else answer
        return "; ".join(map(str, reasons)) if isinstance(reasons, list) else str(reasons)

    def decide(self, request: dict[str, Any]) -> dict[str, Any]:
        path = "/v1/systemone"
        try:
            status, body = http_post(self.port, path, request, timeout_s=DECISION_TIMEOUT_S)
        except (OSError, http.client.HTTPException) as error:
            raise SetupError(f"The proxy gave no answer: {error}. Its log: {self.log}") from error
        text = body.decode("utf-8", "replace")
        if status != HTTPStatus.OK:
            raise SetupError(f"The proxy answered {status}: {text} Its log: {self.log}")
        answer: dict[str, Any] = json.loads(text)
        return answer
