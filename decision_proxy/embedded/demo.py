"""`decision-proxy demo`: from nothing to a decision on the screen."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from decision_proxy.commands.ask import print_answers
from decision_proxy.embedded.environment import ensure_environment
from decision_proxy.embedded.errors import SetupError
from decision_proxy.embedded.home import default_home, log_file
from decision_proxy.embedded.machine import require_free_port, require_memory
from decision_proxy.embedded.models import smollm2
from decision_proxy.embedded.progress import Report, report_to
from decision_proxy.embedded.proxy import ProxyServer
from decision_proxy.embedded.server import Server, VllmServer
from decision_proxy.embedded.ticket import MODEL, QUESTIONS, REQUEST, curl

MAX_MODEL_LEN = 8192
VLLM_TIMEOUT_S = 900.0
PROXY_TIMEOUT_S = 120.0
TICK_S = 0.5
ENDING = (signal.SIGINT, signal.SIGTERM)
FAILED = 1
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class DemoOptions:
    once: bool = False
    json: bool = False
    port: int = 8001
    vllm_port: int = 8000
    home: Path | None = None


def run_demo(options: DemoOptions) -> int:
    """The exit code: 0, 1 with a sentence on stderr, or 130 after Ctrl-C during the set-up."""
    try:
        with interruptible(), report_to(sys.stderr) as report, ExitStack() as servers:
            vllm, proxy = start_servers(options, servers, report)
            answer = proxy.decide(REQUEST)
            show(answer, options, vllm, proxy)
            return 0 if options.once else stay(vllm, proxy)
    except BrokenPipeError:
        raise
    except (SetupError, OSError) as error:
        print(f"decision-proxy demo: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("decision-proxy demo: stopped; run it again to go on from here.", file=sys.stderr)
        return INTERRUPTED


def start_servers(
    options: DemoOptions, servers: ExitStack, report: Report
) -> tuple[VllmServer, ProxyServer]:
    require_ports(options)
    home = (options.home or default_home()).absolute()
    python = ensure_environment(home, report)
    model = smollm2(home, python, report)
    require_memory(report)
    vllm = VllmServer(
        python,
        model,
        MODEL,
        log=log_file(home, f"vllm-{options.vllm_port}"),
        port=options.vllm_port,
        max_model_len=MAX_MODEL_LEN,
    )
    log = log_file(home, f"proxy-{options.port}")
    proxy = ProxyServer(vllm.url, model, log=log, port=options.port)
    servers.enter_context(vllm)
    servers.enter_context(proxy)
    vllm.wait_healthy(VLLM_TIMEOUT_S, report, beside=proxy)
    proxy.wait_healthy(PROXY_TIMEOUT_S, report, beside=vllm)
    return vllm, proxy


def require_ports(options: DemoOptions) -> None:
    if options.port == options.vllm_port != 0:
        raise SetupError(
            f"The proxy and vLLM cannot both have port {options.port}; "
            "choose another with --vllm-port."
        )
    require_free_port(options.vllm_port, "--vllm-port")
    require_free_port(options.port, "--port")


def show(
    answer: dict[str, Any], options: DemoOptions, vllm: VllmServer, proxy: ProxyServer
) -> None:
    if options.json:
        print(json.dumps(answer, ensure_ascii=False), flush=True)
    else:
        print_answers(Console(), answer, QUESTIONS)
    if not options.once:
        for line in farewell(vllm, proxy):
            print(line, file=sys.stderr if options.json else sys.stdout, flush=True)


def farewell(vllm: VllmServer, proxy: ProxyServer) -> list[str]:
    return [
        "",
        f"The proxy  {proxy.url}",
        f"vLLM       {vllm.url}   (log: {vllm.log})",
        "",
        "Ask it yourself:",
        "",
        f"  {curl(proxy.url)}",
        "",
        "Ctrl-C ends both.",
    ]


def stay(*servers: Server) -> int:
    """Until Ctrl-C, or until one of the servers dies."""
    try:
        while True:
            for server in servers:
                if server.wait(TICK_S):
                    raise SetupError(server.obituary())
    except KeyboardInterrupt:
        print("\nEnding both …", file=sys.stderr)
        return 0


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is Ctrl-C; and so is SIGINT, which shells switch off for what they run behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
