"""`bench/engine_server.py` as a child process."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from decision_proxy.embedded.home import default_home, log_file
from decision_proxy.embedded.server import Server

ROOT = Path(__file__).parent.parent


class EngineServer(Server):
    name = title = "the fake engine"

    def __init__(
        self,
        *,
        port: int = 0,
        max_batched_tokens: int = 8192,
        kv_tokens: int = 2_000_000,
        speed: float = 1.0,
    ) -> None:
        super().__init__(port=port, log=log_file(default_home(), "bench-engine"), flag="--port")
        self._given = {
            "--max-num-batched-tokens": max_batched_tokens,
            "--blocks": kv_tokens // 16,
            "--speed": speed,
        }

    def command(self) -> Sequence[str | Path]:
        given = {"--port": self.port, **self._given}
        flags = [str(part) for pair in given.items() for part in pair]
        return [sys.executable, "-m", "bench.engine_server", *flags]

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT)}
