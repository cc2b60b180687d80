"""What a long set-up tells the person who waits. It writes to stderr: stdout is for answers."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape


class Report(Protocol):
    """One step at a time: `step` begins it, `update` says how far it is, `done` ends it."""

    def step(self, text: str) -> None: ...

    def update(self, text: str) -> None: ...

    def done(self, text: str) -> None: ...


class LiveReport:
    """A spinner on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("")
        self._step = ""

    def step(self, text: str) -> None:
        self._step = text
        self._status.update(escape(text))
        self._status.start()

    def update(self, text: str) -> None:
        self._status.update(f"{escape(self._step)} [dim]{escape(text)}[/dim]")

    def done(self, text: str) -> None:
        self.close()
        self._console.print(f"[green]✓[/green] {escape(text)}", highlight=False)

    def close(self) -> None:
        self._status.stop()


class PlainReport:
    """Lines for a pipe or a CI log; `update` is heard once in a while."""

    def __init__(
        self,
        stream: TextIO,
        *,
        quiet_s: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._quiet_s = quiet_s
        self._clock = clock
        self._spoke_at = clock()

    def step(self, text: str) -> None:
        self._say(f"{text} …")

    def update(self, text: str) -> None:
        if self._clock() - self._spoke_at >= self._quiet_s:
            self._say(f"  {text}")

    def done(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        pass

    def _say(self, line: str) -> None:
        self._spoke_at = self._clock()
        print(line, file=self._stream, flush=True)


@contextmanager
def report_to(stream: TextIO = sys.stderr) -> Iterator[Report]:
    console = Console(file=stream)
    live = stream.isatty() and not console.is_dumb_terminal
    report = LiveReport(console) if live else PlainReport(stream)
    try:
        yield report
    finally:
        report.close()
