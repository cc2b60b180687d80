import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from decision_proxy.embedded.process import GUARD, GuardedProcess, explain_exit

PATIENCE_S = 30.0
# holds the fifo open together with a grandchild in its group, says so, and stays
FAMILY = """
import os, signal, subprocess, sys
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
fifo = os.open(sys.argv[1], os.O_WRONLY)
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
subprocess.Popen([sys.executable, "-S", "-c", child], pass_fds=[fifo])
os.write(fifo, b"up")
if "leaves" in sys.argv: sys.exit(3)
while True: signal.pause()
"""
# its child cleans up on SIGTERM, after it is gone itself
TIDY = """
import os, signal, subprocess, sys
fifo = os.open(sys.argv[1], os.O_WRONLY)
child = (
    "import os, signal, sys; fifo = int(sys.argv[1]);"
    "signal.signal(signal.SIGTERM, lambda *_: (os.write(fifo, b' tidied'), sys.exit()));"
    "os.write(fifo, b'up'); signal.pause()"
)
subprocess.Popen([sys.executable, "-S", "-c", child, str(fifo)], pass_fds=[fifo])
os.close(fifo)
signal.pause()
"""
OWNER = """
import sys
from pathlib import Path
from decision_proxy.embedded.process import GuardedProcess
process = GuardedProcess(sys.argv[2:], log=Path(sys.argv[1]))
sys.stdin.read()
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def start(tmp_path: Path, fifo: Path) -> Callable[..., GuardedProcess]:
    def start(*words: str, grace_s: float = 10.0) -> GuardedProcess:
        command = [sys.executable, "-S", "-c", FAMILY, str(fifo), *words]
        return GuardedProcess(command, log=tmp_path / "log", grace_s=grace_s)

    return start


def run(code: str, log: Path) -> int | None:
    with GuardedProcess([sys.executable, "-S", "-c", code], log=log) as process:
        return process.wait(PATIENCE_S)


def test_it_runs_to_its_end_with_its_output_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    assert run("print('out'); import sys; sys.exit(4)", log) == 4
    assert log.read_text() == "before\nout\n"


def test_it_tells_the_signal_that_ended_it(tmp_path: Path) -> None:
    assert run("import os; os.kill(os.getpid(), 9)", tmp_path / "log") == 137


def test_a_program_that_is_missing_is_an_exit_with_a_reason(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with GuardedProcess(["/no/such/program"], log=log) as process:
        assert process.wait(PATIENCE_S) not in {0, None}
    assert "No such file or directory: '/no/such/program'" in log.read_text()


@pytest.mark.parametrize("words", [(), ("stubborn",)])
def test_stop_ends_the_whole_family(
    fifo: Path, start: Callable[..., GuardedProcess], words: tuple[str, ...]
) -> None:
    process = start(*words, grace_s=0.1 if words else 10.0)
    with fifo.open("rb") as held:
        assert held.read(2) == b"up"
        process.stop()
        assert held.read() == b""
    assert process.exit_code == (137 if words else 143)
    process.stop()


def test_whoever_leaves_children_behind_takes_them_along(
    fifo: Path, start: Callable[..., GuardedProcess]
) -> None:
    with start("leaves", grace_s=0.1) as process, fifo.open("rb") as held:
        assert held.read() == b"up"
        assert process.wait(PATIENCE_S) == 3


def test_children_may_clean_up_after_their_parent_is_gone(fifo: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", TIDY, str(fifo)]
    with GuardedProcess(command, log=tmp_path / "log") as process, fifo.open("rb") as held:
        assert held.read(2) == b"up"
        process.stop()
        assert held.read() == b" tidied"


def test_the_family_ends_with_an_owner_that_is_killed(tmp_path: Path, fifo: Path) -> None:
    family = [sys.executable, "-S", "-c", FAMILY, str(fifo)]
    owner = [sys.executable, "-c", OWNER, str(tmp_path / "log"), *family]
    with subprocess.Popen(owner, stdin=subprocess.PIPE) as process:
        with fifo.open("rb") as held:
            assert held.read(2) == b"up"
            process.kill()
            assert held.read() == b""
        assert process.wait() == -signal.SIGKILL


def test_the_command_ends_with_a_guard_that_is_killed(fifo: Path, tmp_path: Path) -> None:
    code = "import os, signal, sys; os.write(os.open(sys.argv[1], os.O_WRONLY), b'up')"
    command = [sys.executable, "-S", "-c", f"{code}; signal.pause()", str(fifo)]
    guard = [sys.executable, "-I", "-S", str(GUARD), "10", *command]
    with subprocess.Popen(guard, stdin=subprocess.PIPE) as process, fifo.open("rb") as held:
        assert held.read(2) == b"up"
        process.kill()
        assert held.read() == b""


def test_an_exit_is_explained() -> None:
    assert explain_exit(1) == "ended with code 1"
    assert explain_exit(143) == "ended by signal 15"
    assert explain_exit(137) == "was killed, most likely because the memory ran out"
