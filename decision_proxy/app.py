"""create_app: lifespan and wiring, nothing else."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from decision_proxy.admission import Admission, Brake, Closing, Room, Workers, loop_time
from decision_proxy.gate import Engine, Gate, Limits
from decision_proxy.observe.status import StatusEndpoints
from decision_proxy.one_process import refuse_more_workers
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.reads.decider import Decider
from decision_proxy.reads.served import Served
from decision_proxy.settings import Settings
from decision_proxy.upstream.channel import Channel
from decision_proxy.upstream.discovery import Upstream, authorization
from decision_proxy.upstream.engine import NOTHING_SAID, EngineLoad, look
from decision_proxy.upstream.known import known_engine
from decision_proxy.upstream.reads import ReadClient
from decision_proxy.wire.decisions import DecisionsRequest
from decision_proxy.wire.endpoint import Endpoint
from decision_proxy.wire.responses import routing_errors
from decision_proxy.wire.systemone import SystemOneRequest

log = logging.getLogger(__name__)


class Proxy:
    """The parts, each made once, and how they hold together."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        prompts = Prompts(
            Tokenizer.load(settings.tokenizer, chat_template=settings.prompt.chat_template),
            settings.prompt,
        )
        self.known = known_engine(settings.gate, NOTHING_SAID)
        self.gate = gate_of(settings, self.known.engine)
        self.admission = Admission(self.gate)
        self.served = Served(settings, prompts, found=self._found)
        # the reads' own connections may all be busy just when the brake is needed
        self.watched = Channel(
            str(settings.upstream), settings.reads.model_copy(update={"connections": 1})
        )
        self.brake = Brake(self.admission, self._look)
        self.workers = Workers(settings.prompt.threads)
        self.reads = ReadClient(str(settings.upstream), settings.reads)
        self.closing = Closing()

    def _found(self, upstream: Upstream) -> None:
        self.known = known_engine(self.settings.gate, upstream.engine)
        self.gate.adapt(self.known.engine)
        self.admission.advance()
        log.info("gate %s; engine: %s", self.gate.policy, self.known)

    async def _look(self) -> EngineLoad | None:
        if self.served.model is None:
            return None
        return await look(self.watched, authorization(self.served.api_key()))

    def routes(self) -> Iterator[Route]:
        settings, limits = self.settings, self.settings.limits
        decider = Decider(self.served, self.reads, self.workers, self.admission)
        room = Room(limits.bodies_bytes)
        systemone = partial(SystemOneRequest.parse, dialect=settings.dialect, limits=limits)
        decisions = partial(DecisionsRequest.parse, limits=limits)
        endpoint = partial(
            Endpoint, decider=decider, closing=self.closing, room=room, limits=limits
        )
        status = StatusEndpoints(self.served, self.gate, self.brake, lambda: self.known)
        yield Route(
            "/v1/systemone", endpoint(systemone, dialect=settings.dialect), methods=["POST"]
        )
        yield Route("/v1/decisions", endpoint(decisions, dialect="vllm"), methods=["POST"])
        yield Route("/-/live", status.live)
        yield Route("/-/ready", status.ready)
        yield Route("/-/state", status.state)

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        refuse_more_workers()
        watched = [self.served.keep_ready]
        if self.gate.policy == "budget":
            watched.append(self.brake.watch)
        async with self.reads, self.watched, running(watched):
            try:
                yield
            finally:
                self.workers.close()


def create_app(settings: Settings) -> Starlette:
    """The ASGI application. `app.state`: `drain()` sends away who waits and who comes, `closing`
    ends what runs, `served` knows the model, `gate` who runs.

    Raises TokenizerError or jinja2.TemplateError when tokenizer or template cannot be used.
    """
    proxy = Proxy(settings)
    app = Starlette(
        routes=list(proxy.routes()),
        lifespan=proxy.lifespan,
        exception_handlers=routing_errors({"/v1/systemone": settings.dialect}),
    )
    app.router.redirect_slashes = False  # a redirect would name a scheme and host it cannot know
    app.state.drain = proxy.admission.drain
    app.state.closing = proxy.closing
    app.state.served = proxy.served
    app.state.gate = proxy.gate
    return app


def gate_of(settings: Settings, engine: Engine) -> Gate:
    gate = settings.gate
    return Gate(
        gate.policy,
        engine,
        loop_time,
        slots=gate.slots,
        budget_tokens=gate.budget_tokens,
        limits=Limits(gate.waiting, gate.waiting_bytes),
    )


@asynccontextmanager
async def running(endless: list[Callable[[], Coroutine[Any, Any, Any]]]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each()) for each in endless]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
