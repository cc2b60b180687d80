from pathlib import Path

from decision_proxy.embedded.logs import tail, telling_lines


def test_the_tail_has_no_colours_and_no_empty_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"\x1b[31mred\x1b[0m\n\n10%\r20%\r\n\xff broken\n")
    assert tail(log) == ["red", "10%", "20%", "\ufffd broken"]


def test_the_tail_starts_where_this_run_began(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\nafter\n")
    assert tail(log, since=len("before\n")) == ["after"]


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "log") == []


def test_the_reason_is_told_and_not_the_stack() -> None:
    lines = [
        "(EngineCore pid=1) ERROR 12-01 04:22:27 [core.py:9] Traceback (most recent call last):",
        '(EngineCore pid=1) ERROR 12-01 04:22:27 [core.py:9]   File "x.py", line 1, in error',
        "(EngineCore pid=1) ERROR 12-01 04:22:27 [core.py:9] ValueError: no such model",
        "INFO an error is no reason here",
    ]
    assert telling_lines(lines) == ["ValueError: no such model"]


def test_a_warning_is_no_reason_and_a_validation_error_brings_its_second_line() -> None:
    lines = [
        "(APIServer pid=7) WARNING 12-01 05:01:14 [system_utils.py:255] can cause OSError",
        "pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, no config.json in /models/empty [type=value_error]",
        "    For further information visit the documentation of this error",
    ]
    assert telling_lines(lines) == [lines[1], lines[2].strip()]


def test_without_a_reason_the_last_lines_are_told() -> None:
    assert telling_lines(["a", "b", "c", "d"]) == ["b", "c", "d"]
