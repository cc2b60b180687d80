"""What the bench asks is what its scenarios say."""

import math

import orjson
import pytest

from bench.gate_load import Answered, Run
from bench.gate_scenarios import (
    QUICK,
    Scenario,
    Texts,
    burst,
    scenarios,
    single_token_words,
    small,
    warming,
)
from bench.gate_table import figures, percentile

EVERY = scenarios(QUICK)


TEXTS = Texts([f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"])


def states(scenario: Scenario, run: str = "") -> list[str]:
    return [orjson.loads(ask.body)["state"] for ask in burst(scenario, run, TEXTS)]


@pytest.mark.parametrize("scenario", EVERY, ids=lambda scenario: scenario.name)
class TestEveryScenario:
    def test_asks_as_many_decisions_and_questions_as_it_says(self, scenario: Scenario) -> None:
        asks = burst(scenario, "run", TEXTS)

        expected = [group.questions for group in scenario.groups for _ in range(group.decisions)]
        assert sorted(ask.questions for ask in asks) == sorted(expected)
        assert all(len(orjson.loads(ask.body)["questions"]) == ask.questions for ask in asks)

    def test_shares_a_state_only_if_it_says_so(self, scenario: Scenario) -> None:
        distinct = len(set(states(scenario)))

        assert distinct == (1 if scenario.one_state else len(states(scenario)))

    def test_is_cold_in_each_run_or_was_warmed(self, scenario: Scenario) -> None:
        warmed = {orjson.loads(ask.body)["state"] for ask in warming(scenario, "one", TEXTS)}

        assert warmed == (set(states(scenario, "one")) if scenario.warm else set())
        assert scenario.warm or not set(states(scenario, "one")) & set(states(scenario, "two"))

    def test_never_asks_the_same_question_twice(self, scenario: Scenario) -> None:
        asked = [
            question["instructions"]
            for ask in burst(scenario, "run", TEXTS)
            for question in orjson.loads(ask.body)["questions"].values()
        ]
        assert len(asked) == len(set(asked))


def test_the_bystander_asks_something_new_each_time() -> None:
    assert small(1, TEXTS) != small(2, TEXTS)


@pytest.mark.parametrize("tokens", [1, 12, 13, 14, 65, 4000])
def test_a_state_has_as_many_tokens_as_it_should(tokens: int) -> None:
    text = TEXTS.state(tokens, "seed")

    assert len(text.split()) + text.count("\n") == tokens


def test_only_words_of_one_token_are_used() -> None:
    words = single_token_words(lambda texts: [1 + (len(text) > 6) for text in texts])

    assert words
    assert all(len(word) <= 5 for word in words)


def test_percentiles_are_those_of_the_answered() -> None:
    answers = [Answered(200, 0, float(took), 1) for took in range(1, 101)]
    refused = [Answered(429, 0, 1000, 1)]

    assert percentile(answers + refused, 0.5) == 50
    assert percentile(answers + refused, 0.95) == 95
    assert math.isnan(percentile(refused, 0.5))


def test_figures_are_in_the_seconds_of_the_engine() -> None:
    run = Run(
        decisions=[Answered(200, 0, 2, 64), Answered(503, 0, 1, 64)],
        bystander=[Answered(200, 0, 0.5, 1, tokens=7)],
        engine={
            "vllm:prefix_cache_queries_total": 100,
            "vllm:prefix_cache_hits_total": 60,
            "bench:engine_busy_seconds_total": 1,
        },
    )
    found = figures(run, speed=4.0)

    assert found["decision_p95_s"] == 8
    assert found["bystander_p50_s"] == 2
    assert found["questions_per_s"] == 8
    assert found["tokens_computed"] == 33, "the bystander's are left out"
    assert (found["engine_busy"], found["engine_busy_s"]) == (0.5, 4)
