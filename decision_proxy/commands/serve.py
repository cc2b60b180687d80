"""`decision-proxy serve`: the proxy under uvicorn."""

import logging
import sys

import uvicorn

from decision_proxy.app import create_app
from decision_proxy.prompt.tokenizer import TokenizerError
from decision_proxy.settings import Settings


def serve(settings: Settings) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        app = create_app(settings)
    except TokenizerError as error:
        print(f"decision-proxy: {error}", file=sys.stderr)
        return 1
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, log_config=None, server_header=False
    )
    server = uvicorn.Server(config)
    server.run()
    return 0 if server.started else 1
