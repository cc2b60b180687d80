"""The command line. Flags, environment and settings say the same: all come from `Settings`."""

import argparse
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

from decision_proxy import __version__
from decision_proxy.settings import Settings

PREFIX = "DECISION_PROXY_"
INTERRUPTED = 130
BROKEN_PIPE = 141
NOT_AN_OBJECT = "is wrong: it must be a JSON object"
Path_ = tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 for a failure that was explained, 2 for wrong usage."""
    options = parser().parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    _print_any_text()
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # as with `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return status


def _print_any_text() -> None:
    """A terminal that cannot show a character gets its escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="decision-proxy",
        description="Answers typed decisions in front of an unmodified vLLM.",
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add = partial(commands.add_parser, allow_abbrev=False)
    serve = add("serve", help="run the proxy")
    _add_settings(serve)
    serve.set_defaults(run=_serve)
    check = add("check", help="test a live vLLM and the tokenizer against it")
    _add_settings(check)
    check.set_defaults(run=_check)
    _add_ask(add("ask", help="ask one decision, answers as a table"))
    _add_demo(add("demo", help="a real vLLM on the CPU, the proxy, one decision"))
    return top


def fields(
    model: type[BaseModel] = Settings, path: Path_ = ()
) -> Iterator[tuple[Path_, FieldInfo]]:
    """Every single setting with its path, groups opened."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, (*path, name))
        else:
            yield (*path, name), field


def flag(path: Path_) -> str:
    return "--" + "-".join(path).replace("_", "-")


def variable(path: Path_) -> str:
    return PREFIX + "__".join(path).upper()


def _add_settings(command: argparse.ArgumentParser) -> None:
    for path, field in fields():
        default = field.get_default(call_default_factory=True)
        said = "" if field.is_required() or default in (None, {}) else f" Default: {default}."
        command.add_argument(
            flag(path),
            dest=".".join(path),
            metavar=path[-1].upper(),
            help=f"{field.description}{said} [{variable(path)}]".replace("%", "%%"),
        )


def _settings(options: argparse.Namespace) -> Settings | None:
    """Flags over environment over defaults; None after the mistakes were explained."""
    given: dict[str, Any] = {}
    for path, field in fields():
        value = getattr(options, ".".join(path))
        if value is not None:
            _put(given, path, _parsed(value, field))
    try:
        return Settings(**given)
    except ValidationError as error:
        for mistake in error.errors():
            path = tuple(str(part) for part in mistake["loc"])
            print(
                f"decision-proxy: {_explained(path, mistake['type'], mistake['msg'])}",
                file=sys.stderr,
            )
    except SettingsError as error:
        named = re.search(r'field "(\w+)"', str(error))
        source = variable((named[1],)) if named else "a DECISION_PROXY_ variable"
        print(f"decision-proxy: {source} {NOT_AN_OBJECT}", file=sys.stderr)
    return None


def _put(given: dict[str, Any], path: Path_, value: Any) -> None:
    for name in path[:-1]:
        given = given.setdefault(name, {})
    given[path[-1]] = value


def _parsed(value: str, field: FieldInfo) -> Any:
    if "dict" not in str(field.annotation):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _explained(path: Path_, kind: str, message: str) -> str:
    known = next((p for p, _ in fields() if p == path[: len(p)]), path)
    if kind == "missing":
        what = "is required"
    elif kind == "extra_forbidden":
        what = "is not a setting"
    elif kind in {"dict_type", "model_type", "model_attributes_type"}:
        what = NOT_AN_OBJECT
    else:
        what = f"is wrong: {message.removeprefix('Value error, ')}"
    return f"{flag(known)} (or {variable(known)}) {what}"


def _serve(options: argparse.Namespace) -> int:
    if (settings := _settings(options)) is None:
        return 2
    from decision_proxy.commands.serve import serve

    return serve(settings)


def _check(options: argparse.Namespace) -> int:
    if (settings := _settings(options)) is None:
        return 2
    from decision_proxy.commands.check import check

    return check(settings)


def _add_ask(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", default="http://127.0.0.1:8001", help="the proxy, without /v1")
    command.add_argument(
        "--state", required=True, metavar="FILE_OR_TEXT", help="a file, a text, or - for stdin"
    )
    command.add_argument(
        "--questions", required=True, metavar="FILE", type=Path, help="JSON or YAML: id to question"
    )
    command.add_argument("--instructions", help="context ahead of the questions")
    command.add_argument("--model", help="a served model or alias; the served one by default")
    command.add_argument("--json", action="store_true", help="print the answer's body")
    command.set_defaults(run=_ask)


def _ask(options: argparse.Namespace) -> int:
    from decision_proxy.commands.ask import ask

    return ask(options)


def _add_demo(command: argparse.ArgumentParser) -> None:
    command.add_argument("--once", action="store_true", help="end after the answer")
    command.add_argument("--json", action="store_true", help="print the answer's body")
    command.add_argument("--port", type=int, default=8001, help="port of the proxy")
    command.add_argument("--vllm-port", type=int, default=8000, help="port of vLLM")
    command.add_argument("--home", type=Path, help="where environment and models are kept")
    command.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    from decision_proxy.embedded.demo import DemoOptions, run_demo

    logging.basicConfig(level=logging.WARNING)
    status: int = run_demo(
        DemoOptions(
            once=options.once,
            json=options.json,
            port=options.port,
            vllm_port=options.vllm_port,
            home=options.home,
        )
    )
    return status
