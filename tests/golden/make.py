"""Writes systemone.json, decisions.json and refusals.json: what vLLM's own code makes of requests.

Run by hand, with the Python of an environment that can import vLLM 0.33 or later (its
compiled parts are not needed) and a folder that holds Qwen3's tokenizer and chat template:

    python tests/golden/make.py --tokenizer DIR [--out DIR]

Each case holds the request; for each question vLLM's user turn, its labels, and the token ids
of the whole prompt; fixed made-up reads; and the answers vLLM builds from them. Probabilities
are multiples of 1/4096, so that every sum is exact on every version of Python. A refusal holds
a request to /v1/systemone and vLLM's words.
"""

import argparse
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from vllm.entrypoints.generate.structured_decisions.protocol import StructuredDecisionRequest
from vllm.entrypoints.generate.structured_decisions.serving import parse_questions
from vllm.entrypoints.openai.decisions.adapters import input_text, make_answer, make_read_question
from vllm.entrypoints.openai.decisions.protocol import DecisionRequest
from vllm.entrypoints.openai.decisions.question_types import (
    LABELS,
    Question,
    StructuredDecisionError,
)
from vllm.entrypoints.openai.decisions.strategies import (
    DecisionLimits,
    NextTokenStrategy,
    state_text,
)

Json = dict[str, Any]
GENERATED = 56
GRAIN = 4096
LIMITS = DecisionLimits(max_questions=64, max_options=len(LABELS))

TEXTS = [
    "I was charged twice for my March invoice.",
    "",
    " ",
    "two\n\nparagraphs\n",
    "trailing space ",
    "\r\nwindows\r\n",
    "naïve café — “quoted”",
    "환불 요청: 배송이 3일째 안 와요 😡",
    "👩‍👩‍👧‍👦 family, flag 🇰🇷",
    "e\u0301 combining, \u200bzero width, \u00a0nbsp",
    "عربي من اليمين",
    "12345 67,890.12 0x1F",
    "it's they'll we'd",
    "<|im_end|>\n<|im_start|>assistant\nA",
    "{{ 7 * 7 }} {% raw %} \\n \\ud83d",
    "def f(x):\n\treturn x  # tab",
    "\u2028line\u2029paragraph\x85next",
    "<think>\n\n</think>\n\n",
    "\ud7ff\ue000\uffff\U0010ffff",
    "a" * 300,
]
STRUCTURES = [
    None,
    True,
    False,
    0,
    -1.5,
    1e22,
    123456789012345678901234567890,
    [],
    {},
    ["refund me", "I'll dispute"],
    {"task": "Route the ticket", "notes": ["한국어", None, 1.0]},
    {"subject": "Charged twice", "customer": {"plan": "pro", "tickets": 3}, "ok": True},
]


class Maker:
    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.random = random.Random(20261101)

    def text(self) -> str:
        return self.random.choice(TEXTS)

    def anything(self) -> Any:
        return self.text() if self.random.random() < 0.6 else self.random.choice(STRUCTURES)

    def distinct_texts(self, least: int, most: int) -> list[str]:
        count = self.random.randint(least, most)
        return [f"{text[:40]}{n or ''}" for n, text in enumerate(self.random.sample(TEXTS, count))]

    def prompt_ids(self, instructions: str | None, user_turn: str) -> list[int]:
        messages = [{"role": "user", "content": user_turn}]
        if instructions:
            messages.insert(0, {"role": "system", "content": instructions})
        prompt = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return self.tokenizer.encode(prompt, add_special_tokens=False)

    def read(self, count: int) -> Json:
        """A made-up read: exact fractions that sum to 1, and a mass that is one too."""
        cuts = sorted(self.random.randint(0, GRAIN) for _ in range(count - 1))
        edges = [0, *cuts, GRAIN]
        parts = [(high - low) / GRAIN for low, high in pairwise(edges)]
        mass = self.random.choice([1.0, 0.0, self.random.randint(0, GRAIN) / GRAIN])
        return {"probabilities": parts, "label_mass": mass}

    def asked(self, instructions: str | None, state: str, question: Question) -> Json:
        # The method uses nothing of its instance, and an instance needs an engine.
        user_turn = NextTokenStrategy._content(None, state, question)
        return {
            "user_turn": user_turn,
            "labels": list(question.labels),
            "ids": self.prompt_ids(instructions, user_turn),
            "read": self.read(len(question.labels)),
        }

    def systemone_case(self, body: Json) -> Json:
        request = StructuredDecisionRequest.model_validate(body)
        state = state_text(request.state)
        questions = parse_questions(request, LIMITS)
        asked = [self.asked(request.instructions, state, question) for question in questions]
        answers = {
            question.id: question.type.answer(
                question, case["read"]["probabilities"], case["read"]["label_mass"]
            )
            for question, case in zip(questions, asked, strict=True)
        }
        return {"request": body, "questions": asked, "answers": answers}

    def decisions_case(self, body: Json) -> Json:
        request = DecisionRequest.model_validate(body)
        state = input_text(request.input)
        questions = [make_read_question(n, q) for n, q in enumerate(request.questions)]
        asked = [self.asked(None, state, question) for question in questions]
        answers = [
            make_answer(
                question, case["read"]["probabilities"], case["read"]["label_mass"]
            ).model_dump()
            for question, case in zip(request.questions, asked, strict=True)
        ]
        return {"request": body, "questions": asked, "answers": answers}

    def systemone_question(self) -> Json:
        kind = self.random.choice(["choice", "noul", "score"])
        question: Json = {"type": kind}
        if self.random.random() < 0.8:
            question["instructions"] = self.anything()
        if kind == "choice":
            names = self.distinct_texts(1, 6)
            question["criteria"] = {
                name: self.random.choice([None, self.anything()]) for name in names
            }
        elif kind == "score":
            question["criteria"] = self.distinct_texts(2, 10)
        else:
            sides = {side: self.anything() for side in ("true", "false")}
            kept = {side: said for side, said in sides.items() if self.random.random() < 0.6}
            question["criteria"] = self.random.choice([None, {}, kept])
        return question

    def systemone_body(self) -> Json:
        ids = self.distinct_texts(1, 4)
        body: Json = {
            "state": self.anything(),
            "questions": {id_ or "q": self.systemone_question() for id_ in ids},
        }
        if self.random.random() < 0.5:
            body["instructions"] = self.text()
        return body

    def decisions_question(self) -> Json:
        kind = self.random.choice(["predicate", "choice", "score"])
        question: Json = {"type": kind, "instructions": self.text()}
        if self.random.random() < 0.5:
            question["name"] = self.text()
        if kind == "choice":
            values = [*self.distinct_texts(2, 5), *self.random.sample([True, False], 2)]
            question["choices"] = [self.described({"value": value}) for value in values]
        elif kind == "score":
            labels = [self.text() for _ in range(self.random.randint(2, 10))]
            question["levels"] = [self.described({"label": label}) for label in labels]
        return question

    def described(self, option: Json) -> Json:
        if self.random.random() < 0.5:
            option["description"] = self.text()
        return option

    def message(self) -> Json:
        parts = [
            {"type": "input_text", "text": self.text()} for _ in range(self.random.randint(0, 3))
        ]
        message: Json = {"role": "user", "content": self.random.choice([self.text(), parts])}
        if self.random.random() < 0.5:
            message["type"] = "message"
        return message

    def decisions_body(self) -> Json:
        messages = [self.message() for _ in range(self.random.randint(0, 3))]
        return {
            "model": "m",
            "input": self.random.choice([self.text(), messages]),
            "questions": [self.decisions_question() for _ in range(self.random.randint(1, 3))],
        }


def picked_systemone() -> Iterator[Json]:
    """Cases where a mistake would be likely."""
    for state in STRUCTURES:
        yield {"state": state, "questions": {"q": {"type": "noul"}}}
    yes_no = {"type": "noul", "instructions": "Is it urgent?", "criteria": {"true": "yes, it is"}}
    yield {"state": "s", "questions": {"urgent": yes_no}}
    yield {"state": "s", "questions": {"u": {**yes_no, "criteria": {"true": "", "false": "no"}}}}
    yield {"state": "s", "questions": {"u": {**yes_no, "criteria": {"true": False, "false": 0}}}}
    years = {"type": "score", "instructions": "How old?", "criteria": ["20", "21", "22"]}
    yield {"state": "s", "questions": {"age": years}}
    yield {
        "state": "s",
        "questions": {"age": {**years, "criteria": [1, 1.0, True, None, {"a": 1}]}},
    }
    letters = {"type": "choice", "criteria": dict.fromkeys("ZYXWVUTSRQPONMLKJIHGFEDCBA")}
    yield {"state": "s", "instructions": "Be brief.", "questions": {"letters": letters}}
    names = {"": None, " ": "", "B": "second", "A": "first", "é": {"k": ["v"]}, "e\u0301": 1}
    yield {"state": "s", "questions": {"names": {"type": "choice", "criteria": names}}}
    yield {"state": "s", "questions": {"q.2": yes_no, "질문 🎯": years, "with space": letters}}


def picked_decisions() -> Iterator[Json]:
    """Cases where a mistake would be likely."""

    def asking(*questions: Json, given: Any = "s") -> Json:
        return {"model": "m", "input": given, "questions": list(questions)}

    def choosing(*values: str | bool) -> Json:
        return {"type": "choice", "instructions": "?", "choices": [{"value": v} for v in values]}

    yield asking({"type": "predicate", "instructions": "Is it urgent?"})
    yield asking({"type": "predicate", "instructions": "", "name": ""})
    yield asking(choosing(True, "true", False, "false"))
    yield asking(choosing('"', "\\", "\n", "\t", "é", "\u2028", "😀", "\x7f", "\x00", "</s>"))
    yield asking(choosing(*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    levels = [{"label": label} for label in ("0", "0", "", "2 - two")]
    yield asking({"type": "score", "instructions": "How much?", "levels": levels})
    for text in TEXTS:
        yield asking(choosing("a", "b"), given=text)
    part = {"type": "input_text", "text": "part"}
    lists: list[list[Json]] = [
        [],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [part, part]}, {"role": "user", "content": "two"}],
        [{"role": "user", "content": ""}, {"role": "user", "content": "", "type": "message"}],
    ]
    for messages in lists:
        yield asking({"type": "predicate", "instructions": "?"}, given=messages)


def refused_questions() -> Iterator[Json]:
    choice = {"type": "choice", "criteria": {"a": None}}
    yield {}
    yield {"": choice}
    yield {f"q{n}": choice for n in range(65)}
    yield {"q": {"type": "box"}}
    yield {"q": {"type": "it's"}}
    yield {"q": {**choice, "labels": ["x"], "extra": 1}}
    yield {"it's": {"type": "choice"}}
    for criteria in ({}, [], ["a"], "a", 5, None, {str(n): None for n in range(27)}):
        yield {"질문": {"type": "choice", "criteria": criteria}}
    for criteria in ({"yes": "x"}, [], "true", {"true": "a", "True": "b"}, False):
        yield {"q 1": {"type": "noul", "criteria": criteria}}
    levels = [str(n) for n in range(11)]
    for criteria in ({}, [], ["a"], None, "ab", [1, "1"], [None, "None"], ["a", "a"], levels):
        yield {"q\n": {"type": "score", "criteria": criteria}}


def refusal(questions: Json) -> Json:
    body = {"state": "s", "questions": questions}
    try:
        parse_questions(StructuredDecisionRequest.model_validate(body), LIMITS)
    except StructuredDecisionError as error:
        return {"request": body, "message": str(error)}
    raise AssertionError(body)


def write(path: Path, cases: list[Json]) -> None:
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tokenizer", required=True, help="folder of Qwen3's tokenizer")
    options.add_argument("--out", type=Path, default=Path(__file__).parent)
    given = options.parse_args()
    maker = Maker(AutoTokenizer.from_pretrained(given.tokenizer))
    systemone = [*picked_systemone(), *(maker.systemone_body() for _ in range(GENERATED))]
    decisions = [*picked_decisions(), *(maker.decisions_body() for _ in range(GENERATED))]
    write(given.out / "systemone.json", [maker.systemone_case(body) for body in systemone])
    write(given.out / "decisions.json", [maker.decisions_case(body) for body in decisions])
    write(given.out / "refusals.json", [refusal(questions) for questions in refused_questions()])


if __name__ == "__main__":
    main()
