"""The fake engine's answers: vLLM's shape, with made-up logprobs that follow the prompt."""

import math
from collections.abc import Mapping, Sequence
from struct import pack, unpack
from typing import Any

from bench.engine import Request

SAMPLED_ID = 198
SAMPLED_PROBABILITY = 0.4
HIGHEST_PROBABILITY = 1 / 256  # of each of at most 128 ids, so that together they stay below 1


def answer(fields: Mapping[str, Any], requests: Sequence[Request]) -> dict[str, Any]:
    wanted = fields.get("logprob_token_ids") or ()
    tokens = sum(request.prompt.tokens for request in requests)
    return {
        "id": f"cmpl-{fields.get('request_id', '')}",
        "object": "text_completion",
        "created": 1,
        "model": fields["model"],
        "choices": [_choice(index, request, wanted) for index, request in enumerate(requests)],
        "usage": {
            "prompt_tokens": tokens,
            "completion_tokens": len(requests),
            "total_tokens": tokens + len(requests),
            "prompt_tokens_details": {"cached_tokens": requests[-1].cached},
        },
    }


def _choice(index: int, request: Request, wanted: Sequence[int]) -> dict[str, Any]:
    key = (request.prompt.tokens, *request.prompt.blocks[-1:])
    found = {
        f"token_id:{token}": _float32(math.log(_probability(key, token)))
        for token in dict.fromkeys((SAMPLED_ID, *wanted))
    }
    sampled = f"token_id:{SAMPLED_ID}"
    return {
        "index": index,
        "text": "",
        "logprobs": {
            "text_offset": [0],
            "token_logprobs": [found[sampled]],
            "tokens": [sampled],
            "top_logprobs": [found],
        },
        "finish_reason": "length",
        "stop_reason": None,
    }


def _probability(key: tuple[int, ...], token: int) -> float:
    if token == SAMPLED_ID:
        return SAMPLED_PROBABILITY
    return (hash((*key, token)) % 65_536 + 1) / 65_536 * HIGHEST_PROBABILITY


def _float32(value: float) -> float:
    exact: float = unpack("f", pack("f", value))[0]
    return exact
