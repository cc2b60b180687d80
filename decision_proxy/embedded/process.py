import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

GUARD = Path(__file__).parent / "scripts" / "guard.py"
SIGNALLED = 128


class GuardedProcess:
    """A command and all its children: they end with `stop`, or with us, however we end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        grace_s: float = 20.0,
    ) -> None:
        self._grace_s = grace_s
        guard: list[str | Path] = [sys.executable, "-I", "-S", GUARD, str(grace_s)]
        with log.open("ab") as output:
            self._guard = subprocess.Popen(  # noqa: S603
                [*guard, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        return self._guard.poll()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, 128 + n after signal n; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(timeout_s)
        return self._guard.poll()

    def stop(self) -> None:
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        try:
            self._guard.wait(self._grace_s + 5)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def explain_exit(code: int) -> str:
    if code == SIGNALLED + 9:
        return "was killed, most likely because the memory ran out"
    if code > SIGNALLED:
        return f"ended by signal {code - SIGNALLED}"
    return f"ended with code {code}"
