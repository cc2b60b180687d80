"""What vLLM found, out of a `/v1/completions` answer, and nothing that does not add up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from struct import pack, unpack
from typing import Any, Final

import orjson

from decision_proxy.errors import UpstreamBroken
from decision_proxy.upstream.completions import Batch, Piece

# float32 rounding over a whole vocabulary stays well inside these.
HIGHEST_LOGPROB: Final = 0.001
HIGHEST_MASS: Final = 1.01
PREFIX: Final = "token_id:"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`logprobs` in the order of the read's label ids; −9999.0 is vLLM's −∞.

    cached_tokens: of a list, vLLM tells the last prompt's only; the others say 0.
    """

    logprobs: tuple[float, ...]
    sampled_id: int
    output_tokens: int
    cached_tokens: int


def batch_results(batch: Batch, body: bytes) -> list[ReadResult]:
    """One result for each piece of the batch, in order."""
    answer = json_object(body)
    if answer.get("error"):
        raise UpstreamBroken(f"vLLM answered 200 with an error: {_message(answer['error'])}")
    try:
        choices = _in_order(answer["choices"], len(batch.pieces))
        results = [
            _piece_result(piece, choice)
            for piece, choice in zip(batch.pieces, choices, strict=True)
        ]
        results[-1] = replace(results[-1], cached_tokens=_cached_tokens(answer))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as surprise:
        raise UpstreamBroken("vLLM's answer does not have the shape of a completion") from surprise
    return results


def merged(results: Sequence[ReadResult]) -> ReadResult:
    """The pieces of one read as one: the same prompt, so the first speaks for its tokens."""
    if len(results) == 1:
        return results[0]
    logprobs = tuple(logprob for result in results for logprob in result.logprobs)
    return replace(results[0], logprobs=logprobs)


def json_object(body: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as surprise:
        raise UpstreamBroken("vLLM's answer is not JSON") from surprise
    if not isinstance(answer, dict):
        raise UpstreamBroken("vLLM's answer is not a JSON object")
    return answer


def _message(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _in_order(choices: list[dict[str, Any]], expected: int) -> list[dict[str, Any]]:
    by_index = {choice["index"]: choice for choice in choices}
    if len(choices) != expected or by_index.keys() != set(range(expected)):
        raise UpstreamBroken(f"vLLM answered {len(choices)} choices to {expected} prompts")
    return [by_index[index] for index in range(expected)]


def _piece_result(piece: Piece, choice: dict[str, Any]) -> ReadResult:
    if choice.get("finish_reason") == "error":
        raise UpstreamBroken("vLLM failed while it read a prompt")
    tokens = choice["logprobs"]["tokens"]
    found = choice["logprobs"]["top_logprobs"][0]
    _check_logprobs(found)
    return ReadResult(
        logprobs=tuple(_logprob(found, label) for label in piece.label_ids),
        sampled_id=int(tokens[0].removeprefix(PREFIX)),
        output_tokens=len(tokens),
        cached_tokens=0,
    )


def _logprob(found: Mapping[str, float], label: int) -> float:
    """vLLM's own float32: its Rust frontend writes the shortest decimals that round to it."""
    try:
        exact: float = unpack("f", pack("f", found[f"{PREFIX}{label}"]))[0]
    except KeyError:
        raise UpstreamBroken(f"vLLM's answer leaves out token {label}") from None
    except OverflowError:
        raise UpstreamBroken(f"vLLM's logprob of token {label} is no float32") from None
    return exact


def _check_logprobs(found: Mapping[str, float]) -> None:
    for token, logprob in found.items():
        if type(logprob) not in {float, int} or not math.isfinite(logprob):
            raise UpstreamBroken(f"vLLM's logprob of {token} is not a number")
    if max(found.values()) > HIGHEST_LOGPROB or _mass(found) > HIGHEST_MASS:
        raise UpstreamBroken(
            "vLLM answers logits instead of logprobs; start it with --logprobs-mode raw_logprobs"
        )


def _mass(found: Mapping[str, float]) -> float:
    return sum(map(math.exp, found.values()))


def _cached_tokens(answer: dict[str, Any]) -> int:
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
