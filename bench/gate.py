"""What the gate does for a bystander, and what it costs the burst: policies side by side.

    .venv/bin/python -m bench.gate [--quick] [--vllm] [--only big] [--policies off,turns,budget]

Each scenario is one burst of decisions, all at once, while a bystander asks a small question every
0.1 s. The proxy runs in front of the fake engine (`bench/engine.py`), or of a real vLLM on the CPU.
Every policy has a proxy of its own, all in front of the same engine; they take turns within each
repeat. Seconds are the engine's: the fake one's clock runs 2 or 4 times as fast as ours (`--speed`
says how many times that), so that a burst of a minute takes 15 s. "Engine busy" says whether the
engine was the bottleneck, as it has to be for the figures to mean anything, or this machine was.
"Tokens computed" are the burst's: the bystander's are left out.
Writes bench/results/gate.{md,json}, or gate_quick, gate_vllm.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

from bench.engine_process import ROOT, EngineServer
from bench.gate_load import Load, Run
from bench.gate_scenarios import (
    FULL,
    QUICK,
    REAL_CPU,
    Scenario,
    Sizes,
    Texts,
    burst,
    scenarios,
    single_token_words,
    warming,
)
from bench.gate_table import Row, head, line, row, table
from decision_proxy.embedded.environment import ensure_environment
from decision_proxy.embedded.home import default_home, log_file
from decision_proxy.embedded.models import tiny_qwen3, tokenizer
from decision_proxy.embedded.progress import PlainReport
from decision_proxy.embedded.proxy import ProxyServer
from decision_proxy.embedded.server import VllmServer
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.settings import Settings

RESULTS = ROOT / "bench" / "results"
POLICIES = ("off", "turns", "budget")
AS_IS = "as is"  # a proxy without a gate
CONNECTIONS = 1024
START_S = 600.0


class GatedProxy(ProxyServer):
    def __init__(self, upstream: str, folder: Path, policy: str, max_batched_tokens: int) -> None:
        log = log_file(default_home(), f"bench-proxy-{policy.replace(' ', '-')}")
        super().__init__(upstream, folder, log=log, port=0)
        self._gate = {
            "DECISION_PROXY_GATE__POLICY": policy,
            "DECISION_PROXY_GATE__MAX_BATCHED_TOKENS": str(max_batched_tokens),
        }
        self._gated = policy != AS_IS

    def environment(self) -> Mapping[str, str]:
        roomy = {"DECISION_PROXY_READS__CONNECTIONS": str(CONNECTIONS)}
        return {**os.environ, **roomy, **(self._gate if self._gated else {})}


@dataclass(frozen=True, slots=True)
class Stage:
    """Everything that runs: one engine, and a proxy for each policy."""

    engine: str
    proxies: Mapping[str, str]
    texts: Texts


@contextmanager
def stage(options: argparse.Namespace) -> Iterator[Stage]:
    report = PlainReport(sys.stderr)
    with ExitStack() as stack:
        folder = tokenizer(default_home(), "qwen3", report)
        engine = real_vllm(options, report) if options.vllm else fake_engine(options)
        stack.enter_context(engine).wait_healthy(START_S, report)
        proxies = {
            policy: stack.enter_context(
                GatedProxy(engine.url, folder, policy, options.max_batched_tokens)
            )
            for policy in options.policies
        }
        for proxy in proxies.values():
            proxy.wait_healthy(START_S, report)
        urls = {policy: proxy.url for policy, proxy in proxies.items()}
        yield Stage(engine.url, urls, texts_for(folder))


def fake_engine(options: argparse.Namespace) -> EngineServer:
    return EngineServer(max_batched_tokens=options.max_batched_tokens, kv_tokens=options.kv_tokens)


def real_vllm(options: argparse.Namespace, report: PlainReport) -> VllmServer:
    home = default_home()
    python = ensure_environment(home, report)
    return VllmServer(
        python,
        tiny_qwen3(home, python, report),
        "tiny-qwen3",
        log=log_file(home, "bench-vllm"),
        flags=("--max-num-batched-tokens", str(options.max_batched_tokens)),
    )


def texts_for(folder: Path) -> Texts:
    encode_many = Tokenizer.load(str(folder)).encode_many
    return Texts(single_token_words(lambda texts: list(map(len, encode_many(texts)))))


async def measured(
    scenario: Scenario, options: argparse.Namespace, on: Stage, progress: "Progress"
) -> list[Row]:
    speed = None if options.vllm else scenario.speed * options.speed
    runs: dict[str, list[Run]] = {policy: [] for policy in on.proxies}
    for repeat in range(options.repeats):
        for policy, proxy in on.proxies.items():
            progress.say(f"{scenario.name} · {policy} · repeat {repeat + 1}")
            name = f"{policy} {repeat}"
            asks = [make(scenario, name, on.texts) for make in (warming, burst)]
            runs[policy].append(await Load(proxy, on.engine, speed, on.texts).run(*asks))
    return [row(scenario.name, policy, done, speed or 1.0) for policy, done in runs.items()]


class Progress:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._step = 0

    def say(self, text: str) -> None:
        self._step += 1
        print(f"[{self._step}/{self._steps}] {text}", file=sys.stderr, flush=True)


async def bench(chosen: Sequence[Scenario], options: argparse.Namespace, on: Stage) -> list[Row]:
    progress = Progress(len(chosen) * len(on.proxies) * options.repeats)
    print(head(), flush=True)
    rows = []
    for scenario in chosen:
        for found in await measured(scenario, options, on, progress):
            rows.append(found)
            print(line(found), flush=True)
    return rows


def about(options: argparse.Namespace, sizes: Sizes) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    ).stdout.strip()
    return {
        "commit": commit,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "engine": "vLLM on the CPU, tiny Qwen3" if options.vllm else "fake",
        "sizes": asdict(sizes),
        **vars(options),
    }


def written(rows: Sequence[Row], told: dict[str, Any], name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    content = json.dumps({"about": told, "rows": rows}, indent=1)
    (RESULTS / f"{name}.json").write_text(content + "\n")
    (RESULTS / f"{name}.md").write_text(f"{told}\n\n{table(rows)}")


def arguments() -> argparse.Namespace:
    gated = "gate" in Settings.model_fields
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="smaller bursts, once, in a minute")
    parser.add_argument("--vllm", action="store_true", help="the real vLLM on the CPU")
    parser.add_argument("--only", default="", help="scenarios whose names hold this")
    parser.add_argument(
        "--policies", type=lambda text: text.split(","), default=POLICIES if gated else [AS_IS]
    )
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--speed", type=float, default=1.0, help="of all fake engine clocks")
    parser.add_argument("--max-batched-tokens", type=int)
    parser.add_argument("--kv-tokens", type=int, default=2_000_000, help="of the fake engine")
    options = parser.parse_args()
    if not gated and options.policies != [AS_IS]:
        parser.error("this proxy has no gate, so that it has no policies")
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.max_batched_tokens = options.max_batched_tokens or (2048 if options.vllm else 8192)
    return options


def main() -> None:
    options = arguments()
    sizes = REAL_CPU if options.vllm else QUICK if options.quick else FULL
    chosen = [one for one in scenarios(sizes) if options.only in one.name]
    with stage(options) as on:
        rows = asyncio.run(bench(chosen, options, on))
    name = "gate_vllm" if options.vllm else "gate_quick" if options.quick else "gate"
    written(rows, about(options, sizes), name)


if __name__ == "__main__":
    main()
