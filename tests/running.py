"""The real application under a real uvicorn, on a free port of the loopback interface."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from decision_proxy.app import create_app
from decision_proxy.settings import Settings


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """The URL of `app` while it serves."""
    listener = socket.create_server(("127.0.0.1", 0))
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    server = Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert started.wait(30)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@contextmanager
def proxy(upstream: str, tokenizer: Any, **options: Any) -> Iterator[str]:
    settings = Settings(upstream=upstream, tokenizer=str(tokenizer), **options)
    with serving(create_app(settings)) as url:
        yield url
