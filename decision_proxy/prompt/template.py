"""The chat template, rendered as transformers renders it.

`render` gives the texts of a decision's prompts as one shared head and a tail for each. They are
exactly what rendering each conversation by itself gives.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from decision_proxy.errors import RequestError
from decision_proxy.prompt.budget import UNLIMITED, Budget
from decision_proxy.prompt.content_format import takes_parts
from decision_proxy.prompt.following import FollowingEnvironment, followed, is_followable
from decision_proxy.prompt.opaque import Contents, NotOpaque, placeholder
from decision_proxy.prompt.tokenizer import TokenizerError

Piece = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Rendered:
    """`head + tail` for each tail is a prompt's text; `frame` is None where none was followed."""

    head: str
    tails: tuple[str, ...]
    frame: "Frame | None" = None


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around the content in a prompt, as (text, is_user_text) pieces."""

    before: tuple[Piece, ...]
    after: tuple[Piece, ...]


class ChatTemplate:
    def __init__(self, hf: PreTrainedTokenizerFast) -> None:
        if not hf.chat_template:
            raise TokenizerError(
                "The tokenizer has no chat template. Give the one that vLLM was started with: "
                "--prompt-chat-template FILE"
            )
        source = hf.get_chat_template()
        self._special_tokens = dict(hf.special_tokens_map)
        try:
            self._template = chat_template_utils._compile_jinja_template(source)  # noqa: SLF001
        except TemplateError as error:
            raise TokenizerError(f"The chat template cannot be read: {error}") from error
        tree = self._template.environment.parse(source)
        self._parts = takes_parts(tree)
        self.followable = is_followable(tree)
        following = FollowingEnvironment.like(self._template.environment)
        self._following = following.from_string(followed(following, source))

    def render(
        self,
        contents: Contents,
        *,
        system: str | None = None,
        options: Mapping[str, Any] | None = None,
        now: datetime | None = None,
        budget: Budget = UNLIMITED,
    ) -> Rendered:
        """The prompts for `contents`, each one user turn and the generation prompt after it.

        Raises RequestError with the template's own message when it refuses the conversation, and
        PromptTooLong or Cancelled.
        """
        options = {"enable_thinking": False, **(options or {})}
        moment = now or datetime.now()  # noqa: DTZ005 - templates write the local date
        options["strftime_now"] = moment.strftime
        if self.followable:
            try:
                rendered = self._follow(contents, system, options)
            except (NotOpaque, RequestError):
                pass  # what the template says of a real content counts
            else:
                for i, tail in enumerate(rendered.tails):
                    budget.allow_chars(len(rendered.head) + len(tail), prompt=i)
                return rendered
        texts = []
        for i, tail in enumerate(contents.tails):
            budget.go_on()
            texts.append(self._text(contents.head + tail, system, options))
            budget.allow_chars(len(texts[-1]), prompt=i)
        return Rendered("", tuple(texts))

    def _follow(
        self, contents: Contents, system: str | None, options: Mapping[str, Any]
    ) -> Rendered:
        marks: dict[str, str] = {}
        user = placeholder(contents, marks)
        system_marks: dict[str, str] = {}
        opening = None if system is None else placeholder(Contents("", [system]), system_marks)
        text = self._rendered(self._following, self._messages(user, opening), options)
        used = [mark for mark in marks if mark in text]
        if len(used) != 1 or text.count(used[0]) != 1:
            raise NotOpaque
        head, tails = _strip(contents, marks[used[0]])
        before, _, after = text.partition(used[0])
        frame = Frame(
            _filled(before, system or "", system_marks), _filled(after, system or "", system_marks)
        )
        ahead = "".join(piece for piece, _ in frame.before)
        behind = "".join(piece for piece, _ in frame.after)
        return Rendered(ahead + head, tuple(tail + behind for tail in tails), frame)

    def _text(self, content: str, system: str | None, options: Mapping[str, Any]) -> str:
        return self._rendered(self._template, self._messages(content, system), options)

    def _rendered(
        self, template: Template, messages: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> str:
        """As `apply_chat_template` does, which lets nobody set the clock."""
        with _refusals():
            return template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **{**self._special_tokens, **options},
            )

    def _messages(self, content: str, system: str | None) -> list[dict[str, Any]]:
        user = {"role": "user", "content": self._content(content)}
        if system is None:
            return [user]
        return [{"role": "system", "content": self._content(system)}, user]

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self._parts else text


@contextmanager
def _refusals() -> Iterator[None]:
    """A template rejects a conversation by raising; what it says is for the client."""
    try:
        yield
    except TemplateError as error:
        raise RequestError(f"the chat template refuses this: {error}") from error
    except Exception as error:
        raise RequestError(f"the chat template fails on this: {error}") from error


def _strip(contents: Contents, kind: str) -> tuple[str, Sequence[str]]:
    head, tails = contents.head, contents.tails
    if kind in ("strip", "lstrip"):
        head = head.lstrip()
        tails = tails if head else [tail.lstrip() for tail in tails]
    if kind in ("strip", "rstrip"):
        kept = head.rstrip()
        tails = [(head[len(kept) :] + tail).rstrip() for tail in tails]
        head = kept
    return head, tails


def _filled(text: str, system: str, marks: Mapping[str, str]) -> tuple[Piece, ...]:
    """`text` with the system placeholders replaced, as (piece, is_user_text) pairs."""
    pieces = [(text, False)]
    for mark, kind in marks.items():
        stripped = system if kind == "as_is" else getattr(system, kind)()
        split: list[Piece] = []
        for piece, is_user in pieces:
            parts = [piece] if is_user else piece.split(mark)
            for i, part in enumerate(parts):
                split += [(stripped, True)] if i else []
                split.append((part, is_user))
        pieces = split
    return tuple((piece, is_user) for piece, is_user in pieces if piece)
