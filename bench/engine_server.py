"""The fake engine in real time, behind the routes of vLLM that the proxy uses.

    .venv/bin/python -m bench.engine_server --port 8000 [--speed 4]

The frontend's own CPU time is not modelled. What this process itself needs costs no engine time: a
step that begins late because a body was being parsed ends when it would have ended anyway.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field

import orjson
from aiohttp import web

from bench.engine import Costs, Limits, Prompt, Request, Scheduler
from bench.engine_answers import answer
from bench.engine_prompts import Parsed, parsed

MODEL = "fake"
VERSION = "0.33.0"
LARGEST_BODY = 64 << 20
MOST_IDS = 128
MOST_WAITING = 65_536


class QueueFullError(Exception):
    """There are as many waiting requests as the engine takes."""


@dataclass(eq=False, slots=True)
class Batch:
    """The requests of one HTTP request; `done` when all are."""

    done: asyncio.Future[None]
    missing: set[Request]


@dataclass
class Engine:
    """Time runs `speed` times as fast as the costs say. `late_s`: how far it fell behind, ever."""

    scheduler: Scheduler
    costs: Costs = field(default_factory=Costs)
    speed: float = 1.0
    busy_s: float = 0.0
    late_s: float = 0.0

    def __post_init__(self) -> None:
        self._batches: dict[Request, Batch] = {}
        self._arrival = asyncio.Event()

    async def read(self, prompts: Sequence[Prompt]) -> list[Request]:
        """Ends when all prompts are computed; cancelling aborts them."""
        if self.scheduler.waiting + len(prompts) > MOST_WAITING:
            raise QueueFullError
        requests = [self.scheduler.add(prompt) for prompt in prompts]
        batch = Batch(asyncio.get_running_loop().create_future(), set(requests))
        self._batches.update(dict.fromkeys(requests, batch))
        self._arrival.set()
        try:
            await batch.done
        finally:
            for request in batch.missing:
                del self._batches[request]
                self.scheduler.abort(request)
        return requests

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        ends_s = clock()
        while True:
            step = self.scheduler.start_step()
            if step is None:
                self._arrival.clear()
                await self._arrival.wait()
                ends_s = clock()
                continue
            seconds = self.costs.of(step) / self.speed
            self.busy_s += seconds
            ends_s += seconds
            self.late_s = max(self.late_s, clock() - ends_s)
            await asyncio.sleep(max(0.0, ends_s - clock()))
            for request in self.scheduler.finish_step():
                self._finished(request)

    def _finished(self, request: Request) -> None:
        batch = self._batches.pop(request, None)
        if batch is None:
            return
        batch.missing.discard(request)
        if not batch.missing and not batch.done.done():
            batch.done.set_result(None)


class Routes:
    def __init__(self, engine: Engine, max_model_len: int) -> None:
        self._engine = engine
        self._max_model_len = max_model_len

    def application(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_get("/health", self.health)
        app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/bench/speed", self.speed)
        app.cleanup_ctx.append(self._running_engine)
        return app

    async def _running_engine(self, _app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self._engine.run())
        yield
        task.cancel()

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def models(self, _request: web.Request) -> web.Response:
        card = {
            "id": MODEL,
            "object": "model",
            "created": 1,
            "owned_by": "vllm",
            "root": MODEL,
            "parent": None,
            "max_model_len": self._max_model_len,
            "permission": [],
        }
        return web.json_response({"object": "list", "data": [card]})

    async def metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text="\n".join(metric_lines(self._engine)) + "\n")

    async def speed(self, request: web.Request) -> web.Response:
        """Ours, not vLLM's: the body is how fast time runs from the next step on."""
        self._engine.speed = float(await request.text())
        return web.Response()

    async def completions(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            asked = parsed(body, self._engine.scheduler.limits.block_tokens)
        except (ValueError, TypeError) as mistake:
            return error(400, str(mistake), "prompt")
        refusal = self._refusal(asked)
        if refusal is not None:
            return refusal
        try:
            read = await self._engine.read(asked.prompts)
        except QueueFullError:
            return error(503, "The engine's queue is full.")
        content = orjson.dumps(answer(asked.fields, read))
        return web.Response(body=content, content_type="application/json")

    def _refusal(self, asked: Parsed) -> web.Response | None:
        model = asked.fields.get("model")
        if model != MODEL:
            return error(404, f"The model `{model}` does not exist.", "model")
        if len(asked.fields.get("logprob_token_ids") or ()) > MOST_IDS:
            return error(400, f"logprob_token_ids has more than {MOST_IDS}", "logprob_token_ids")
        longest = max(prompt.tokens for prompt in asked.prompts)
        if longest + 1 > self._max_model_len:
            limit = f"This model's maximum context length is {self._max_model_len} tokens."
            return error(400, f"{limit} The prompt has {longest}.", "prompt")
        return None


def error(status: int, message: str, param: str | None = None) -> web.Response:
    content = {"message": message, "type": "Error", "param": param, "code": status}
    return web.json_response({"error": content}, status=status)


def metric_lines(engine: Engine) -> list[str]:
    """vLLM's names and labels, and two of our own: modelled work, and how late it ever was."""
    scheduler, counters = engine.scheduler, engine.scheduler.counters
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    values: dict[str, float] = {
        "vllm:num_requests_running": scheduler.running,
        "vllm:num_requests_waiting": scheduler.waiting,
        "vllm:kv_cache_usage_perc": scheduler.cache_usage,
        "vllm:prefix_cache_queries_total": counters.queries,
        "vllm:prefix_cache_hits_total": counters.hits,
        "vllm:prompt_tokens_total": counters.prompt_tokens,
        "vllm:generation_tokens_total": counters.finished,
        "vllm:num_preemptions_total": 0,
        "bench:computed_tokens_total": counters.computed,
        "bench:aborted_requests_total": counters.aborted,
        "bench:engine_busy_seconds_total": engine.busy_s,
        "bench:engine_late_seconds": engine.late_s,
    }
    limits = scheduler.limits
    cache = (
        f'block_size="{limits.block_tokens}",enable_prefix_caching="{limits.prefix_caching}",'
        f'engine="0",num_gpu_blocks="{limits.blocks}"'
    )
    lines = [f"{name}{labels} {float(value)}" for name, value in values.items()]
    return [*lines, f"vllm:cache_config_info{{{cache}}} 1.0"]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--max-model-len", type=int, default=32_768)
    for name, default in asdict(Limits()).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=int, default=default)
    return parser


async def serve(options: argparse.Namespace) -> None:
    limits = Limits(**{name: getattr(options, name) for name in asdict(Limits())})
    if limits.blocks * limits.block_tokens < options.max_model_len:
        raise SystemExit("the cache is smaller than one longest prompt")
    engine = Engine(Scheduler(limits), speed=options.speed)
    runner = web.AppRunner(
        Routes(engine, options.max_model_len).application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=0,
        keepalive_timeout=5,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", options.port, backlog=1024).start()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(arguments().parse_args()))
