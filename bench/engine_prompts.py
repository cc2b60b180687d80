"""The prompts of a `/v1/completions` body as chains of block hashes, cheaply.

Prompts of one list share long prefixes of the same bytes, so each is compared with the one before
it, and only what differs is parsed and hashed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from bench.engine import Prompt

PROMPT_KEY = b',"prompt":'


@dataclass(frozen=True, slots=True)
class Parsed:
    fields: dict[str, Any]
    prompts: list[Prompt]


@dataclass(frozen=True, slots=True)
class Chain:
    text: bytes
    ids: list[int]
    blocks: list[int]


def parsed(body: bytes, block_tokens: int) -> Parsed:
    """Raises ValueError or TypeError for a body that does not hold prompts of token ids."""
    start = body.find(PROMPT_KEY)
    texts = _texts(body, start + len(PROMPT_KEY)) if start > 0 else None
    if texts is None:
        return _parsed_whole(orjson.loads(body), block_tokens)
    fields = orjson.loads(body[:start] + b"}")
    return Parsed(fields, _prompts(texts, _seed(fields), block_tokens))


def _texts(body: bytes, start: int) -> list[bytes] | None:
    """The prompts' insides if they end the body and have no white space, as our proxy writes it."""
    if not body.startswith(b"[[", start):
        end = body.find(b"]", start)
        ends_body = body.startswith(b"[", start) and body[end:] == b"]}"
        return [body[start + 1 : end]] if ends_body else None
    texts = []
    start += 1
    while body.startswith(b"[", start):
        end = body.find(b"]", start)
        texts.append(body[start + 1 : end])
        start = end + 2
    return texts if end >= 0 and body[end:] == b"]]}" else None


def block_hashes(ids: Sequence[int], block_tokens: int, seed: int = 0) -> list[int]:
    return list(_rolling(ids, 0, block_tokens, seed))


def _parsed_whole(fields: Any, block_tokens: int) -> Parsed:
    if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), list):
        raise TypeError("prompt must be a list of token ids, or of such lists")
    prompt = fields.pop("prompt")
    prompts = prompt if prompt and isinstance(prompt[0], list) else [prompt]
    texts = [orjson.dumps(ids)[1:-1] for ids in prompts]
    return Parsed(fields, _prompts(texts, _seed(fields), block_tokens))


def _seed(fields: dict[str, Any]) -> int:
    """Model and cache salt: prompts share nothing across either."""
    text = f"{fields.get('model')}\0{fields.get('cache_salt') or ''}"
    return hash(tuple(text.encode()))


def _prompts(texts: list[bytes], seed: int, block_tokens: int) -> list[Prompt]:
    found = []
    chain = Chain(b"", [], [])
    for text in texts:
        chain = _next_chain(chain, text, seed, block_tokens)
        found.append(Prompt(len(chain.ids), chain.blocks))
    return found


def _next_chain(before: Chain, text: bytes, seed: int, block_tokens: int) -> Chain:
    cut = text.rfind(b",", 0, _common(before.text, text)) + 1
    shared = len(before.ids) - before.text.count(b",", cut) - 1 if cut else 0
    ids = before.ids[:shared] + _ids(text[cut:])
    blocks = before.blocks[: shared // block_tokens]
    last = blocks[-1] if blocks else seed
    blocks += _rolling(ids, len(blocks) * block_tokens, block_tokens, last)
    return Chain(text, ids, blocks)


def _common(one: bytes, other: bytes) -> int:
    """The length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _ids(text: bytes) -> list[int]:
    ids: list[Any] = orjson.loads(b"[" + text + b"]")
    if not ids or not all(type(token) is int for token in ids):
        raise ValueError("prompts must hold token ids")
    return ids


def _rolling(ids: Sequence[int], start: int, block_tokens: int, last: int) -> Iterator[int]:
    for end in range(start + block_tokens, len(ids) + 1, block_tokens):
        last = hash((last, *ids[end - block_tokens : end]))
        yield last
