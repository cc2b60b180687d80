"""POST /v1/decisions: the request, and the body of its answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from decision_proxy.errors import RequestError, dotted
from decision_proxy.questions import Answer, Decision, Kind, Option, Question
from decision_proxy.settings import Limits
from decision_proxy.wire.confidence import best_over_vocabulary
from decision_proxy.wire.fields import (
    CacheSalt,
    Shape,
    json_text,
    refuse_joint_reads,
    refuse_too_many_questions,
    shaped,
)

ShortText = Annotated[str, Field(max_length=1024 * 1024)]
LongText = Annotated[str, Field(max_length=10 * 1024 * 1024)]


class TextPart(Shape):
    type: Literal["input_text"]
    text: LongText
    prompt_cache_breakpoint: Any = None

    @property
    def shown(self) -> str:
        return self.text


class JsonPart(Shape):
    type: Literal["input_json"]
    data: dict[str, Any] | list[Any]
    prompt_cache_breakpoint: Any = None

    @property
    def shown(self) -> str:
        return json_text(self.data, "input")


Part = Annotated[TextPart | JsonPart, Field(discriminator="type")]


def _as_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string or a list of parts")
    if any(isinstance(part, dict) and part.get("type") == "input_image" for part in content):
        raise PydanticCustomError(
            "images", "Decisions supports text input only; images are not supported"
        )
    return content


def _as_messages(given: Any) -> Any:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise PydanticCustomError("input", "must be a string or a list of messages")
    return given


def _not_null(name: Any) -> Any:
    if name is None:
        raise PydanticCustomError("null", "must be a string when provided")
    return name


def _text_or_boolean(value: Any) -> Any:
    if not isinstance(value, str | bool):
        raise PydanticCustomError("value", "must be a string or a boolean")
    return value


Parts = Annotated[list[Part], Field(max_length=16384), BeforeValidator(_as_parts)]


class Message(Shape):
    role: Literal["user"]
    content: Parts
    type: Literal["message"] = "message"


class QuestionShape(Shape):
    instructions: Parts
    name: Annotated[ShortText | None, BeforeValidator(_not_null)] = None


class Choice(Shape):
    value: Annotated[str | bool, BeforeValidator(_text_or_boolean)]
    description: ShortText = ""


def _distinct(choices: list[Choice]) -> list[Choice]:
    """`true` and `"true"` are two values."""
    if len({(type(choice.value), choice.value) for choice in choices}) < len(choices):
        raise PydanticCustomError("distinct", "choice values must be distinct")
    return choices


class Level(Shape):
    label: ShortText
    description: ShortText = ""


class Predicate(QuestionShape):
    type: Literal["predicate"]

    def options(self) -> tuple[Option, ...]:
        return Option("false"), Option("true")

    def answer(self, answer: Answer) -> dict[str, Any]:
        return {"type": self.type, "name": self.name, "probability": answer.probabilities[1]}


class ChoiceQuestion(QuestionShape):
    type: Literal["choice"]
    choices: Annotated[list[Choice], Field(min_length=2, max_length=255), AfterValidator(_distinct)]

    def options(self) -> tuple[Option, ...]:
        return tuple(
            Option(json_text(choice.value, "questions"), choice.description)
            for choice in self.choices
        )

    def answer(self, answer: Answer) -> dict[str, Any]:
        return {
            "type": self.type,
            "name": self.name,
            "choice": self.choices[answer.best].value,
            "probabilities": [
                {"value": choice.value, "probability": probability}
                for choice, probability in zip(self.choices, answer.probabilities, strict=True)
            ],
            "confidence": best_over_vocabulary(answer),
        }


class ScoreQuestion(QuestionShape):
    type: Literal["score"]
    levels: Annotated[list[Level], Field(min_length=2, max_length=10)]

    def options(self) -> tuple[Option, ...]:
        return tuple(Option(level.label, level.description) for level in self.levels)

    def answer(self, answer: Answer) -> dict[str, Any]:
        levels = list(zip(self.levels, answer.probabilities, strict=True))
        return {
            "type": self.type,
            "name": self.name,
            "score": sum(value * p for value, (_, p) in enumerate(levels)),
            "probabilities": [
                {"value": value, "label": level.label, "probability": p}
                for value, (level, p) in enumerate(levels)
            ],
            "confidence": best_over_vocabulary(answer),
        }


AnyQuestion = Annotated[Predicate | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")]


class RequestShape(Shape):
    model: ShortText
    input: Annotated[list[Message], Field(max_length=131072), BeforeValidator(_as_messages)]
    questions: Annotated[list[AnyQuestion], Field(min_length=1)]
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    joint: bool = False
    cache_salt: CacheSalt = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_breakpoint: Any = None


@dataclass(frozen=True, slots=True)
class DecisionsRequest:
    model: str
    state: str
    asked: tuple[Predicate | ChoiceQuestion | ScoreQuestion, ...]
    questions: tuple[Question, ...]
    cache_salt: str | None = None
    request_id: str | None = None

    @classmethod
    def parse(cls, body: dict[str, Any], *, limits: Limits) -> "DecisionsRequest":
        refuse_too_many_questions(body, limits)
        given = shaped(RequestShape, body)
        refuse_joint_reads(joint=given.joint)
        return cls(
            model=given.model,
            state="\n\n".join(_shown(message.content) for message in given.input),
            asked=tuple(given.questions),
            questions=tuple(
                _question(place, asked, limits) for place, asked in enumerate(given.questions)
            ),
            cache_salt=given.cache_salt,
        )

    def decision(self, id: str) -> Decision:  # noqa: A002 -- the wire's own word
        return Decision(
            id=id,
            model=self.model,
            state=self.state,
            questions=self.questions,
            cache_salt=self.cache_salt,
        )

    def answer(
        self,
        decision_id: str,  # noqa: ARG002 -- one signature for both wires
        model_name: str,
        answers: Sequence[Answer],
        created: int,  # noqa: ARG002 -- one signature for both wires
    ) -> dict[str, Any]:
        return {
            "model": model_name,
            "answers": [
                asked.answer(answer) for asked, answer in zip(self.asked, answers, strict=True)
            ],
            "usage": _usage(answers),
        }


def _shown(parts: Sequence[TextPart | JsonPart]) -> str:
    return "\n".join(part.shown for part in parts)


def _question(
    place: int, asked: Predicate | ChoiceQuestion | ScoreQuestion, limits: Limits
) -> Question:
    path = ("questions", place)
    options = asked.options()
    # Every type is read by letters here, unlike on systemone.
    most = min(limits.options, len(Kind.CHOICE.labels))
    if len(options) > most:
        raise RequestError(f"This model supports at most {most} choices per question", path=path)
    return Question(
        name=dotted(path),
        kind=Kind.CHOICE,
        instructions=_shown(asked.instructions),
        options=options,
    )


def _usage(answers: Sequence[Answer]) -> dict[str, Any]:
    input_tokens = sum(answer.input_tokens for answer in answers)
    output_tokens = sum(answer.output_tokens for answer in answers)
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": sum(answer.cached_tokens for answer in answers),
            "cache_write_tokens": 0,
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }
