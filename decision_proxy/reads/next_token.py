"""Models that answer with the reply's first token: one prompt and one read for each question."""

import math
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from decision_proxy.errors import RequestError
from decision_proxy.gate import Work
from decision_proxy.prompt.budget import Budget, PromptTooLong, never
from decision_proxy.prompt.labels import Labels
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.prompts import Prompts
from decision_proxy.prompt.spliced import Spliced
from decision_proxy.questions import Answer, Decision, label_softmax
from decision_proxy.reads.wording import question_text
from decision_proxy.upstream.reads import Prompt, Read, ReadResult
from decision_proxy.upstream.warm_blocks import block_keys

# An id of 4 bytes, its digits and a comma, and an object of its own in a tail.
BYTES_PER_TOKEN = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """The reads of one decision, in question order, and each prompt's length in tokens."""

    reads: tuple[Read, ...]
    input_tokens: tuple[int, ...]
    spliced: Spliced

    def work(self, *, scope: Hashable) -> Work:
        """What the engine will have to do; prompts of another `scope` share no cache with it."""
        shared = [piece.ids for piece in self.spliced.shared]
        tails = self.spliced.tails
        if len(tails) == 1:
            shared, tails = [*shared, array("I", tails[0])], ()
        own_tokens = sum(map(len, tails))
        shared_tokens = sum(map(len, shared))
        return Work(
            questions=len(self.reads),
            shared_tokens=shared_tokens,
            own_tokens=own_tokens,
            blocks=block_keys(scope, shared),
            bytes=BYTES_PER_TOKEN * (shared_tokens + own_tokens),
        )


class NextToken:
    """`max_model_len`: what vLLM takes for a prompt and its reply, in tokens."""

    def __init__(self, prompts: Prompts, labels: Labels, *, max_model_len: int) -> None:
        self.prompts = prompts
        self.labels = labels
        self.max_model_len = max_model_len

    def plan(self, decision: Decision, *, cancelled: Callable[[], bool] = never) -> Plan:
        """CPU work, for a worker thread. Raises RequestError or UnsuitableModel.

        `cancelled` is asked now and then; once it says so, Cancelled is raised.
        """
        label_ids = [self.labels.of(question) for question in decision.questions]
        contents = Contents(
            decision.state + "\n\n", [question_text(question) for question in decision.questions]
        )
        most = self.max_model_len - 1
        try:
            spliced = self.prompts.ids(
                contents,
                system=decision.instructions or None,
                options=decision.template_kwargs,
                scope=decision.cache_salt,
                budget=Budget(
                    tokens=most,
                    chars=most * self.prompts.tokenizer.max_chars_per_token,
                    cancelled=cancelled,
                ),
            )
        except PromptTooLong as error:
            raise self._too_long(decision, error) from None
        if not all(spliced.ends_with(self.labels.tail)):
            raise RequestError(
                "these chat options end the prompt differently, so the labels' tokens are unknown",
                param="chat_template_kwargs",
            )
        shared, tokens = spliced.shared_json(), spliced.shared_tokens
        reads = tuple(
            Read(Prompt(shared, tokens, tuple(tail)), ids)
            for tail, ids in zip(spliced.tails, label_ids, strict=True)
        )
        return Plan(reads, tuple(spliced.prompt_tokens()), spliced)

    def answers(self, plan: Plan, results: Sequence[ReadResult]) -> list[Answer]:
        return [
            Answer(
                probabilities=label_softmax(result.logprobs),
                label_mass=sum(math.exp(logprob) for logprob in result.logprobs),
                argmax_is_label=result.sampled_id in read.label_ids,
                input_tokens=tokens,
                output_tokens=result.output_tokens,
                cached_tokens=result.cached_tokens,
            )
            for read, tokens, result in zip(plan.reads, plan.input_tokens, results, strict=True)
        ]

    def _too_long(self, decision: Decision, error: PromptTooLong) -> RequestError:
        """In vLLM's words, which leaves it at "at least" too: nobody counted further."""
        most = self.max_model_len - 1
        contains = (
            f"at least {self.max_model_len} input tokens, which exceeds this limit even without "
            "any output tokens"
            if error.chars is None
            else f"{error.chars} characters (more than "
            f"{most * self.prompts.tokenizer.max_chars_per_token} characters, which is the upper "
            f"bound for {most} input tokens)"
        )
        return RequestError(
            f"{decision.questions[error.prompt].name}: this model's maximum context length is "
            f"{self.max_model_len} tokens. However, the prompt contains {contains}. "
            "Please reduce its length."
        )
