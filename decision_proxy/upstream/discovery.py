"""What the server says of itself, and what two tiny reads say about how it wants to be asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final
from uuid import uuid4

import orjson

from decision_proxy.errors import (
    UnsuitableModel,
    UpstreamBroken,
    UpstreamOverloaded,
    UpstreamRefused,
    UpstreamUnavailable,
)
from decision_proxy.settings import MIB
from decision_proxy.settings import Reads as ReadSettings
from decision_proxy.upstream.answers import batch_results, json_object
from decision_proxy.upstream.channel import Channel
from decision_proxy.upstream.completions import (
    Batch,
    Prompt,
    Read,
    ReadContext,
    batches,
    request_body,
)
from decision_proxy.upstream.engine import NOTHING_SAID, EngineFacts, engine_facts
from decision_proxy.upstream.reads import MOST_IDS, PATH

NO_SUCH_ROUTE: Final = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
NOT_UNDERSTOOD: Final = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}
# Enough ids that raw logits cannot pass for logprobs; every vocabulary has the first 128.
PROBE: Final = tuple(
    Read(Prompt(b"", 0, (token,)), label_ids=tuple(range(MOST_IDS))) for token in (0, 1)
)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """`parent` names the base model of a LoRA adapter, whose max_model_len it shares."""

    name: str
    root: str | None
    max_model_len: int | None
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Upstream:
    models: tuple[ServedModel, ...]
    version: str | None
    takes_lists: bool
    logprobs_fault: str | None = None
    engine: EngineFacts = NOTHING_SAID


async def discover(base_url: str, *, api_key: str | None, settings: ReadSettings) -> Upstream:
    """Raises UpstreamUnavailable while vLLM loads, UpstreamOverloaded when it takes no read now,
    UpstreamRefused when it wants another key."""
    headers = authorization(api_key)
    async with Channel(base_url, settings) as channel:
        try:
            models = await _listed(channel, headers)
            takes_lists, fault = await _probe(channel, models[0].name, headers)
            version = await _version(channel, headers)
            engine = await engine_facts(channel, headers)
        except UpstreamRefused as refused:
            raise _with_advice(refused) from None
    return Upstream(models, version, takes_lists, fault, engine)


async def _listed(channel: Channel, headers: Mapping[str, str]) -> tuple[ServedModel, ...]:
    try:
        return _models(await channel.get("v1/models", headers))
    except UpstreamOverloaded as busy:
        if busy.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise
        # Only what stands in for a vLLM that is not there says this of a list of names.
        raise UpstreamUnavailable(f"vLLM is not ready: {busy.message}") from busy


async def served_models(
    base_url: str, *, api_key: str | None, settings: ReadSettings
) -> tuple[ServedModel, ...]:
    """Base models first. One small request, to see whether the server is still what it was."""
    async with Channel(base_url, settings) as channel:
        return await _listed(channel, authorization(api_key))


async def server_prompt_ids(
    base_url: str,
    messages: Sequence[Mapping[str, Any]],
    template_kwargs: Mapping[str, Any],
    *,
    model: str,
    api_key: str | None,
    settings: ReadSettings,
) -> list[int] | None:
    """The ids the server's own template and tokenizer make of a chat; None if it does not say."""
    body = orjson.dumps(
        {
            "model": model,
            "messages": list(messages),
            "add_generation_prompt": True,
            "add_special_tokens": False,
            "chat_template_kwargs": dict(template_kwargs),
        }
    )

    async def make_body() -> list[bytes]:
        return [body]

    async with Channel(base_url, settings) as channel:
        try:
            answer = await channel.post("tokenize", make_body, authorization(api_key))
        except UnsuitableModel:
            return None
        except UpstreamRefused as refused:
            if refused.status in NO_SUCH_ROUTE:
                return None
            raise _with_advice(refused) from None
    tokens = json_object(answer).get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise UpstreamBroken("vLLM's /tokenize does not answer with token ids")
    return tokens


async def _probe(
    channel: Channel, model: str, headers: Mapping[str, str]
) -> tuple[bool, str | None]:
    """Whether a list of prompts is taken, and what is wrong with the logprobs, if anything."""
    both, first = _probe_batch(PROBE), _probe_batch(PROBE[:1])
    try:
        return True, _logprobs_fault(both, await _ask(channel, both, model, headers))
    except UpstreamRefused as refused:
        if refused.status not in NOT_UNDERSTOOD:
            raise
    return False, _logprobs_fault(first, await _ask(channel, first, model, headers))


def _probe_batch(reads: Sequence[Read]) -> Batch:
    [batch] = batches(reads, takes_lists=True, max_ids=MOST_IDS, list_bytes=MIB)
    return batch


async def _ask(channel: Channel, batch: Batch, model: str, headers: Mapping[str, str]) -> bytes:
    context = ReadContext(model, f"decision-proxy-probe-{uuid4().hex}")

    async def make_body() -> list[bytes]:
        return request_body(batch, context, context.request_id)

    return await channel.post(PATH, make_body, headers)


def _logprobs_fault(batch: Batch, answer: bytes) -> str | None:
    try:
        batch_results(batch, answer)
    except UpstreamBroken as fault:
        return fault.message
    return None


def _models(answer: bytes) -> tuple[ServedModel, ...]:
    """Base models first, as vLLM lists them."""
    try:
        cards = [_served_model(card) for card in json_object(answer)["data"]]
    except (KeyError, TypeError) as surprise:
        raise UpstreamBroken("vLLM's /v1/models does not list models") from surprise
    if not cards:
        raise UpstreamBroken("vLLM serves no model")
    limits = {card.name: card.max_model_len for card in cards}
    return tuple(
        replace(card, max_model_len=card.max_model_len or limits.get(card.parent or ""))
        for card in sorted(cards, key=lambda card: card.parent is not None)
    )


def _served_model(card: Mapping[str, Any]) -> ServedModel:
    return ServedModel(
        name=card["id"],
        root=card.get("root"),
        max_model_len=card.get("max_model_len"),
        parent=card.get("parent"),
    )


async def _version(channel: Channel, headers: Mapping[str, str]) -> str | None:
    try:
        version = json_object(await channel.get("version", headers)).get("version")
    except (UpstreamRefused, UnsuitableModel, UpstreamBroken):
        return None
    return version if isinstance(version, str) else None


def authorization(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def _with_advice(refused: UpstreamRefused) -> UpstreamRefused:
    if refused.status != HTTPStatus.UNAUTHORIZED:
        return refused
    return UpstreamRefused(
        "vLLM wants an API key; set DECISION_PROXY_UPSTREAM_API_KEY to it "
        f"(vLLM says: {refused.message})",
        status=refused.status,
    )
