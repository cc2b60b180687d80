"""One process, one gate: the servers that would start more are refused."""

import multiprocessing
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

VARIABLES = ("WEB_CONCURRENCY", "UVICORN_WORKERS")
FLAGS = ("--workers", "-w")


class ManyWorkers(RuntimeError):
    pass


def refuse_more_workers() -> None:
    """Raises ManyWorkers in a worker process of uvicorn, gunicorn or hypercorn with siblings."""
    if multiprocessing.parent_process() is None and "gunicorn" not in sys.modules:
        return
    asked = workers_asked(sys.argv[1:], os.environ)
    if asked > 1:
        raise ManyWorkers(
            f"{asked} workers were asked for, but decision-proxy needs 1: one process holds the "
            "gate where decisions take turns, and each more would let as much again into vLLM at "
            "a time. Start it with one worker."
        )


def workers_asked(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """The most processes that a server's command line or environment asks for; 1 if none does."""
    words = [*shlex.split(environment.get("GUNICORN_CMD_ARGS", "")), *arguments]
    said = [environment.get(name, "") for name in VARIABLES]
    for word, following in zip(words, [*words, ""][1:], strict=True):
        for flag in FLAGS:
            if word == flag:
                said.append(following)
            elif word.startswith(flag):
                said.append(word.removeprefix(flag).removeprefix("="))
    return max((int(number) for number in said if number.isdecimal()), default=1)
