"""What the fake server finds: the same ids always give the same logprobs, alone or in a list."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from struct import pack, unpack
from typing import Any

MOST_IDS = 128
SAMPLED_ID = 198
SAMPLED_PROBABILITY = 0.4

Ids = tuple[int, ...]
Probabilities = Callable[[Ids], Mapping[int, float]]


def completion(
    body: Mapping[str, Any], probabilities: Probabilities, *, logits: bool
) -> dict[str, Any]:
    prompts = prompts_of(body)
    tokens = sum(map(len, prompts))
    return {
        "id": f"cmpl-{body['request_id']}",
        "object": "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            choice(index, found(prompt, probabilities(prompt), body["logprob_token_ids"], logits))
            for index, prompt in enumerate(prompts)
        ],
        "usage": {
            "prompt_tokens": tokens,
            "completion_tokens": len(prompts),
            "total_tokens": tokens + len(prompts),
            "prompt_tokens_details": {"cached_tokens": len(prompts[-1]) // 16 * 16},
        },
    }


def found(
    prompt: Ids, scripted: Mapping[int, float], wanted: Sequence[int], logits: bool
) -> dict[str, float]:
    """Keyed as vLLM does; the sampled token comes first."""
    likely = scripted or {SAMPLED_ID: SAMPLED_PROBABILITY}
    sampled = max(likely, key=likely.__getitem__)
    return {
        f"token_id:{token}": logprob(likely.get(token, made_up_probability(prompt, token)))
        + (20 if logits else 0)
        for token in dict.fromkeys([sampled, *wanted])
    }


def choice(index: int, logprobs: Mapping[str, float]) -> dict[str, Any]:
    sampled = next(iter(logprobs))
    return {
        "index": index,
        "text": "",
        "logprobs": {
            "text_offset": [0],
            "token_logprobs": [logprobs[sampled]],
            "tokens": [sampled],
            "top_logprobs": [logprobs],
        },
        "finish_reason": "length",
        "stop_reason": None,
    }


def logprob(probability: float) -> float:
    """A float32, as vLLM's are, written out as the double it equals."""
    value = math.log(probability) if probability > 0 else -9999.0
    exact: float = unpack("f", pack("f", value))[0]
    return exact


def is_list(body: Mapping[str, Any]) -> bool:
    return isinstance(body["prompt"][0], list)


def prompts_of(body: Mapping[str, Any]) -> list[Ids]:
    prompts = body["prompt"] if is_list(body) else [body["prompt"]]
    return [tuple(prompt) for prompt in prompts]


def made_up_probability(prompt: Ids, token: int) -> float:
    """Above 0 and so small that the most ids of one read stay below one half together."""
    return (zlib.crc32(repr((prompt, token)).encode()) + 1) / 2**32 / (2 * MOST_IDS)
