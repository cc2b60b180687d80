"""Time from a decision's texts to its token ids, against encoding every prompt whole.

    .venv/bin/python bench/splice.py [--questions 64] [--tokens 27000] [--rounds 5]

64 questions on one state of 27k tokens. In each round the state is new, so that "first" is cold;
then the same decision again, then with the state grown by 1 %. "whole" renders and encodes every
prompt by itself, as vLLM does: one after the other, and as one parallel batch. Every row is
checked: the spliced ids are the ids of the whole prompts. Writes bench/results/splice.{md,json}.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from decision_proxy.embedded.home import default_home
from decision_proxy.embedded.models import tokenizer
from decision_proxy.embedded.progress import PlainReport
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.spliced import Spliced
from decision_proxy.prompt.template import ChatTemplate
from decision_proxy.prompt.tokenizer import Tokenizer

RESULTS = Path(__file__).parent / "results"
NAMES = ("qwen3", "llama3_1", "gemma3")


@cache
def prose() -> str:
    """The standard library's own sources: varied text that is on every machine."""
    files = sorted(Path(random.__file__).parent.glob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def state_of(tokenizer: Tokenizer, tokens: int, seed: int) -> str:
    text = prose()
    start = random.Random(seed).randrange(len(text) - 12 * tokens)
    ids = tokenizer.encode(text[start : start + 12 * tokens])[:tokens]
    return tokenizer.decode(ids)


def questions(count: int) -> list[str]:
    return [
        f"\n\nQuestion: Does point {i} of the policy apply to this conversation?\n"
        "yes: it clearly does\nno: it does not, or it is unclear\nAnswer with yes or no only."
        for i in range(count)
    ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def measure(name: str, *, count: int, tokens: int, rounds: int) -> dict[str, Any]:
    folder = tokenizer(default_home(), name, PlainReport(sys.stderr))
    real = Tokenizer.load(str(folder))
    template = ChatTemplate(real.hf)
    splicer = Splicer(real, cache_bytes=256 << 20)
    tails = questions(count)
    times: dict[str, list[float]] = {
        key: [] for key in ("first", "repeat", "grown", "batch", "one")
    }

    def spliced(state: str) -> Spliced:
        rendered = template.render(Contents(state, tails))
        result = splicer.splice(rendered.head, rendered.tails)
        result.shared_json()
        return result

    def whole_texts(state: str) -> list[str]:
        options = {"enable_thinking": False}
        return [template._text(state + tail, None, options) for tail in tails]  # noqa: SLF001

    for round_number in range(rounds + 1):
        state = state_of(real, tokens, seed=round_number)
        grown = state + " " + state_of(real, tokens // 100, seed=1000 + round_number)
        row = {}
        row["first"], first = timed(lambda state=state: spliced(state))
        row["repeat"], _ = timed(lambda state=state: spliced(state))
        row["grown"], larger = timed(lambda grown=grown: spliced(grown))
        row["batch"], whole = timed(lambda state=state: real.encode_many(whole_texts(state)))
        row["one"], _ = timed(
            lambda state=state: [real.encode(text) for text in whole_texts(state)]
        )
        assert first.full_ids() == whole
        assert larger.full_ids() == real.encode_many(whole_texts(grown))
        if round_number:  # the first round warms everything up
            for key, seconds in row.items():
                times[key].append(seconds)
    return {
        "tokenizer": name,
        "method": splicer.method,
        "prompt_tokens": first.prompt_tokens()[0],
        "seconds": {key: statistics.median(values) for key, values in times.items()},
        "spread": {key: [min(values), max(values)] for key, values in times.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| tokenizer | how | tokens | whole, in turn | whole, one batch | first | repeat | grown "
        "| first over whole (turn / batch) | first over repeat | first over grown |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        s = row["seconds"]
        lines.append(
            f"| {row['tokenizer']} | {row['method']} | {row['prompt_tokens']} "
            f"| {s['one']:.2f} s | {s['batch']:.2f} s | {s['first'] * 1e3:.1f} ms "
            f"| {s['repeat'] * 1e3:.1f} ms | {s['grown'] * 1e3:.1f} ms "
            f"| {s['one'] / s['first']:.0f}× / {s['batch'] / s['first']:.0f}× "
            f"| {s['first'] / s['repeat']:.0f}× | {s['first'] / s['grown']:.0f}× |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    arguments.add_argument("--questions", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=27_000)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    rows = []
    for name in NAMES:
        rows.append(
            measure(name, count=options.questions, tokens=options.tokens, rounds=options.rounds)
        )
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    about = {
        "commit": commit,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        **vars(options),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "splice.json").write_text(
        json.dumps({"about": about, "rows": rows}, indent=1) + "\n"
    )
    text = f"{options.questions} questions on a state of {options.tokens} tokens; {about}\n\n"
    (RESULTS / "splice.md").write_text(text + table(rows))
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
