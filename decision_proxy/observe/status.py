"""The proxy's own endpoints: alive, ready and why not, and what it is doing."""

from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from decision_proxy import __version__
from decision_proxy.admission import DRAINING, Brake
from decision_proxy.gate import Gate
from decision_proxy.reads.served import Served
from decision_proxy.upstream.known import KnownEngine


class StatusEndpoints:
    def __init__(
        self, served: Served, gate: Gate, brake: Brake, known: Callable[[], KnownEngine]
    ) -> None:
        self._served = served
        self._gate = gate
        self._brake = brake
        self._known = known

    async def live(self, _request: Request) -> JSONResponse:
        return JSONResponse({"live": True})

    async def ready(self, _request: Request) -> JSONResponse:
        if reasons := self._reasons():
            return JSONResponse(
                {"ready": False, "reasons": reasons},
                status_code=HTTPStatus.SERVICE_UNAVAILABLE,
                headers={"retry-after": "2"},
            )
        return JSONResponse({"ready": True, "reasons": []})

    def _reasons(self) -> list[str]:
        if self._gate.draining:
            return [DRAINING]
        return [] if self._served.model is not None else [self._served.trouble.message]

    async def state(self, _request: Request) -> JSONResponse:
        model = self._served.model
        return JSONResponse(
            {
                "version": __version__,
                "model": None if model is None else model.name,
                "upstream": None if model is None else asdict(model.upstream),
                "prompt": self._prompt(),
                "gate": self._gate_state(),
            }
        )

    def _prompt(self) -> dict[str, Any]:
        prompts = self._served.prompts
        splicer = prompts.text_splicer
        return {
            "method": splicer.method,
            "why_no_cuts": splicer.boundaries.unprovable,
            "why_no_seams": splicer.seams.unprovable,
            "template_followed": prompts.template.followable,
            "fallbacks": dict(splicer.fallbacks),
            "cache": {
                "pieces": asdict(splicer.pieces.statistics()),
                "windows": asdict(splicer.windows.statistics()),
            },
        }

    def _gate_state(self) -> dict[str, Any]:
        """`in_flight` and `capacity`: big decisions under `turns`, tokens under `budget`."""
        gate, load = self._gate, self._brake.load
        return {
            "policy": gate.policy,
            "engine": self._known().describe(),
            "capacity": gate.capacity,
            "in_flight": gate.in_flight,
            "running": gate.running,
            "waiting": gate.waiting,
            "waiting_bytes": gate.waiting_bytes,
            "outcomes": {outcome.value: count for outcome, count in gate.outcomes.items()},
            "warm_blocks": len(gate.warm),
            "brake": gate.brake,
            "vllm_load": None if load is None else asdict(load),
            "vllm_load_is_stale": self._brake.is_stale,
        }
