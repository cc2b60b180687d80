"""The proxy's own endpoints: alive, ready and why not, and what it is doing."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from decision_proxy import __version__
from decision_proxy.reads.served import Served


class StatusEndpoints:
    def __init__(self, served: Served) -> None:
        self._served = served

    async def live(self, _request: Request) -> JSONResponse:
        return JSONResponse({"live": True})

    async def ready(self, _request: Request) -> JSONResponse:
        model = self._served.model
        if model is None:
            reasons = [self._served.trouble.message]
            return JSONResponse(
                {"ready": False, "reasons": reasons},
                status_code=HTTPStatus.SERVICE_UNAVAILABLE,
                headers={"retry-after": "2"},
            )
        return JSONResponse({"ready": True, "reasons": []})

    async def state(self, _request: Request) -> JSONResponse:
        model = self._served.model
        return JSONResponse(
            {
                "version": __version__,
                "model": None if model is None else model.name,
                "upstream": None if model is None else asdict(model.upstream),
                "prompt": self._prompt(),
            }
        )

    def _prompt(self) -> dict[str, Any]:
        prompts = self._served.prompts
        splicer = prompts.text_splicer
        return {
            "method": splicer.method,
            "template_followed": prompts.template.followable,
            "fallbacks": dict(splicer.fallbacks),
            "cache": {
                "pieces": asdict(splicer.pieces.statistics()),
                "windows": asdict(splicer.windows.statistics()),
            },
        }
