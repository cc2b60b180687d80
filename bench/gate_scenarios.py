"""What `bench/gate.py` asks: bursts of decisions, as data."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import orjson

from bench.splice import prose

LINE_TOKENS = 13  # twelve words and their line break
BYSTANDER_TOKENS = 65
WARMING_QUESTIONS = 2  # with one alone, a proxy need not see what is state and what is question


@dataclass(frozen=True, slots=True)
class Group:
    """`decisions` with `questions` each, on states of about `tokens`."""

    decisions: int
    questions: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Scenario:
    """All decisions at once. `one_state`: the same for all; `warm`: asked about shortly before.

    `speed`: of the fake engine's clock; as fast as two cores can still keep the engine busy.
    """

    name: str
    groups: tuple[Group, ...]
    one_state: bool = False
    warm: bool = False
    speed: float = 4.0


@dataclass(frozen=True, slots=True)
class Sizes:
    burst: int
    questions: int
    long: int
    few: int = 8
    middle: int = 4000
    short: int = 175


FULL = Sizes(burst=64, questions=64, long=27_000)
QUICK = Sizes(burst=12, questions=24, long=9_000, few=4, middle=1500)
REAL_CPU = Sizes(burst=8, questions=16, long=6_000, few=4, middle=1500)


def scenarios(sizes: Sizes) -> tuple[Scenario, ...]:
    big = Group(sizes.burst, sizes.questions, sizes.long)
    medium = Group(sizes.burst, sizes.few, sizes.middle)
    single = Group(sizes.burst, 1, sizes.long)
    mixed = (
        Group(max(1, sizes.burst // 4), sizes.questions, sizes.long),
        Group(sizes.burst // 2, sizes.few, sizes.middle),
        Group(max(1, sizes.burst // 8), 1, sizes.long),
        Group(sizes.burst, 1, sizes.short),
    )
    return (
        Scenario("big, cold states", (big,)),
        Scenario("big, warm states", (big,), warm=True, speed=2.0),
        Scenario("big, one warm state", (big,), one_state=True, warm=True, speed=2.0),
        Scenario("big, one cold state", (big,), one_state=True, speed=2.0),
        Scenario("few questions, cold states", (medium,), speed=2.0),
        Scenario("one question, long cold states", (single,)),
        Scenario("mixed sizes, cold states", mixed),
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """One decision, ready to be sent."""

    questions: int
    body: bytes


class Texts:
    """Random text of exactly so many tokens, so that runs differ in nothing but their words.

    `words`: a space and any of them make one token.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def state(self, tokens: int, seed: str) -> str:
        source = random.Random(seed)
        full, rest = divmod(tokens, LINE_TOKENS)
        lines = [self._line(source, LINE_TOKENS - 1) for _ in range(full)]
        return "\n".join([*lines, self._line(source, rest)])

    def policy(self, seed: str) -> str:
        """Three words that no other seed gives."""
        return self._line(random.Random(seed), 3).strip()

    def _line(self, source: random.Random, words: int) -> str:
        return "".join(f" {word}" for word in source.choices(self._words, k=words))


def single_token_words(lengths: Callable[[list[str]], list[int]]) -> list[str]:
    """`lengths`: how many tokens each text has."""
    words = sorted(set(re.findall(r"\b[a-z]{4,12}\b", prose())))
    spaced = [f" {word}" for word in words]
    return [word for word, n in zip(words, lengths(spaced), strict=True) if n == 1]


def burst(scenario: Scenario, run: str, texts: Texts) -> list[Ask]:
    """The scenario's decisions, well mixed. `run` makes cold states and all questions new."""
    asks = [
        ask(group.tokens, seed, group.questions, f"{run} {number}", texts)
        for number, (group, seed) in enumerate(_states(scenario, run))
    ]
    random.Random(scenario.name).shuffle(asks)
    return asks


def warming(scenario: Scenario, run: str, texts: Texts) -> list[Ask]:
    """One small decision on each of the scenario's states; none if they are to be cold."""
    if not scenario.warm:
        return []
    states = dict.fromkeys((group.tokens, seed) for group, seed in _states(scenario, run))
    return [
        ask(tokens, seed, WARMING_QUESTIONS, f"warming {run}", texts) for tokens, seed in states
    ]


def small(number: int, texts: Texts) -> Ask:
    """What the bystander asks: about another ticket each time."""
    return ask(BYSTANDER_TOKENS, f"ticket {number}", 1, "tickets", texts)


def _states(scenario: Scenario, run: str) -> Iterator[tuple[Group, str]]:
    seed = scenario.name if scenario.warm else f"{scenario.name} {run}"
    for number, group in enumerate(scenario.groups):
        for i in range(group.decisions):
            yield group, seed if scenario.one_state else f"{seed} {number} {i}"


def ask(tokens: int, seed: str, questions: int, about: str, texts: Texts) -> Ask:
    """`about` makes the questions others than those of another decision on the same state."""
    policy = texts.policy(about)
    asked = {
        f"q{i}": {
            "type": "noul",
            "instructions": f"Does point {i} of the {policy} policy apply to this conversation?",
            "criteria": {"true": "it clearly does", "false": "it does not, or it is unclear"},
        }
        for i in range(questions)
    }
    body = {"state": texts.state(tokens, seed), "questions": asked}
    return Ask(questions, orjson.dumps(body))
