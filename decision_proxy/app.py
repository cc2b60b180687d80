"""create_app: lifespan and wiring, nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from starlette.applications import Starlette
from starlette.routing import Route

from decision_proxy.admission import Closing, Decider, Workers
from decision_proxy.observe.status import StatusEndpoints
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.reads.served import Served
from decision_proxy.settings import Settings
from decision_proxy.upstream.reads import ReadClient
from decision_proxy.wire.decisions import DecisionsRequest
from decision_proxy.wire.endpoint import Endpoint
from decision_proxy.wire.responses import routing_errors
from decision_proxy.wire.systemone import SystemOneRequest


def create_app(settings: Settings) -> Starlette:
    """The ASGI application; `app.state.closing` ends what runs, `app.state.served` knows the model.

    Raises TokenizerError or jinja2.TemplateError when tokenizer or template cannot be used.
    """
    prompts = Prompts(
        Tokenizer.load(settings.tokenizer, chat_template=settings.prompt.chat_template),
        settings.prompt,
    )
    served = Served(settings, prompts)
    workers = Workers(settings.prompt.threads)
    reads = ReadClient(str(settings.upstream), settings.reads)
    decider = Decider(served, reads, workers)
    closing = Closing()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with reads:
            finding = asyncio.create_task(served.keep_ready())
            try:
                yield
            finally:
                finding.cancel()
                with suppress(asyncio.CancelledError):
                    await finding
                workers.close()

    status = StatusEndpoints(served)
    body_bytes = settings.limits.body_bytes
    systemone = Endpoint(
        partial(SystemOneRequest.parse, dialect=settings.dialect, limits=settings.limits),
        decider,
        closing,
        dialect=settings.dialect,
        max_body_bytes=body_bytes,
    )
    decisions = Endpoint(
        partial(DecisionsRequest.parse, limits=settings.limits),
        decider,
        closing,
        dialect="vllm",
        max_body_bytes=body_bytes,
    )
    routes = [
        Route("/v1/systemone", systemone, methods=["POST"]),
        Route("/v1/decisions", decisions, methods=["POST"]),
        Route("/-/live", status.live),
        Route("/-/ready", status.ready),
        Route("/-/state", status.state),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=routing_errors({"/v1/systemone": settings.dialect}),
    )
    app.router.redirect_slashes = False  # a redirect would name a scheme and host it cannot know
    app.state.closing = closing
    app.state.served = served
    return app
