import io

import pytest
from rich.console import Console

from decision_proxy.embedded.progress import LiveReport, PlainReport, report_to


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_pipe_gets_plain_lines() -> None:
    stream = io.StringIO()
    with report_to(stream) as report:
        report.step("Installing [torch]")
        report.update("1 s")
        report.done("Installed")
    assert stream.getvalue() == "Installing [torch] …\nInstalled\n"


def test_a_pipe_hears_of_progress_once_in_a_while() -> None:
    stream, clock = io.StringIO(), Clock()
    report = PlainReport(stream, quiet_s=15, clock=clock)
    report.step("Installing")
    for second in range(40):
        clock.now = second
        report.update(f"{second} s")
    assert stream.getvalue() == "Installing …\n  15 s\n  30 s\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with report_to(stream) as report:
        report.step("Installing")
    assert stream.getvalue() == "Installing …\n"


def test_a_terminal_gets_a_spinner_that_is_gone_in_the_end() -> None:
    stream = io.StringIO()
    report = LiveReport(Console(file=stream, force_terminal=True, width=80))
    report.step("Installing [torch]")
    report.update("1 s [half]")
    report.done("Installed [torch]")
    report.close()
    shown = stream.getvalue()
    assert "Installing [torch]" in shown
    assert "Installed [torch]" in shown
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h")
