"""From a decision's texts to token ids: the template, then the splice."""

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any

from decision_proxy.errors import RequestError, UnsuitableModel
from decision_proxy.prompt.budget import UNLIMITED, Budget
from decision_proxy.prompt.labels import Labels, find_labels
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.plain_text import PlainTextSplicer
from decision_proxy.prompt.splice import Splicer
from decision_proxy.prompt.spliced import Spliced
from decision_proxy.prompt.template import ChatTemplate
from decision_proxy.prompt.tokenizer import Tokenizer, TokenizerError
from decision_proxy.settings import Prompt

MANY_CHARS = 1 << 26
PROBES = ("x", "Which one, and why?\n\nThe second.", "42 <b>été</b>")


class Prompts:
    def __init__(self, tokenizer: Tokenizer, settings: Prompt) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer.hf)
        self.splicer = Splicer(tokenizer, cache_bytes=settings.cache_bytes)
        self._plain = (
            PlainTextSplicer(tokenizer, cache_bytes=settings.cache_bytes)
            if settings.user_text_specials == "split"
            else None
        )
        if self._plain is not None:
            self._try(self._plain)

    def _try(self, plain: PlainTextSplicer) -> None:
        try:
            plain.splice(self.template.render(Contents("a", ["b"])))
        except (RequestError, UnsuitableModel) as refused:
            raise TokenizerError(refused.message) from refused

    @property
    def text_splicer(self) -> Splicer:
        return self.splicer if self._plain is None else self._plain.splicer

    def ids(
        self,
        contents: Contents,
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        scope: Hashable = None,
        now: datetime | None = None,
        budget: Budget = UNLIMITED,
    ) -> Spliced:
        """Ids of one prompt for each tail of `contents`; CPU work, for a worker thread.

        Raises RequestError, UnsuitableModel, PromptTooLong or Cancelled.
        """
        if len(contents.tails) > 1 and len(contents.head) * len(contents.tails) > MANY_CHARS:
            # One that does not fit is refused before all are written out.
            first = Contents(contents.head, contents.tails[:1])
            self.ids(first, system=system, options=options, scope=scope, now=now, budget=budget)
        rendered = self.template.render(
            contents, system=system, options=options, now=now, budget=budget
        )
        if self._plain is not None:
            return self._plain.splice(rendered, scope=scope, budget=budget)
        return self.splicer.splice(rendered.head, rendered.tails, scope=scope, budget=budget)

    def labels(self) -> Labels:
        """The label tokens after this model's chat prompt."""
        return find_labels(
            self.tokenizer, [self.ids(Contents(p, [""])).full_ids()[0] for p in PROBES]
        )
