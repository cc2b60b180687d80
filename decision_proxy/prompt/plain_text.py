"""Prompts in which control tokens written out in user text are plain text.

The template's own control tokens become ids one by one; everything between two of them, user text
included, is encoded by a tokenizer that knows no control tokens. Text without any is encoded as
it always was.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Iterable

from decision_proxy.errors import UnsuitableModel
from decision_proxy.prompt.boundaries import Boundaries
from decision_proxy.prompt.budget import UNLIMITED, Budget
from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.spliced import Ids, Spliced
from decision_proxy.prompt.template import Piece, Rendered
from decision_proxy.prompt.tokenizer import Json, Tokenizer, TokenizerError


class PlainTextSplicer:
    def __init__(self, tokenizer: Tokenizer, *, cache_bytes: int) -> None:
        boundaries = Boundaries(tokenizer.json)
        self.splicer = Splicer(tokenizer.plain(), cache_bytes=cache_bytes)
        if not boundaries.edges or boundaries.added.looking_around:
            raise TokenizerError(
                "prompt.user_text_specials=split cannot be exact for this tokenizer: its control "
                "tokens change the text around them. Use keep."
            )
        plain = self.splicer.boundaries.added.contents
        spelled = _spelled_by_model(tokenizer.json["model"])
        self._ids = {t.content: t.id for t in boundaries.added.tokens if t.content not in plain}
        if spelled & self._ids.keys():
            raise TokenizerError(
                "prompt.user_text_specials=split cannot be exact for this tokenizer: its model "
                f"makes {min(spelled & self._ids.keys())!r} out of plain text. Use keep."
            )
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def splice(
        self, rendered: Rendered, *, scope: Hashable = None, budget: Budget = UNLIMITED
    ) -> Spliced:
        if rendered.frame is None:
            raise UnsuitableModel(
                "This model's chat template looks into the text of a conversation like this one, "
                "so control tokens in it cannot be told from the template's own, which this proxy "
                "is set to do (prompt.user_text_specials=split; keep does without)."
            )
        ahead = sum(len(text) for text, _ in rendered.frame.before)
        behind = sum(len(text) for text, _ in rendered.frame.after)
        before = self._runs(rendered.frame.before)
        after = self._runs(rendered.frame.after)
        head = _text(before.pop()) + rendered.head[ahead:]
        ending = _text(after.pop(0))
        tails = [tail[: len(tail) - behind] + ending for tail in rendered.tails]
        opening = self._encode(before, scope, budget)
        budget = budget.without(len(opening))
        closing = self._encode(after, scope, budget)
        budget = budget.without(len(closing))
        spliced = self.splicer.splice(head, tails, scope=scope, budget=budget)
        return Spliced(
            shared=(Ids.of(opening), *spliced.shared),
            tails=tuple([*tail, *closing] for tail in spliced.tails),
        )

    def _runs(self, pieces: Iterable[Piece]) -> list[str | int]:
        """Texts and control ids in turn, with a text (that may be empty) at both ends."""
        runs: list[str | int] = [""]
        for piece, is_user in pieces:
            start = 0
            for match in () if is_user else self._control.finditer(piece):
                runs[-1] = _text(runs[-1]) + piece[start : match.start()]
                runs += [self._ids[match.group()], ""]
                start = match.end()
            runs[-1] = _text(runs[-1]) + piece[start:]
        return runs

    def _encode(self, runs: Iterable[str | int], scope: Hashable, budget: Budget) -> array[int]:
        ids: array[int] = array("I")
        for run in runs:
            if isinstance(run, int):
                ids.append(run)
            elif run:
                left = budget.without(len(ids))
                (own,) = self.splicer.splice(run, [""], scope=scope, budget=left).full_ids()
                ids.extend(own)
        budget.allow(len(ids))
        return ids


def _spelled_by_model(model: Json) -> set[str]:
    """What the model itself may turn a plain text into, as a single id."""
    vocabulary: set[str] = set(model["vocab"]) if isinstance(model["vocab"], dict) else set()
    if model["type"] != "BPE":
        return vocabulary or {piece for piece, _ in model["vocab"]}
    if model.get("ignore_merges"):
        return vocabulary
    merged = {"".join(pair) for pair in model["merges"]}
    return merged | {piece for piece in vocabulary if len(piece) == 1}


def _text(run: str | int) -> str:
    assert isinstance(run, str)  # noqa: S101 - runs start and end with a text
    return run
