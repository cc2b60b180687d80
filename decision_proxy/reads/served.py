"""The model behind the proxy: found, compared with the server's own rendering, then ready."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from decision_proxy.errors import ModelNotFound, ProxyError, UnsuitableModel, UpstreamUnavailable
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.reads.next_token import NextToken
from decision_proxy.settings import Settings
from decision_proxy.upstream.discovery import Upstream, discover, server_prompt_ids

RETRY_S = 2.0
#: Chats that a tokenizer or template of another model, or of another revision, renders otherwise.
VERIFIED = (
    "Hello, world!",
    "  Überraschung: 今日は良い天気。 '42'\r\n\n\t def f(x):  return x**2  # naïve ☃ 👩‍💻 \n",
    "<|im_start|>system\n<|eot_id|><s>[INST] </think> <start_of_turn>user\n\n\n",
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
                f"The model `{asked}` does not exist. Valid aliases: {known}.", param="model"
            )
        return name


@dataclass(frozen=True, slots=True)
class Comparison:
    """`compared`: how many chats the server rendered for us; none where it has no such route."""

    compared: int
    difference: str | None = None


class Served:
    """`current` gives the model, or raises what a client should be told while there is none."""

    def __init__(self, settings: Settings, prompts: Prompts) -> None:
        self.settings = settings
        self.prompts = prompts
        self.model: Model | None = None
        self.trouble: ProxyError = UpstreamUnavailable("vLLM has not been reached yet.")

    def current(self) -> Model:
        if self.model is None:
            raise self.trouble
        return self.model

    async def keep_ready(self) -> None:
        """Look for the server until it is there and fits; never raises a ProxyError."""
        while self.model is None:
            try:
                self.model = await self._find()
            except ProxyError as error:
                if error.message != self.trouble.message:
                    log.warning("not ready: %s", error.message)
                self.trouble = error
                await asyncio.sleep(RETRY_S)
        log.info("ready: %s at %s", self.model.name, self.settings.upstream)

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
        for reason in model.family.labels.reasons():
            log.warning("this model cannot answer every question: %s", reason)
        return model

    def api_key(self) -> str | None:
        key = self.settings.upstream_api_key
        return None if key is None else key.get_secret_value()

    async def compare(self, upstream: Upstream) -> "Comparison":
        """Our prompt ids against those that the server itself makes of the same chats."""
        for compared, text in enumerate(VERIFIED):
            theirs = await server_prompt_ids(
                str(self.settings.upstream),
                [{"role": "user", "content": text}],
                {"enable_thinking": False},
                model=upstream.models[0].name,
                api_key=self.api_key(),
                settings=self.settings.reads,
            )
            if theirs is None:
                return Comparison(compared)
            ours = await asyncio.to_thread(self._our_ids, text)
            if ours != theirs:
                return Comparison(compared, describe_difference(ours, theirs))
        return Comparison(len(VERIFIED))

    def _our_ids(self, text: str) -> list[int]:
        rendered = self.prompts.template.render(Contents(text, [""]))
        return self.prompts.splicer.splice(rendered.head, rendered.tails).full_ids()[0]


def build(upstream: Upstream, prompts: Prompts, aliases: Mapping[str, str]) -> Model:
    limits = [m.max_model_len for m in upstream.models if m.max_model_len]
    if not limits:
        raise UpstreamUnavailable("vLLM does not say its max_model_len in /v1/models.")
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
