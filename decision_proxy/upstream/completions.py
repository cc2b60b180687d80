"""Reads as `/v1/completions` requests: which prompts travel together, and in which bytes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

# Sent in full: vLLM fills what is missing from the model's generation_config.json.
SAMPLING: Final = {
    "max_tokens": 1,
    "temperature": 0,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "n": 1,
    "return_tokens_as_token_ids": True,
}
LONG_FRAGMENT_BYTES: Final = 16 * 1024  # copying less is cheaper than a write of its own
LONGEST_ID: Final = 7  # digits and a comma; an estimate that only bounds the size of a body


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids. `shared` is a JSON fragment without brackets (`b"151644,872"`), maybe empty."""

    shared: bytes
    shared_tokens: int
    tail: tuple[int, ...]

    @property
    def length(self) -> int:
        return self.shared_tokens + len(self.tail)

    def fragments(self) -> Iterator[bytes]:
        tail = orjson.dumps(self.tail)[1:-1]
        yield self.shared
        if self.shared and tail:
            yield b","
        yield tail


@dataclass(frozen=True, slots=True)
class Read:
    """`label_ids`: the token ids whose logprobs are wanted; any number of them."""

    prompt: Prompt
    label_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What all reads of one decision share. `headers` are the caller's for vLLM, as its key."""

    model: str
    request_id: str
    cache_salt: str | None = None
    priority: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """As much of a read as one request may ask: its labels from `start` on."""

    read: int
    start: int
    prompt: Prompt
    label_ids: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return len(self.prompt.shared) + LONGEST_ID * len(self.prompt.tail)


@dataclass(slots=True)
class Batch:
    """One HTTP request: its prompts, and the ids wanted of any of them, in order."""

    pieces: list[Piece] = field(default_factory=list)
    ids: dict[int, None] = field(default_factory=dict)
    bytes: int = 0

    def has_room_for(self, piece: Piece, *, max_ids: int, list_bytes: int) -> bool:
        ids = len(self.ids) + sum(label not in self.ids for label in set(piece.label_ids))
        return ids <= max_ids and self.bytes + piece.bytes <= list_bytes

    def add(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.ids.update(dict.fromkeys(piece.label_ids))
        self.bytes += piece.bytes


def batches(
    reads: Sequence[Read], *, takes_lists: bool, max_ids: int, list_bytes: int
) -> list[Batch]:
    """A piece joins the first request with room for it; without lists it has one of its own."""
    found: list[Batch] = []
    for piece in _pieces(reads, max_ids):
        roomy = (
            batch
            for batch in found
            if takes_lists and batch.has_room_for(piece, max_ids=max_ids, list_bytes=list_bytes)
        )
        batch = next(roomy, None)
        if batch is None:
            batch = Batch()
            found.append(batch)
        batch.add(piece)
    return found


def _pieces(reads: Sequence[Read], max_ids: int) -> Iterator[Piece]:
    for position, read in enumerate(reads):
        for start in range(0, max(len(read.label_ids), 1), max_ids):
            yield Piece(position, start, read.prompt, read.label_ids[start : start + max_ids])


def request_body(batch: Batch, context: ReadContext, request_id: str) -> list[bytes]:
    """The JSON of one request, in pieces; a long shared part is never copied."""
    fields: dict[str, Any] = {"model": context.model, "request_id": request_id, **SAMPLING}
    if context.cache_salt is not None:
        fields["cache_salt"] = context.cache_salt
    if context.priority:
        fields["priority"] = context.priority
    # vLLM's Rust frontend wants `logprobs` to equal the number of ids.
    fields["logprobs"] = len(batch.ids)
    fields["logprob_token_ids"] = list(batch.ids)
    return coalesced((orjson.dumps(fields)[:-1], b',"prompt":', *_prompts(batch.pieces), b"}"))


def _prompts(pieces: Sequence[Piece]) -> Iterator[bytes]:
    yield b"[" if len(pieces) == 1 else b"[["
    for number, piece in enumerate(pieces):
        if number:
            yield b"],["
        yield from piece.prompt.fragments()
    yield b"]" if len(pieces) == 1 else b"]]"


def coalesced(fragments: Iterable[bytes]) -> list[bytes]:
    """The same bytes in few pieces: short ones joined, long ones never copied."""
    pieces: list[bytes] = []
    short: list[bytes] = []
    for fragment in fragments:
        if len(fragment) < LONG_FRAGMENT_BYTES:
            short.append(fragment)
            continue
        pieces += [b"".join(short), fragment]
        short.clear()
    return [*pieces, b"".join(short)]
