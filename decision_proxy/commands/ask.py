"""`decision-proxy ask`: one decision from the shell."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import yaml
from rich.console import Console
from rich.table import Table

BAR_CELLS = 16
TIMEOUT_S = 600


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
    except AskError as error:
        print(f"decision-proxy ask: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(body, ensure_ascii=False))
    else:
        print_answers(Console(), body, questions)
    return 0


def post_decision(url: str, request: dict[str, Any]) -> dict[str, Any]:
    """The answer's body. Raises AskError with the server's own message."""
    call = Request(  # noqa: S310 - the user's own URL
        f"{url.rstrip('/')}/v1/systemone",
        data=json.dumps(request).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urlopen(call, timeout=TIMEOUT_S) as response:  # noqa: S310
            body: dict[str, Any] = json.load(response)
            return body
    except HTTPError as error:
        raise AskError(f"{error.code}: {_message(error.read())}") from error
    except (URLError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise AskError(f"no answer from {url}: {reason}. Is the proxy running there?") from error


def print_answers(console: Console, body: dict[str, Any], questions: dict[str, Any]) -> None:
    """A row for each option: a bar in a terminal, plain numbers in a pipe."""
    table = Table(box=None, pad_edge=False)
    for heading in ("question", "option", "probability", "", "confidence"):
        table.add_column(heading, overflow="fold", justify="right" if "i" in heading else "left")
    for id_, answer in body["answers"].items():
        names = answer.get("legend", {})
        best = max(answer["probabilities"], key=answer["probabilities"].get)
        for i, (option, probability) in enumerate(answer["probabilities"].items()):
            table.add_row(
                _plain(f"{id_} ({questions[id_]['type']})" if i == 0 else ""),
                _plain(names.get(option, option)),
                f"{probability:.4f}",
                _bar(probability) if console.is_terminal else "",
                f"{answer['confidence']:.4f}" if option == best else "",
                style="bold" if option == best else "",
            )
    console.print(table)
    usage = body["usage"]
    console.print(f"{usage['input_tokens']} input tokens, model {body['model']}", style="dim")


def _plain(text: str) -> Any:
    from rich.text import Text

    return Text(text)


def _bar(probability: float) -> str:
    cells = round(probability * BAR_CELLS)
    return "█" * cells + "░" * (BAR_CELLS - cells)


def _message(raw: bytes) -> str:
    try:
        body = json.loads(raw)
        detail = body.get("error") or body.get("detail")
        return str(detail["message"] if isinstance(detail, dict) else detail)
    except (ValueError, AttributeError, KeyError, TypeError):
        return raw[:200].decode(errors="replace")


def _state(source: str) -> Any:
    if source == "-":
        return sys.stdin.read()
    try:
        is_file = Path(source).is_file()
    except OSError:
        is_file = False
    if not is_file:
        return source
    text = _read(Path(source))
    return json.loads(text) if source.endswith(".json") else text


def _questions(path: Path) -> dict[str, Any]:
    try:
        questions = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise AskError(f"{path} is neither JSON nor YAML: {error}") from error
    if not isinstance(questions, dict):
        raise AskError(f"{path} must map each question's id to the question")
    inner = questions.get("questions")
    return inner if isinstance(inner, dict) and len(questions) == 1 else questions


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AskError(f"{path} cannot be read: {error}") from error
