import socket
import sys
from pathlib import Path

import pytest

from decision_proxy.embedded import machine
from decision_proxy.embedded.errors import SetupError
from tests.embedded.conftest import Recorder

GIB = 1024**3


@pytest.fixture
def meminfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:  99 kB\nMemAvailable: 8388608 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(machine, "MEMINFO", file)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    return file


def limit(folder: Path, maximum: str, used: int, cache: int) -> None:
    (folder / "memory.max").write_text(f"{maximum}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\nactive_file 7\n")


def test_memory_is_what_the_kernel_says_is_available(meminfo: Path) -> None:
    assert machine.available_memory_gib() == 8.0


def test_a_container_has_what_its_limit_leaves_and_its_cache_gives_way(meminfo: Path) -> None:
    limit(meminfo.parent, str(6 * GIB), used=4 * GIB, cache=1 * GIB)
    assert machine.available_memory_gib() == 3.0


def test_a_container_without_a_limit_has_the_machine(meminfo: Path) -> None:
    limit(meminfo.parent, "max", used=4 * GIB, cache=0)
    assert machine.available_memory_gib() == 8.0


def test_memory_is_known_without_the_kernels_file(meminfo: Path) -> None:
    meminfo.unlink()
    assert machine.available_memory_gib() > 0


def test_tight_memory_is_mentioned_and_allowed(
    report: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "available_memory_gib", lambda: 4.5)
    machine.require_memory(report)
    assert report.dones == ["Only 4.5 GB of memory are available: enough, but it may be slow"]


def test_disk_is_measured_where_the_home_will_be(tmp_path: Path) -> None:
    assert machine.free_disk_gib(tmp_path / "not" / "yet") > 0


def test_a_port_is_free_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=r"in use by another program; .* with --here"):
            machine.require_free_port(port, "--here")
    machine.require_free_port(port, "--here")
    machine.require_free_port(machine.free_port(), "--here")


def test_what_is_no_port_is_told() -> None:
    with pytest.raises(SetupError, match=r"Port 65536 is no port; .* up to 65535 with --here"):
        machine.require_free_port(65536, "--here")


def test_a_port_for_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_port: int, _host: str) -> int:
        raise PermissionError

    monkeypatch.setattr(machine, "bind", refuse)
    with pytest.raises(SetupError, match=r"Port 80 may not be opened by this user; .* above 1023"):
        machine.require_free_port(80, "--here")


def test_other_systems_are_told_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.require_platform()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SetupError, match="runs on Linux only"):
        machine.require_platform()


@pytest.mark.parametrize("version", [(3, 10, 9), (3, 15, 0)])
def test_other_pythons_are_told_which_will_do(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]
) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(SetupError, match=r"needs Python 3\.11 to 3\.14"):
        machine.require_platform()
