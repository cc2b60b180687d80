"""Good bodies of both wires, and what may be wrong in any place of them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

SYSTEMONE = {
    "model": "m",
    "state": {"text": "late", "list": [1, 2.5, None, True]},
    "questions": {
        "team": {"type": "choice", "instructions": "?", "criteria": {"a": "b", "c": None}},
        "late": {"type": "noul", "instructions": {"x": 1}, "criteria": {"true": "y", "false": 1}},
        "anger": {"type": "score", "criteria": ["calm", 1, {"x": 2.0}]},
    },
    "instructions": "Be strict.",
    "images": [],
    "chat_template_kwargs": {"enable_thinking": False, "tone": ["dry"]},
    "joint": False,
    "cache_salt": "pepper",
    "priority": 3,
    "request_id": "mine",
}
DECISIONS = {
    "model": "m",
    "input": [
        {"role": "user", "content": "late", "type": "message"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {}},
                {"type": "input_json", "data": {"a": [1.5, None]}},
            ],
        },
    ],
    "questions": [
        {"type": "predicate", "instructions": "?", "name": "p"},
        {
            "type": "choice",
            "instructions": [{"type": "input_text", "text": "?"}],
            "choices": [{"value": "a", "description": "b"}, {"value": True}],
        },
        {"type": "score", "instructions": "?", "levels": [{"label": "l"}, {"label": "m"}]},
    ],
    "safety_identifier": "s",
    "cache_salt": "pepper",
    "prompt_cache_options": {"ttl": "30m"},
}
KEYS = [
    *('""', '"type"', '"a.b"', '"\\u0000"', '"\\ud83d"', '"\\ud83d\\ude00"', '"\U0001f600"'),
    *('"model_config"', '"model_extra"', '"__class__"', '"__pydantic_extra__"', '"self"'),
    *('"state"', '"choices"', '"levels"', '"input_text"', '"request_id"', '"priority"'),
    f'"{"k" * 10_000}"',
]
VALUES = [
    *("true", "false", "null", "0", "1", "-0.0", "1e-400", "2.0", "9223372036854775808"),
    *("1e400", "-1E+400", "NaN", "Infinity", "-Infinity", "01", "'x'", ""),
    *("9" * 4300, "-" + "9" * 4300, "9" * 4301, "1" + "0" * 400 + ".0", "[" + "9" * 4300 + "]"),
    *('""', '" "', '"\\ud83d"', '["\\udfff"]', '{"\\ud83d": 1}', '"\\u0000\\n\\u2028"'),
    *("[]", "{}", "[[]]", "[{}]", "[null]", '{"": null}', '{"a": 1, "a": 2}', '{"type": []}'),
    *("[" * depth + "]" * depth for depth in (200, 246, 250, 100_000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (200, 246, 250, 100_000)),
    *(f'"{"v" * 10_000}"', "[1," * 200 + "1" + "]" * 200),
    *('{"type": "input_image"}', '[{"type": "input_text", "text": 1}]', '{"type": "choice"}'),
]


class Mutator:
    """Writes a body as JSON, with something wrong at the places chosen."""

    def __init__(self, draw: Callable[..., Any], chosen: set[int]) -> None:
        self._draw = draw
        self._chosen = chosen
        self._place = -1

    def written(self, node: Any) -> str:
        self._place += 1
        chosen = self._place in self._chosen
        if not isinstance(node, dict | list):
            return self._any(VALUES) if chosen else json.dumps(node)
        if chosen and self._draw(st.booleans()):
            return self._any(VALUES)
        inside = list(self._inside(node))
        if chosen:
            inside = self._changed(inside, names=isinstance(node, dict))
        opening, closing = "{}" if isinstance(node, dict) else "[]"
        return opening + ", ".join(inside) + closing

    def _inside(self, node: dict[str, Any] | list[Any]) -> Iterator[str]:
        if isinstance(node, list):
            yield from map(self.written, node)
        else:
            for name, value in node.items():
                yield f"{json.dumps(name)}: {self.written(value)}"

    def _changed(self, inside: list[str], *, names: bool) -> list[str]:
        more = self._any(VALUES)
        if names:
            more = f"{self._any(KEYS)}: {more}"
        changes = [[more, *inside], [*inside, more], inside[1:], inside * 2]
        changed: list[str] = self._draw(st.sampled_from(changes))
        return changed

    def _any(self, texts: list[str]) -> str:
        text: str = self._draw(st.sampled_from(texts))
        return text


@st.composite
def mutated(draw: Callable[..., Any], body: dict[str, Any]) -> bytes:
    chosen = draw(st.sets(st.integers(0, places(body) - 1), max_size=3))
    return Mutator(draw, chosen).written(body).encode()


def places(node: Any) -> int:
    if not isinstance(node, dict | list):
        return 1
    return 1 + sum(map(places, node.values() if isinstance(node, dict) else node))


class Swap(Mutator):
    """`value` in place of one node, whatever it is."""

    def __init__(self, value: str, place: int) -> None:
        super().__init__(lambda _strategy: True, {place})
        self._value = value

    def _any(self, texts: list[str]) -> str:
        return self._value if texts is VALUES else texts[0]


def swapped(body: dict[str, Any], value: str) -> Iterator[bytes]:
    """One body for each of its places."""
    for place in range(places(body)):
        yield Swap(value, place).written(body).encode()
