"""Reading what other programs wrote to their log files."""

import re
from pathlib import Path

TAIL_BYTES = 64 * 1024
ANSI = re.compile(r"\x1b\[[0-9;]*m")
TELLING = re.compile(r"error|exception|not found|failed|killed|no space|in use", re.IGNORECASE)
STACK = re.compile(r'^\s(?!\s*Value error)|\]\s{2,}|File "|Traceback|\b(?:INFO|WARNING)\b')
PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\) )?(?:ERROR [\d:. -]+\[[^]]*\] )?")


def tail(log: Path, *, since: int = 0) -> list[str]:
    """The last lines, without colours and empty lines; `since` is a byte offset to start at."""
    if not log.exists():
        return []
    with log.open("rb") as file:
        end = file.seek(0, 2)
        file.seek(max(since, end - TAIL_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = ANSI.sub("", text).replace("\r", "\n").split("\n")
    return [line.rstrip() for line in lines if line.strip()]


def telling_lines(lines: list[str], *, most: int = 3) -> list[str]:
    """The last lines that say why; the very last ones where none does."""
    telling = [line for line in lines if TELLING.search(line) and not STACK.search(line)]
    return [PREFIX.sub("", line).strip() for line in (telling or lines)[-most:]]
