"""What is known of vLLM's engine, and from where: a setting, vLLM itself, or its documentation."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from decision_proxy.gate import Engine
from decision_proxy.settings import Gate as GateSettings
from decision_proxy.upstream.engine import EngineFacts

Source = Literal["setting", "vllm", "default"]


@dataclass(frozen=True, slots=True)
class KnownEngine:
    engine: Engine
    sources: dict[str, Source]

    def describe(self) -> dict[str, dict[str, Any]]:
        return {
            name: {"value": getattr(self.engine, name), "from": source}
            for name, source in self.sources.items()
        }

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {fact['value']} ({fact['from']})" for name, fact in self.describe().items()
        )


def known_engine(settings: GateSettings, facts: EngineFacts) -> KnownEngine:
    """A setting comes before what vLLM says, and that before the default of vLLM's documentation.

    https://docs.vllm.ai/en/stable/configuration/engine_args.html
    """
    given = {
        "max_num_batched_tokens": settings.max_batched_tokens,
        "prefix_caching": settings.prefix_caching,
        "priority_scheduling": settings.priority_scheduling,
    }
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for name in (field.name for field in fields(Engine)):
        candidates: tuple[tuple[Source, Any], ...] = (
            ("setting", given.get(name)),
            ("vllm", getattr(facts, name)),
            ("default", getattr(Engine(), name)),
        )
        sources[name], values[name] = next(c for c in candidates if c[1] is not None)
    return KnownEngine(Engine(**values), sources)
