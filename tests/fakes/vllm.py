"""A vLLM that a test scripts: real HTTP on 127.0.0.1, made-up logprobs, faults on demand.

    async with FakeVllm() as vllm:
        vllm.probabilities = lambda prompt: {32: 0.7, 33: 0.2}   # by token id; 32 is sampled
        vllm.faults[3] = faults.status(503)                      # the third read, counted from 1
        vllm.every_read = faults.hang()                          # all reads without one of theirs
        … talk to vllm.url …
        await vllm.until(lambda: len(vllm.reads) == 2)           # waits for events, never sleeps
        assert vllm.reads[0].body["prompt"] == [1, 2, 3]
        assert vllm.reads[0].aborted                             # its client hung up

Whatever is not scripted follows the prompt: the same ids always give the same logprobs, alone or
in a list. It runs in the test's own event loop.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fakes.completions import MOST_IDS, Probabilities, completion, is_list, prompts_of


@dataclass
class Seen:
    """One request that arrived. `number` counts reads from 1; 0 is anything else."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    connection: int
    number: int = 0
    reused_connection: bool = False
    answered: bool = False
    aborted: bool = False

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class Connection:
    number: int
    served: int = 0
    busy: bool = False


@dataclass
class Exchange:
    """What a fault works with: the request, and the answer it would have got."""

    request: web.Request
    seen: Seen
    answer: dict[str, Any]


SEEN = web.RequestKey("SEEN", Seen)

Fault = Callable[[Exchange], Awaitable[web.StreamResponse]]


@dataclass
class Model:
    name: str = "tiny"
    root: str = "/models/tiny"
    max_model_len: int | None = 8192
    parent: str | None = None


@dataclass
class FakeVllm:
    models: Sequence[Model] = (Model(),)
    api_key: str | None = None
    version: str | None = "0.33.0"
    metrics: str | None = None
    takes_lists: bool = True
    answers_logits: bool = False
    ready: bool = True
    probabilities: Probabilities = lambda _prompt: {}
    tokenize: Callable[[Mapping[str, Any]], list[int]] = lambda body: list(str(body).encode())
    refuse_tokenize: int | None = None
    refuse_system: bool = False
    faults: dict[int, Fault] = field(default_factory=dict)
    every_read: Fault | None = None
    requests: list[Seen] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._change = asyncio.Event()
        self._connections: dict[asyncio.Transport, Connection] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._record])
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._completions)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def reads(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.number]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something that happened here makes the condition true."""
        while not condition():
            await self._change.wait()

    def drop_idle_connections(self) -> None:
        """Closes every connection that is waiting for its next request."""
        for transport, connection in self._connections.items():
            if not connection.busy:
                transport.close()

    def _happened(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    @web.middleware
    async def _record(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = self._connection(request)
        connection.busy = True
        seen = await self._seen(request, connection)
        try:
            response = self._refusal(request) or await handler(request)
        except asyncio.CancelledError:
            seen.aborted = True
            raise
        else:
            seen.answered = True
            return response
        finally:
            connection.busy = False
            self._happened()

    def _connection(self, request: web.Request) -> Connection:
        if request.transport is None:
            raise asyncio.CancelledError
        return self._connections.setdefault(
            request.transport, Connection(len(self._connections) + 1)
        )

    async def _seen(self, request: web.Request, connection: Connection) -> Seen:
        connection.served += 1
        seen = Seen(
            path=request.path,
            headers=dict(request.headers),
            raw=await request.read(),
            connection=connection.number,
            reused_connection=connection.served > 1,
        )
        if request.path == "/v1/completions":
            seen.number = len(self.reads) + 1
        request[SEEN] = seen
        self.requests.append(seen)
        self._happened()
        return seen

    def _refusal(self, request: web.Request) -> web.Response | None:
        if not self.ready:
            return error(503, "the engine is starting")
        guarded = self.api_key is not None and request.path.startswith("/v1")
        if guarded and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return None

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        if self.version is None:
            return not_found()
        return web.json_response({"version": self.version})

    async def _metrics(self, _request: web.Request) -> web.Response:
        return not_found() if self.metrics is None else web.Response(text=self.metrics)

    async def _models(self, _request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [
            {
                "id": model.name,
                "object": "model",
                "created": 1,
                "owned_by": "vllm",
                "root": model.root,
                "parent": model.parent,
                "max_model_len": model.max_model_len,
                "permission": [],
            }
            for model in self.models
        ]
        return web.json_response({"object": "list", "data": cards})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.refuse_tokenize is not None:
            return error(self.refuse_tokenize, "no")
        body = await request.json()
        if self.refuse_system and body["messages"][0]["role"] == "system":
            return error(400, "no system turn")
        tokens = self.tokenize(body)
        return web.json_response(
            {"count": len(tokens), "max_model_len": 8192, "tokens": tokens, "token_strs": None}
        )

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        seen: Seen = request[SEEN]
        refusal = self._read_refusal(seen.body)
        if refusal is not None:
            return refusal
        answer = completion(seen.body, self.probabilities, logits=self.answers_logits)
        fault = self.faults.get(seen.number, self.every_read)
        if fault is not None:
            return await fault(Exchange(request, seen, answer))
        return web.json_response(answer)

    def _read_refusal(self, body: Mapping[str, Any]) -> web.Response | None:
        model = next((model for model in self.models if model.name == body["model"]), None)
        if model is None:
            return error(404, f"The model `{body['model']}` does not exist.", "model")
        if not self.takes_lists and is_list(body):
            return error(400, "batched prompts are not supported", "prompt")
        if len(body["logprob_token_ids"]) > MOST_IDS:
            return error(400, f"logprob_token_ids has more than {MOST_IDS}", "logprob_token_ids")
        limit = model.max_model_len
        longest = max(map(len, prompts_of(body)))
        if limit is not None and longest + 1 > limit:
            return error(400, f"This model's maximum context length is {limit} tokens.", "prompt")
        return None


def error(
    status: int, message: str, param: str | None = None, retry_after: str | None = None
) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "Error", "param": param, "code": status}},
        status=status,
        headers={} if retry_after is None else {"Retry-After": retry_after},
    )


def not_found() -> web.Response:
    return web.json_response({"detail": "Not Found"}, status=404)
