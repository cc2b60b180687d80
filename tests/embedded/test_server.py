import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.server import VllmServer, http_post
from tests.embedded.conftest import Recorder

PATIENCE_S = 60.0


def server(python: Path, folder: Path, *flags: str, port: int = 0) -> VllmServer:
    log = folder / "logs" / "vllm.log"
    return VllmServer(python, folder / "model", "tiny", log=log, port=port, flags=flags)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_it_waits_until_the_server_is_healthy_and_says_how_far_it_is(
    fake_python: Path, tmp_path: Path, report: Recorder
) -> None:
    with server(fake_python, tmp_path, "--unready", "2") as vllm:
        vllm.wait_healthy(PATIENCE_S, report)
        assert http_post(vllm.port, "/", {"questions": {}}, timeout_s=PATIENCE_S)[0] == 200
    assert vllm.exit_code is not None
    assert report.steps == ["Starting vLLM"]
    assert report.updates[-1].endswith("s starting the engine")
    assert report.dones[0].startswith(f"vLLM is up at http://127.0.0.1:{vllm.port}, after")


def test_a_server_that_dies_at_start_is_told_with_the_reason_from_its_log(
    fake_python: Path, tmp_path: Path, report: Recorder
) -> None:
    with (
        server(fake_python, tmp_path, "--dies") as vllm,
        pytest.raises(SetupError) as error,
    ):
        vllm.wait_healthy(PATIENCE_S, report)
    assert str(error.value) == (
        f"vLLM ended with code 1:\n  ValueError: The model is unreadable\nIts log: {vllm.log}"
    )


def test_a_server_that_never_gets_healthy_is_told_after_the_timeout(
    fake_python: Path, tmp_path: Path, report: Recorder
) -> None:
    with (
        server(fake_python, tmp_path, "--unready", "1000") as vllm,
        pytest.raises(SetupError, match=r"vLLM is not up after 0 s \(.+\)\. Its log: .*vllm\.log"),
    ):
        vllm.wait_healthy(0, report)


def test_a_port_in_use_is_one_clear_sentence(
    fake_python: Path, tmp_path: Path, taken_port: int
) -> None:
    with pytest.raises(SetupError) as error:
        server(fake_python, tmp_path, port=taken_port).start()
    assert str(error.value) == (
        f"Port {taken_port} is in use by another program; "
        "free it or choose another with --vllm-port."
    )


@pytest.mark.parametrize("flags", [(), ("--stubborn",)])
def test_stop_leaves_nobody_behind(
    fake_python: Path, tmp_path: Path, report: Recorder, flags: tuple[str, ...]
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    vllm = server(fake_python, tmp_path, "--fifo", str(fifo), *flags)
    vllm.grace_s = 0.1
    vllm.start()
    with fifo.open("rb") as held:
        vllm.wait_healthy(PATIENCE_S, report)
        vllm.stop()
        assert held.read() == b""
    vllm.stop()


def test_vllm_is_started_as_a_module_on_this_machine_only(tmp_path: Path) -> None:
    vllm = server(Path("/v/bin/python"), tmp_path, "--enforce-eager", port=8123)
    assert " ".join(map(str, vllm.command())) == (
        "/v/bin/python -I -m vllm.entrypoints.openai.api_server "
        f"--model {tmp_path}/model --served-model-name tiny "
        "--host 127.0.0.1 --port 8123 --max-model-len 8192 --enforce-eager"
    )
    assert vllm.url == "http://127.0.0.1:8123"


def test_vllm_stays_offline_and_takes_no_key_from_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "of another server")
    monkeypatch.setenv("SOMETHING", "else")
    environment = server(Path("python"), tmp_path).environment()
    assert "VLLM_API_KEY" not in environment
    assert environment["SOMETHING"] == "else"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["DO_NOT_TRACK"] == "1"


def test_vllm_needs_no_compiler(tmp_path: Path) -> None:
    assert server(Path("python"), tmp_path).environment()["TORCH_COMPILE_DISABLE"] == "1"


@pytest.mark.parametrize(
    ("log", "stage"),
    [
        ("", "loading Python modules"),
        ("INFO non-default args: {}", "reading the configuration"),
        ("Resolved architecture: X\nINFO Starting to load model y", "loading the weights"),
        ("Starting to load model y\nWarming up model for the compilation", "trying the model"),
        ("Loading weights took 1 s\nCPU KV cache size: 9\nSupported tasks", "opening the port"),
    ],
)
def test_the_log_tells_the_stage(tmp_path: Path, log: str, stage: str) -> None:
    vllm = server(Path("python"), tmp_path)
    vllm.log.parent.mkdir()
    vllm.log.write_text(log)
    assert vllm.stage() == stage


def test_each_start_begins_a_new_log(fake_python: Path, tmp_path: Path) -> None:
    vllm = server(fake_python, tmp_path, "--dies")
    for _ in range(2):
        with vllm:
            while not vllm.wait(PATIENCE_S):
                pass
    assert vllm.log.read_text().count("Traceback") == 1
