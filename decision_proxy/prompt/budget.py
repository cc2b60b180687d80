"""What the prompts of one decision may cost, checked while they are made."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace


class PromptTooLong(Exception):
    """`prompt`: which one, from 0. `chars`: its length, where that alone says so."""

    def __init__(self, prompt: int, *, chars: int | None = None) -> None:
        super().__init__(prompt, chars)
        self.prompt = prompt
        self.chars = chars


class Cancelled(Exception):
    """Nobody waits for this work any more."""


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Budget:
    """`tokens`, `chars`: most that one prompt may have. `cancelled` is asked between blocks."""

    tokens: float = math.inf
    chars: float = math.inf
    cancelled: Callable[[], bool] = never

    def go_on(self) -> None:
        if self.cancelled():
            raise Cancelled

    def allow(self, tokens: int, *, prompt: int = 0) -> None:
        if tokens > self.tokens:
            raise PromptTooLong(prompt)

    def allow_chars(self, chars: int, *, prompt: int = 0) -> None:
        if chars > self.chars:
            raise PromptTooLong(prompt, chars=chars)

    def without(self, tokens: int) -> "Budget":
        """What is left when every prompt has these tokens already."""
        return replace(self, tokens=self.tokens - tokens)


UNLIMITED = Budget()
