# ruff: noqa: INP001
"""Runs one command and outlives it: `guard.py GRACE_S COMMAND...`.

Its standard input is a pipe that its owner holds open. When the pipe closes, because the owner
stopped or was killed, the command's whole process group gets SIGTERM, and SIGKILL after the grace.
When the command ends by itself, what it left behind in its group is ended in the same way.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_GRACE_S = 5.0
LIBC = ctypes.CDLL(None)


def guard(grace_s: float, command: list[str]) -> int:
    # orphans become our children, so that we can wait for the last one
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    leader = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        process_group=0,
        preexec_fn=die_with_guard,  # noqa: PLW1509
    ).pid
    ended = threading.Event()
    watch = threading.Thread(target=end_with_owner, args=(leader, grace_s, ended), daemon=True)
    watch.start()
    # not reaped yet, so that the group's number cannot be anyone else's
    os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)
    ended.set()
    end_group(leader, signal.SIGTERM)
    kill = threading.Timer(min(grace_s, LEFTOVER_GRACE_S), end_group, (leader, signal.SIGKILL))
    kill.daemon = True
    kill.start()
    return reap_group(leader)


def die_with_guard() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_owner(group: int, grace_s: float, ended: threading.Event) -> None:
    sys.stdin.buffer.read()
    if not ended.is_set():
        end_group(group, signal.SIGTERM)
    if not ended.wait(grace_s):
        end_group(group, signal.SIGKILL)


def end_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def reap_group(leader: int) -> int:
    """Waits for everyone in the group; the leader's exit code, 128 + n after signal n."""
    code = 0
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-leader, 0)
            if pid == leader:
                code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    # no clean-up of ours may wait for the thread that still reads
    os._exit(guard(float(sys.argv[1]), sys.argv[2:]))
