"""`decision-proxy serve`: the proxy under uvicorn."""

import asyncio
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn
from jinja2 import TemplateError
from starlette.applications import Starlette

from decision_proxy.app import create_app
from decision_proxy.commands.http import JsonProtocol
from decision_proxy.errors import ProxyError
from decision_proxy.prompt.tokenizer import TokenizerError
from decision_proxy.settings import Settings

# Answers that say so must still get out after `shutdown_s`.
LAST_WORDS_S = 3.0
# The longest a busy worker thread keeps the event loop waiting; Python's own is 5 ms.
SWITCH_INTERVAL_S = 0.001

log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Ends with 0 after a signal: who waits is sent away at once, running decisions get
    `shutdown_s`, or until a second signal."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=JsonProtocol,
                log_config=None,
                server_header=False,
                timeout_graceful_shutdown=int(settings.shutdown_s + LAST_WORDS_S) + 1,
            )
        )
        self._app = app
        self._shutdown_s = settings.shutdown_s
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.drain()
        asyncio.get_running_loop().call_later(self._shutdown_s, self._app.state.closing.set)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._app.state.closing.set)
        self.should_exit = True


def serve(settings: Settings) -> int:
    """Returns 0 after a signal, 1 with a sentence on stderr when it cannot serve."""
    signal.signal(signal.SIGTERM, _end)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        sockets = listen(settings.host, settings.port)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        return _failed(f"cannot listen on {settings.host} port {settings.port}: {reason}")
    try:
        app = create_app(settings)
    except TemplateError as error:
        return _failed(f"the chat template cannot be used: {error}")
    except (TokenizerError, ProxyError) as error:
        return _failed(str(error))
    for each in sockets:
        log.info("listening on %s port %s", *each.getsockname()[:2])
    server = Server(app, settings)
    server.run(sockets)
    return 0 if server.started else 1


def listen(host: str, port: int) -> list[socket.socket]:
    """One bound socket for each address of `host`, before anything slow is done."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        # asyncio sets TCP_NODELAY only where the protocol says TCP; without it answers on a kept
        # connection wait 40 ms for an acknowledgement
        bound = socket.socket(family, kind, protocol)
        sockets.append(bound)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    return sockets


def _failed(sentence: str) -> int:
    print(f"decision-proxy: {sentence}", file=sys.stderr)
    return 1


def _end(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)
