import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from decision_proxy.embedded import demo
from decision_proxy.embedded.demo import DemoOptions, run_demo
from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.machine import free_port
from decision_proxy.embedded.proxy import ProxyServer
from decision_proxy.embedded.server import VllmServer
from decision_proxy.embedded.ticket import QUESTIONS, REQUEST, SHORT_REQUEST, curl
from tests.embedded.conftest import Recorder

pytestmark = pytest.mark.usefixtures("plenty")

Options = Callable[..., DemoOptions]


@pytest.fixture
def options(home: Path) -> Options:
    def options(**changes: Any) -> DemoOptions:
        ports = {"port": free_port(), "vllm_port": free_port()}
        return DemoOptions(**{"home": home, **ports, **changes})

    return options


@pytest.fixture
def proxy_flags(monkeypatch: pytest.MonkeyPatch, fake_python: Path) -> list[str]:
    """Both servers are fakes, set up at once; what is put in here, the proxy is started with."""
    flags: list[str] = []
    real = ProxyServer.command

    def command(self: ProxyServer) -> Sequence[str | Path]:
        return [fake_python, *real(self)[2:], *flags]

    monkeypatch.setattr(ProxyServer, "command", command)
    monkeypatch.setattr(demo, "ensure_environment", lambda _home, _report: fake_python)
    monkeypatch.setattr(demo, "smollm2", lambda home, _python, _report: home / "model")
    return flags


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The answers that went to the table."""
    bodies: list[dict[str, Any]] = []

    def print_answers(console: Console, body: dict[str, Any], questions: dict[str, Any]) -> None:
        assert questions is QUESTIONS
        bodies.append(body)
        console.print("the table")

    monkeypatch.setattr(demo, "print_answers", print_answers)
    return bodies


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def interrupt(*_: object) -> Path:
    raise KeyboardInterrupt


def signalled(number: signal.Signals) -> Callable[..., Path]:
    def ensure_environment(*_: object) -> Path:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal comes first")

    return ensure_environment


def test_once_with_json_is_one_object_on_stdout_and_nothing_else(
    options: Options, proxy_flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_demo(options(once=True, json=True)) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert json.loads(out)["asked"] == ["department", "urgent", "mood"]
    assert "vLLM is up at " in err
    assert "The proxy is up at " in err


def test_once_prints_the_table_and_ends(
    options: Options,
    proxy_flags: list[str],
    printed: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_demo(options(once=True)) == 0
    assert [body["object"] for body in printed] == ["structured_decision"]
    assert capsys.readouterr().out == "the table\n"


def test_it_stays_until_ctrl_c_and_tells_the_urls(
    options: Options,
    proxy_flags: list[str],
    printed: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "TICK_S", 0.0)
    asked = options()
    monkeypatch.setattr(ProxyServer, "wait", interrupt_when_answered(ProxyServer.wait, printed))
    assert run_demo(asked) == 0
    out = capsys.readouterr().out
    assert f"The proxy  http://127.0.0.1:{asked.port}" in out
    assert f"vLLM       http://127.0.0.1:{asked.vllm_port}" in out
    assert f"curl http://127.0.0.1:{asked.port}/v1/systemone" in out
    assert "Ctrl-C ends both." in out


def interrupt_when_answered(
    wait: Callable[[ProxyServer, float], bool], printed: list[dict[str, Any]]
) -> Callable[[ProxyServer, float], bool]:
    def waiting(self: ProxyServer, timeout_s: float) -> bool:
        if printed:
            raise KeyboardInterrupt
        return wait(self, timeout_s)

    return waiting


def test_a_server_that_dies_while_running_ends_the_demo(
    options: Options,
    proxy_flags: list[str],
    printed: list[dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    proxy_flags.append("--one-answer")
    assert run_demo(options()) == 1
    assert (
        "demo: The proxy ended with code 1:\n  RuntimeError: engine core died"
        in capsys.readouterr().err
    )


def test_a_proxy_that_is_not_ready_tells_its_reason(
    tmp_path: Path, report: Recorder, proxy_flags: list[str]
) -> None:
    proxy_flags.extend(["--unready", "1000"])
    log = tmp_path / "proxy.log"
    with ProxyServer("http://127.0.0.1:1", tmp_path, log=log, port=0) as proxy:
        while proxy.stage() == "loading":
            pass
        with pytest.raises(SetupError, match=r"not up after 0 s \(vLLM does not answer yet\)"):
            proxy.wait_healthy(0, report)


@pytest.mark.parametrize("order", [1, -1])
def test_a_server_that_dies_while_another_starts_is_told_at_once(
    tmp_path: Path, report: Recorder, fake_python: Path, order: int
) -> None:
    def vllm(name: str, *flags: str) -> VllmServer:
        return VllmServer(fake_python, tmp_path, name, log=tmp_path / name, flags=flags)

    with vllm("alive", "--unready", "1000000") as alive, vllm("dead", "--dies") as dead:
        first, second = (alive, dead)[::order]
        with pytest.raises(SetupError, match="The model is unreadable"):
            first.wait_healthy(60.0, report, beside=second)


def test_a_refused_decision_is_told(
    options: Options,
    proxy_flags: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = (501, b'{"error": {"message": "no label"}}')
    monkeypatch.setattr("decision_proxy.embedded.proxy.http_post", lambda *_, **__: refused)
    assert run_demo(options(once=True)) == 1
    assert 'The proxy answered 501: {"error"' in capsys.readouterr().err


def test_a_proxy_that_dies_over_a_decision_is_told(tmp_path: Path) -> None:
    proxy = ProxyServer("http://127.0.0.1:1", tmp_path, log=tmp_path / "proxy.log", port=0)
    with pytest.raises(SetupError, match=r"gave no answer: .*refused\. Its log: .*proxy\.log"):
        proxy.decide(REQUEST)


@pytest.mark.parametrize(("option", "flag"), [("port", "--port"), ("vllm_port", "--vllm-port")])
def test_a_port_in_use_is_told_before_any_work(
    *,
    options: Options,
    taken_port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    flag: str,
) -> None:
    monkeypatch.setattr(demo, "ensure_environment", interrupt)
    assert run_demo(options(**{option: taken_port})) == 1
    assert capsys.readouterr().err == (
        f"decision-proxy demo: Port {taken_port} is in use by another program; "
        f"free it or choose another with {flag}.\n"
    )


def test_one_port_for_both_is_told_before_any_work(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "ensure_environment", interrupt)
    assert run_demo(options(port=8000, vllm_port=8000)) == 1
    assert "cannot both have port 8000; choose another" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_with_its_name(
    options: Options, home: Path, proxy_flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    home.mkdir()
    (home / "logs").touch()
    assert run_demo(options()) == 1
    assert capsys.readouterr().err == (
        f"decision-proxy demo: [Errno 17] File exists: '{home}/logs'\n"
    )


def test_nobody_who_reads_the_answer_ends_the_demo(
    options: Options, proxy_flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def print_answers(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(demo, "print_answers", print_answers)
    with pytest.raises(BrokenPipeError):
        run_demo(options())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_during_the_setup_is_one_line_and_130(
    options: Options,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    monkeypatch.setattr(demo, "ensure_environment", signalled(number))
    assert run_demo(options()) == 130
    assert capsys.readouterr().err.count("\n") == 1
    assert signal.signal(number, before) is signal.SIG_IGN


def test_the_home_is_the_default_one_unless_named(
    options: Options, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    homes: list[Path] = []

    def ensure_environment(home: Path, _report: object) -> Path:
        homes.append(home)
        raise SetupError("enough")

    monkeypatch.setattr(demo, "ensure_environment", ensure_environment)
    monkeypatch.setenv("DECISION_PROXY_HOME", "/chosen")
    assert run_demo(options(home=None)) == 1
    assert homes == [Path("/chosen")]


def test_the_proxy_is_started_with_our_own_python(tmp_path: Path) -> None:
    proxy = ProxyServer("http://127.0.0.1:8000", tmp_path, log=tmp_path / "log", port=8001)
    assert " ".join(map(str, proxy.command())) == (
        f"{sys.executable} -P -m decision_proxy serve --upstream http://127.0.0.1:8000 "
        f"--tokenizer {tmp_path} --host 127.0.0.1 --port 8001"
    )


def test_the_curl_line_can_be_pasted() -> None:
    words = shlex.split(curl("http://127.0.0.1:8001"))
    assert words[:2] == ["curl", "http://127.0.0.1:8001/v1/systemone"]
    assert json.loads(words[-1]) == SHORT_REQUEST


def test_the_example_asks_one_question_of_each_kind() -> None:
    questions = REQUEST["questions"].values()
    assert [question["type"] for question in questions] == ["choice", "noul", "score"]
