"""`decision-proxy ask`: one decision from the shell."""

import argparse
import json
import sys
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from rich.console import Console
from rich.table import Table
from rich.text import Text

from decision_proxy.commands.question_file import NotQuestions, read_questions

BAR_CELLS = 16
TIMEOUT_S = 600
# A pipe has no width: a row stays a line there.
PIPE_COLUMNS = 10_000
MAX_SHOWN_CHARS = 200


class AskError(Exception):
    """What went wrong, in one sentence."""


def ask(options: argparse.Namespace) -> int:
    """Returns 0 after an answer, 1 after an explained failure."""
    try:
        questions = _questions(options.questions)
        request = {"state": _state(options.state), "questions": questions}
        optional = {"instructions": options.instructions, "model": options.model}
        request |= {name: value for name, value in optional.items() if value is not None}
        body = post_decision(options.url, request)
        if options.json:
            utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            print(json.dumps(body, ensure_ascii=not utf8))
        else:
            print_answers(Console(), body, questions)
    except AskError as error:
        print(f"decision-proxy ask: {error}", file=sys.stderr)
        return 1
    return 0


def post_decision(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer's body. Raises AskError with the server's own message."""
    try:
        target = urlsplit(url)
        local = _is_local(target.hostname or "")
    except ValueError as error:
        raise AskError(f"{url} is not a URL: {error}") from error
    if target.scheme not in {"http", "https"} or not target.hostname:
        raise AskError(f"{url} is not a URL; it looks like http://127.0.0.1:8001")
    call = Request(  # noqa: S310 - http or https
        f"{url.rstrip('/')}/v1/systemone",
        data=_json(request),
        headers={"content-type": "application/json"},
    )
    opener = build_opener(ProxyHandler({})) if local else build_opener()
    try:
        with opener.open(call, timeout=TIMEOUT_S) as response:
            body = json.load(response)
    except HTTPError as error:
        raise AskError(f"{error.code}: {_message(error.read())}") from error
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise AskError(f"no answer from {url}: {reason}. Is the proxy running there?") from error
    except ValueError as error:
        raise AskError(f"{url} does not answer with JSON. Is it the proxy?") from error
    if not isinstance(body, dict) or not isinstance(body.get("answers"), dict):
        raise AskError(f"{url} answers, but not with a decision. Is it the proxy?")
    return body


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _json(request: dict[str, Any]) -> bytes:
    try:
        return json.dumps(request, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise AskError(f"the request cannot be written as JSON: {error}") from error


def print_answers(console: Console, body: dict[str, Any], questions: dict[str, Any]) -> None:
    """A row for each option: a bar in a terminal, plain numbers in a pipe."""
    table = Table(box=None, pad_edge=False)
    for heading in ("question", "option", "probability", "", "confidence"):
        number = heading in {"probability", "confidence"}
        table.add_column(heading, overflow="fold", justify="right" if number else "left")
    for id_, answer in body["answers"].items():
        names = answer.get("legend", {})
        best = max(answer["probabilities"], key=answer["probabilities"].get)
        for i, (option, probability) in enumerate(answer["probabilities"].items()):
            table.add_row(
                Text(f"{id_} ({questions.get(id_, answer)['type']})" if i == 0 else ""),
                Text(names.get(option, option)),
                f"{probability:.4f}",
                _bar(probability) if console.is_terminal else "",
                f"{answer['confidence']:.4f}" if option == best else "",
                style="bold" if option == best else "",
            )
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    console.print(table)
    usage = body["usage"]
    console.print(Text(f"{usage['input_tokens']} input tokens, model {body['model']}", "dim"))


def _bar(probability: float) -> str:
    cells = round(probability * BAR_CELLS)
    return "█" * cells + "░" * (BAR_CELLS - cells)


def _message(raw: bytes) -> str:
    """The words of an error in either dialect; what is not one is shown as it came."""
    try:
        body = json.loads(raw)
        detail = body.get("error") or body.get("detail")
        if isinstance(detail, list):
            return "; ".join(str(each["msg"]) for each in detail)
        return str(detail["message"] if isinstance(detail, dict) else detail)
    except (ValueError, AttributeError, KeyError, TypeError):
        return raw[:MAX_SHOWN_CHARS].decode(errors="replace")


def _state(source: str) -> Any:
    if source == "-":
        try:
            return sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise AskError(f"standard input is not UTF-8: {error}") from error
    try:
        is_file = Path(source).is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        return source
    text = _read(Path(source))
    if not source.endswith(".json"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AskError(f"{source} is not JSON: {error}") from error


def _questions(path: Path) -> dict[str, Any]:
    try:
        return read_questions(_read(path))
    except NotQuestions as error:
        raise AskError(f"{path} {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise AskError(f"{path} cannot be read: {error}") from error
