"""`decision-proxy ask`, against a server that answers what the test says."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from decision_proxy.cli import main
from tests.running import serving

ANSWER = {
    "id": "decision-1",
    "model": "tiny",
    "answers": {
        "1": {
            "type": "choice",
            "choice": "café [x]",
            "probabilities": {"café [x]": 0.75, "o" * 300: 0.25},
            "confidence": 0.7,
        },
        "mood": {
            "type": "score",
            "score": 0.9,
            "legend": {"0": "low", "1": "high"},
            "probabilities": {"0": 0.1, "1": 0.9},
            "confidence": 0.9,
        },
    },
    "usage": {"input_tokens": 40, "output_tokens": 2},
}
QUESTIONS = "1: {type: choice, criteria: {no: n, b: null}}\nmood: {type: score, criteria: [a, b]}\n"


class Answering:
    """Keeps what it is asked; answers `status` and `body`."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Any] = []
        self.status = 200
        self.body: bytes = json.dumps(ANSWER).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.asked.append(json.loads(await Request(scope, receive).body()))
            await Response(self.body, status_code=self.status)(scope, receive, send)


@pytest.fixture(scope="module")
def running() -> Iterator[Answering]:
    server = Answering()
    with serving(server) as server.url:
        yield server


@pytest.fixture
def server(running: Answering, monkeypatch: pytest.MonkeyPatch) -> Answering:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    running.asked, running.status, running.body = [], 200, json.dumps(ANSWER).encode()
    return running


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, str | bytes], str]:
    def write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


@pytest.fixture
def ask(server: Answering, file: Any) -> Callable[..., int]:
    def run(state: str = "late", questions: str | None = None, *more: str) -> int:
        questions = questions or file("questions.yaml", QUESTIONS)
        url = [] if "--url" in more else ["--url", server.url]
        return main(["ask", *url, "--state", state, "--questions", questions, *more])

    return run


def test_the_answer_is_a_table_of_one_line_for_each_option(
    ask: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask() == 0
    heading, *rows, usage = capsys.readouterr().out.splitlines()
    assert heading.split() == ["question", "option", "probability", "confidence"]
    assert [row.split() for row in rows] == [
        ["1", "(choice)", "café", "[x]", "0.7500", "0.7000"],
        ["o" * 300, "0.2500"],
        ["mood", "(score)", "low", "0.1000"],
        ["high", "0.9000", "0.9000"],
    ]
    assert usage == "40 input tokens, model tiny"


def test_json_prints_the_body_as_it_came(ask: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("late", None, "--json") == 0
    assert json.loads(capsys.readouterr().out) == ANSWER


def test_what_is_asked_is_what_was_given(ask: Any, server: Answering) -> None:
    assert ask("late", None, "--model", "m", "--instructions", "i") == 0
    assert server.asked == [
        {
            "state": "late",
            "model": "m",
            "instructions": "i",
            "questions": {
                "1": {"type": "choice", "criteria": {"no": "n", "b": None}},
                "mood": {"type": "score", "criteria": ["a", "b"]},
            },
        }
    ]


@pytest.mark.parametrize(
    ("name", "content", "state"),
    [
        ("a.txt", "été\n", "été\n"),
        ("a.txt", b"\xef\xbb\xbfbom", "bom"),
        ("a.json", '{"a": [1, null]}', {"a": [1, None]}),
        ("a.md", "{}", "{}"),
    ],
)
def test_a_state_may_be_a_file(
    *, ask: Any, server: Answering, file: Any, name: str, content: str | bytes, state: Any
) -> None:
    assert ask(file(name, content)) == 0
    assert server.asked[0]["state"] == state


@pytest.mark.parametrize("text", ["", "a\0b", "x" * 5000, "/no/such/file", "été 👩‍💻"])
def test_any_other_state_is_text(ask: Any, server: Answering, text: str) -> None:
    assert ask(text) == 0
    assert server.asked[0]["state"] == text


def test_a_state_may_come_through_a_pipe(
    ask: Any, server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\r\n".encode()), "ascii"))
    assert ask("-") == 0
    assert server.asked[0]["state"] == "é\r\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("q.yaml", "{a: 1", "neither JSON nor YAML"),
        ("q.yaml", "[]", "must map"),
        ("q.yaml", b"\xff", "cannot be read"),
        ("q.json", '{"a": {"x": NaN}}', "cannot be written as JSON"),
        ("q.yaml", "a: &a [*a]", "cannot be written as JSON"),
    ],
)
def test_wrong_questions_are_one_sentence(
    *,
    ask: Any,
    file: Any,
    capsys: pytest.CaptureFixture[str],
    name: str,
    content: str | bytes,
    words: str,
) -> None:
    assert ask("late", file(name, content)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("decision-proxy ask: ")
    assert words in said.err


def test_a_state_that_is_not_what_its_name_says_is_one_sentence(
    ask: Any, file: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(file("s.json", "{")) == 1
    assert "s.json is not JSON" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert ask("-") == 1
    assert "standard input is not UTF-8" in capsys.readouterr().err
    assert ask("late", "/no/such/file") == 1
    assert "/no/such/file cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, {"error": {"message": "state: required"}}, "400: state: required"),
        (422, {"detail": [{"loc": [], "msg": "a"}, {"loc": [], "msg": "b"}]}, "422: a; b"),
        (503, {"detail": {"error_type": "x", "message": "not yet"}}, "503: not yet"),
        (502, b"<html>", "502: <html>"),
        (200, b"<html>", "does not answer with JSON"),
        (200, {"object": "list"}, "not with a decision"),
        (200, [], "not with a decision"),
    ],
)
def test_what_is_no_answer_is_one_sentence(
    *,
    ask: Any,
    server: Answering,
    capsys: pytest.CaptureFixture[str],
    status: int,
    body: Any,
    words: str,
) -> None:
    server.status = status
    server.body = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert ask() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:1", "Is the proxy running there?"),
        ("127.0.0.1:8001", "is not a URL"),
        ("file:///etc/passwd", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("", "is not a URL"),
    ],
)
def test_no_server_is_one_sentence(
    ask: Any, capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    assert ask("late", None, "--url", url) == 1
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_any_answer_can_be_printed_where_only_ascii_can(
    server: Answering, file: Any, flags: list[str]
) -> None:
    questions = file("q.yaml", QUESTIONS)
    command = ["ask", "--url", server.url, "--state", "x", "--questions", questions, *flags]
    done = subprocess.run(
        [sys.executable, "-m", "decision_proxy", *command],
        env={"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    if flags:
        assert json.loads(done.stdout) == ANSWER
    else:
        assert rb"caf\xe9" in done.stdout


def test_a_pipe_that_nobody_reads_ends_it_quietly(server: Answering, file: Any) -> None:
    server.body = json.dumps(ANSWER | {"filling": "x" * 1_000_000}).encode()
    questions = file("q.yaml", QUESTIONS)
    command = ["ask", "--url", server.url, "--state", "x", "--questions", questions, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "decision_proxy", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141
