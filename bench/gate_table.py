"""The results of `bench/gate.py`: figures of each run, medians with spread, tables."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from bench.gate_load import Answered, Run

Figures = dict[str, float]
Row = dict[str, Any]

COLUMNS = (
    ("bystander p50 s", "bystander_p50_s", "{:.2f}"),
    ("p95 s", "bystander_p95_s", "{:.2f}"),
    ("decision p50 s", "decision_p50_s", "{:.2f}"),
    ("p95 s", "decision_p95_s", "{:.2f}"),
    ("questions/s", "questions_per_s", "{:.0f}"),
    ("tokens computed", "tokens_computed", "{:,.0f}"),
    ("engine busy", "engine_busy", "{:.0%}"),
)


def figures(run: Run, speed: float) -> Figures:
    """Seconds of the engine's clock, which is `speed` times as fast as ours."""
    seconds = run.seconds * speed
    answered = [answer for answer in run.decisions if answer.ok]
    bystander_tokens = sum(answer.tokens for answer in run.bystander)
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    found = {
        "bystander_p50_s": speed * percentile(run.bystander, 0.50),
        "bystander_p95_s": speed * percentile(run.bystander, 0.95),
        "decision_p50_s": speed * percentile(run.decisions, 0.50),
        "decision_p95_s": speed * percentile(run.decisions, 0.95),
        "questions_per_s": sum(answer.questions for answer in answered) / seconds,
        "tokens_computed": run.engine[queries] - run.engine[hits] - bystander_tokens,
        "seconds": seconds,
        "bystander_asked": len(run.bystander),
    }
    busy_s = run.engine.get("bench:engine_busy_seconds_total")
    if busy_s is not None:
        found["engine_busy"] = busy_s / run.seconds
        found["engine_busy_s"] = busy_s * speed
    return found


def percentile(answers: Sequence[Answered], share: float) -> float:
    """Of those that were answered; nearest rank."""
    times = sorted(answer.took_s for answer in answers if answer.ok)
    return times[max(0, math.ceil(share * len(times)) - 1)] if times else math.nan


def row(scenario: str, policy: str, runs: Sequence[Run], speed: float) -> Row:
    each = [figures(run, speed) for run in runs]
    statuses = Counter(answer.status for run in runs for answer in (*run.decisions, *run.bystander))
    return {
        "scenario": scenario,
        "policy": policy,
        "speed": speed,
        "median": {name: statistics.median(of(each, name)) for name in each[0]},
        "spread": {name: [min(of(each, name)), max(of(each, name))] for name in each[0]},
        "errors": {str(code): n for code, n in sorted(statuses.items()) if code != HTTPStatus.OK},
        "runs": each,
    }


def of(each: Sequence[Figures], name: str) -> list[float]:
    return [one[name] for one in each]


def head() -> str:
    names = ["scenario", "policy", *(title for title, _, _ in COLUMNS), "errors"]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def line(row: Row) -> str:
    cells = [cell(row, name, form.format) for _, name, form in COLUMNS]
    errors = ", ".join(f"{n}× {code}" for code, n in row["errors"].items()) or "none"
    return f"| {' | '.join([row['scenario'], row['policy'], *cells, errors])} |"


def cell(row: Row, name: str, form: Callable[[float], str]) -> str:
    if name not in row["median"]:
        return "–"
    low, high = map(form, row["spread"][name])
    middle = form(row["median"][name])
    return middle if low == high else f"{middle} ({low} to {high})"


def table(rows: Sequence[Row]) -> str:
    return "\n".join([head(), *map(line, rows)]) + "\n"
