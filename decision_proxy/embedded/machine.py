"""What this machine has to offer, and one clear sentence where that is too little."""

import os
import platform
import shutil
import socket
import sys
from pathlib import Path

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.progress import Report

GIB = 1024**3
DISK_GIB = 5.0
MEMORY_GIB = 4.0
COMFORTABLE_MEMORY_GIB = 6.0
PYTHONS = ((3, 11), (3, 14))
CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def require_platform() -> None:
    if sys.platform != "linux":
        raise SetupError(
            f"The CPU vLLM runs on Linux only, and this is {platform.system()}; "
            "run it in a Linux container, or point `decision-proxy serve` at a vLLM elsewhere."
        )
    oldest, newest = PYTHONS
    if not oldest <= sys.version_info[:2] <= newest:
        raise SetupError(
            f"The CPU vLLM needs Python 3.{oldest[1]} to 3.{newest[1]}, and this is "
            f"{platform.python_version()}; name another with `make PYTHON=python3.12 …`."
        )


def require_disk(home: Path) -> None:
    free = free_disk_gib(home)
    if free < DISK_GIB:
        raise SetupError(
            f"The set-up needs {DISK_GIB:.0f} GB of disk under {home} and {free:.1f} GB are free; "
            "free some, or set DECISION_PROXY_HOME to a folder on another disk."
        )


def require_memory(report: Report) -> None:
    free = available_memory_gib()
    if free < MEMORY_GIB:
        raise SetupError(
            f"The CPU vLLM needs {MEMORY_GIB:.0f} GB of free memory and {free:.1f} GB are "
            "available; end other programs, or use a larger machine."
        )
    if free < COMFORTABLE_MEMORY_GIB:
        report.done(f"Only {free:.1f} GB of memory are available: enough, but it may be slow")


def require_free_port(port: int, flag: str, *, host: str = "127.0.0.1") -> None:
    try:
        bind(port, host)
    except PermissionError:
        problem = "may not be opened by this user; choose one above 1023"
    except OverflowError:
        problem = "is no port; choose one up to 65535"
    except OSError:
        problem = "is in use by another program; free it or choose another"
    else:
        return
    raise SetupError(f"Port {port} {problem} with {flag}.")


def free_disk_gib(folder: Path) -> float:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free / GIB


def available_memory_gib() -> float:
    """What programs can still take, within this container's own limit where it has one."""
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = meminfo_bytes().get("MemAvailable", pages)
    limit = cgroup_free_bytes()
    return (available if limit is None else min(available, limit)) / GIB


def meminfo_bytes() -> dict[str, int]:
    if not MEMINFO.exists():
        return {}
    fields = (line.split() for line in MEMINFO.read_text().splitlines())
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in fields}


def cgroup_free_bytes() -> int | None:
    """None without a limit. The page cache counts as used there, but gives way."""
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        statistics = (CGROUP / "memory.stat").read_text().split()
    except OSError:
        return None
    if limit == "max":
        return None
    cache = dict(zip(statistics[::2], statistics[1::2], strict=False)).get("inactive_file", "0")
    return int(limit) - used + int(cache)


def free_port(host: str = "127.0.0.1") -> int:
    return bind(0, host)


def bind(port: int, host: str) -> int:
    """The port, which was free a moment ago; 0 finds one."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        bound: int = listener.getsockname()[1]
        return bound
