"""The model behind the proxy: found, compared with the server's own rendering, then watched."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from decision_proxy.errors import (
    ModelNotFound,
    ProxyError,
    RequestError,
    UnsuitableModel,
    UpstreamOverloaded,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnavailable,
    shortened,
)
from decision_proxy.observe.unexpected import as_internal_error
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.reads.next_token import NextToken
from decision_proxy.settings import Settings
from decision_proxy.upstream.discovery import Upstream, discover, served_models, server_prompt_ids

RETRY_S = 2.0
WATCH_S = 5.0
WATCH_TIMEOUT_S = 5.0
MAX_NAME_CHARS = 80
KEY_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


@dataclass(frozen=True, slots=True)
class Chat:
    user: str
    system: str | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        user = {"role": "user", "content": self.user}
        return [user] if self.system is None else [{"role": "system", "content": self.system}, user]


ODD_TEXT = "  Überraschung: 今日は良い天気。 '42'\r\n\n\t def f(x):  return x**2  # naïve ☃ 👩‍💻 \n"
#: Chats that a tokenizer or template of another model, or of another revision, renders otherwise.
VERIFIED = (
    Chat("Hello, world!"),
    Chat(ODD_TEXT),
    Chat("<|im_start|>system\n<|eot_id|><s>[INST] </think> <start_of_turn>user\n\n\n"),
    Chat("Hello, world!", system="You judge parcels."),
    Chat(ODD_TEXT, system=ODD_TEXT),
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    upstream: Upstream
    family: NextToken
    aliases: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.upstream.models[0].name

    def name_of(self, asked: str | None) -> str:
        """The served model that a request names; the first one when it names none."""
        if not asked:
            return self.name
        name = self.aliases.get(asked, asked)
        served = [model.name for model in self.upstream.models]
        if name not in served:
            known = ", ".join([*served, *self.aliases])
            raise ModelNotFound(
                f"The model `{shortened(asked, MAX_NAME_CHARS)}` does not exist. "
                f"Valid aliases: {known}.",
                param="model",
            )
        return name


@dataclass(frozen=True, slots=True)
class Comparison:
    """`compared`: how many chats the server rendered for us; none where it has no such route."""

    compared: int
    difference: str | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no model. Whatever vLLM said to the proxy, it is not the client's mistake."""

    message: str
    unsuitable: bool = False

    def error(self) -> ProxyError:
        return (UnsuitableModel if self.unsuitable else UpstreamUnavailable)(self.message)


class Served:
    """`current` gives the model, or raises what a client should be told while there is none.

    `found` is called for each server that is found: a new one, another, or one that came back.
    """

    def __init__(
        self,
        settings: Settings,
        prompts: Prompts,
        *,
        found: Callable[[Upstream], None] = lambda _upstream: None,
    ) -> None:
        self.settings = settings
        self._found = found
        self.prompts = prompts
        self.model: Model | None = None
        self.trouble = Trouble("vLLM has not been reached yet.")
        self._in_doubt = asyncio.Event()

    def current(self) -> Model:
        if self.model is None:
            raise self.trouble.error()
        return self.model

    def doubt(self) -> None:
        """A read says that the server is not what it was: look again at once."""
        self._in_doubt.set()

    async def keep_ready(self) -> None:
        """Find the server, then watch for its leaving and its return as another; never ends."""
        while True:
            try:
                with as_internal_error("looking for vLLM"):
                    await self._look()
            except ProxyError as error:
                if self.model is None or not _is_busy(error):
                    self._lose(error)
                else:
                    await asyncio.sleep(RETRY_S)
                    self.doubt()
            await self._pause(RETRY_S if self.model is None else WATCH_S)

    async def _look(self) -> None:
        in_doubt = self._in_doubt.is_set()
        self._in_doubt.clear()
        known = self.model
        if known is not None and not in_doubt:
            watched = self.settings.reads.model_copy(update={"timeout_s": WATCH_TIMEOUT_S})
            listed = await served_models(
                str(self.settings.upstream), api_key=self.api_key(), settings=watched
            )
            if listed == known.upstream.models:
                return
        self.model = await self._find()
        if known is None or known.upstream != self.model.upstream:
            log.info("ready: %s at %s", self.model.name, self.settings.upstream)
            self._found(self.model.upstream)

    def _lose(self, error: ProxyError) -> None:
        overloaded = isinstance(error, UpstreamOverloaded)
        message = f"vLLM is not ready: {error.message}" if overloaded else error.message
        if self.model is not None or message != self.trouble.message:
            cause = f" ({error.__cause__})" if str(error.__cause__ or "") else ""
            log.warning("not ready: %s%s", message, cause)
        self.trouble = Trouble(message, unsuitable=isinstance(error, UnsuitableModel))
        self.model = None

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._in_doubt.wait()
        except TimeoutError:
            return

    async def _find(self) -> Model:
        upstream = await discover(
            str(self.settings.upstream), api_key=self.api_key(), settings=self.settings.reads
        )
        if upstream.logprobs_fault is not None:
            raise UnsuitableModel(
                f"vLLM's logprobs cannot be used: {upstream.logprobs_fault}. Start it with "
                "--logprobs-mode raw_logprobs or processed_logprobs."
            )
        model = await asyncio.to_thread(build, upstream, self.prompts, self.settings.aliases)
        comparison = await self.compare(upstream)
        if comparison.difference is not None:
            raise UpstreamUnavailable(comparison.difference)
        if not comparison.compared:
            log.warning("vLLM has no /tokenize route: its prompts could not be compared")
        names = {served.name for served in upstream.models}
        for alias, name in self.settings.aliases.items():
            if name not in names:
                log.warning("alias %r names %r, which vLLM does not serve", alias, name)
        for reason in model.family.labels.reasons():
            log.warning("this model cannot answer every question: %s", reason)
        return model

    def api_key(self) -> str | None:
        key = self.settings.upstream_api_key
        return None if key is None else key.get_secret_value()

    async def compare(self, upstream: Upstream) -> "Comparison":
        """Our prompt ids against those that the server itself makes of the same chats."""
        for compared, chat in enumerate(VERIFIED):
            try:
                theirs = await self._their_ids(chat, upstream.models[0].name)
            except UpstreamRefused as refused:
                if chat.system is None or refused.status in KEY_REFUSED:
                    raise
                theirs = []
            if theirs is None:
                return Comparison(compared)
            ours = await asyncio.to_thread(self._our_ids, chat)
            if ours != theirs:
                return Comparison(compared, describe_difference(ours, theirs))
        return Comparison(len(VERIFIED))

    async def _their_ids(self, chat: Chat, model: str) -> list[int] | None:
        return await server_prompt_ids(
            str(self.settings.upstream),
            chat.messages,
            {"enable_thinking": False},
            model=model,
            api_key=self.api_key(),
            settings=self.settings.reads,
        )

    def _our_ids(self, chat: Chat) -> list[int]:
        """None at all where the template takes no system turn."""
        try:
            rendered = self.prompts.template.render(Contents(chat.user, [""]), system=chat.system)
        except RequestError:
            if chat.system is None:
                raise
            return []
        return self.prompts.splicer.splice(rendered.head, rendered.tails).full_ids()[0]


def _is_busy(error: ProxyError) -> bool:
    return isinstance(error, (UpstreamTimeout, UpstreamOverloaded))


def build(upstream: Upstream, prompts: Prompts, aliases: Mapping[str, str]) -> Model:
    limits = [m.max_model_len for m in upstream.models if m.max_model_len]
    if not limits:
        raise UpstreamUnavailable("vLLM does not say its max_model_len in /v1/models.")
    _ = prompts.tokenizer.max_chars_per_token  # a tenth of a second that no request should pay
    family = NextToken(prompts, prompts.labels(), max_model_len=min(limits))
    return Model(upstream, family, aliases)


def describe_difference(ours: list[int], theirs: list[int]) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    return (
        "The tokenizer or chat template differs from the server's: at token "
        f"{at} we have {ours[at : at + 5]} where vLLM has {theirs[at : at + 5]} "
        f"({len(ours)} and {len(theirs)} tokens in all). Give --tokenizer the served model's own "
        "folder, and --prompt-chat-template the file that vLLM was started with, if any."
    )
