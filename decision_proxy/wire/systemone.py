"""POST /v1/systemone: the request, and the body of its answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from decision_proxy.errors import Dialect, RequestError, shortened
from decision_proxy.questions import Answer, Decision, Kind, Option, Question
from decision_proxy.settings import Limits
from decision_proxy.wire.confidence import confidence
from decision_proxy.wire.fields import (
    CacheSalt,
    Shape,
    json_text,
    refuse_joint_reads,
    refuse_too_many_questions,
    shaped,
    template_options,
)

KINDS = {"choice": Kind.CHOICE, "noul": Kind.NOUL, "score": Kind.SCORE}
TYPES = {kind: name for name, kind in KINDS.items()}
MIN_LEVELS = 2
MEDIA = {"images": "image", "audio": "audio", "videos": "video", "assets": "asset"}


class QuestionShape(Shape):
    model_config = ConfigDict(extra="allow")

    type: str
    instructions: Any = ""
    criteria: Any = None


class RequestShape(Shape):
    model: str | None = None
    state: Any
    questions: dict[str, QuestionShape]
    instructions: str | None = None
    images: list[str] | None = None
    audio: list[str] | None = None
    videos: list[str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    joint: bool = False
    cache_salt: CacheSalt = None
    priority: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    request_id: str = ""


class TypeSafeRequestShape(RequestShape):
    model_config = ConfigDict(extra="ignore")

    assets: dict[str, Any] | list[Any] | None = None


SHAPES: dict[Dialect, type[RequestShape]] = {
    "vllm": RequestShape,
    "typesafe": TypeSafeRequestShape,
}


@dataclass(frozen=True, slots=True)
class SystemOneRequest:
    dialect: Dialect
    model: str | None
    state: str
    ids: tuple[str, ...]
    questions: tuple[Question, ...]
    instructions: str | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None
    priority: int = 0
    request_id: str | None = None

    @classmethod
    def parse(cls, body: dict[str, Any], *, dialect: Dialect, limits: Limits) -> "SystemOneRequest":
        refuse_too_many_questions(body, limits)
        given = shaped(SHAPES[dialect], body)
        questions = _questions(given.questions, dialect, limits)
        _refuse_media(given)
        refuse_joint_reads(joint=given.joint)
        return cls(
            dialect=dialect,
            model=given.model,
            state=_text(given.state, "state"),
            ids=tuple(given.questions),
            questions=questions,
            instructions=given.instructions or None,
            template_kwargs=template_options(given.chat_template_kwargs),
            cache_salt=given.cache_salt,
            priority=given.priority,
            request_id=given.request_id or None,
        )

    def decision(self, id: str) -> Decision:  # noqa: A002 -- the wire's own word
        return Decision(
            id=id,
            model=self.model,
            state=self.state,
            questions=self.questions,
            instructions=self.instructions,
            template_kwargs=self.template_kwargs,
            cache_salt=self.cache_salt,
            priority=self.priority,
        )

    def answer(
        self, decision_id: str, model_name: str, answers: Sequence[Answer], created: int
    ) -> dict[str, Any]:
        asked = list(zip(self.ids, self.questions, answers, strict=True))
        return {
            "id": decision_id,
            "object": "structured_decision",
            "created": created,
            "model": model_name,
            "answers": {id_: _answered(q, answer, self.dialect) for id_, q, answer in asked},
            "usage": {
                "input_tokens": sum(answer.input_tokens for answer in answers),
                "output_tokens": sum(answer.output_tokens for answer in answers),
            },
            "diagnostics": {
                id_: {"label_mass": answer.label_mass, "argmax_is_label": answer.argmax_is_label}
                for id_, _, answer in asked
            },
            # vLLM 0.33 shows null where nothing was read jointly (StructuredDecisionResponse in
            # its structured_decisions/protocol.py); neither 0.32 nor TypeSafe has the field.
            **({"joint": None} if self.dialect == "vllm" else {}),
        }


def _text(value: Any, param: str) -> str:
    return value if isinstance(value, str) else json_text(value, param)


def _questions(
    given: Mapping[str, QuestionShape], dialect: Dialect, limits: Limits
) -> tuple[Question, ...]:
    if not given:
        raise RequestError("questions: needs at least one question", path=("questions",))
    return tuple(Asked(id_, spec, dialect).question(limits) for id_, spec in given.items())


def _refuse_media(given: RequestShape) -> None:
    asked = [modality for name, modality in MEDIA.items() if getattr(given, name, None)]
    if asked:
        names = ", ".join(sorted(asked))
        first = next(name for name, modality in MEDIA.items() if modality in asked)
        raise RequestError(f"this model does not take {names} inputs", path=(first,))


@dataclass(frozen=True, slots=True)
class Asked:
    """One question as it came, on its way to a neutral one."""

    id: str
    spec: QuestionShape
    dialect: Dialect

    @property
    def name(self) -> str:
        return f"question {shortened(self.id)!r}"

    def refusal(self, words: str, *path: str) -> RequestError:
        return RequestError(f"{self.name}: {words}", path=("questions", self.id, *path))

    def question(self, limits: Limits) -> Question:
        if not self.id:
            raise RequestError("question ids must be non-empty", path=("questions",))
        if self.spec.model_extra:
            unknown = sorted(shortened(name) for name in self.spec.model_extra)[:5]
            raise self.refusal(f"unknown field(s) {unknown}", next(iter(self.spec.model_extra)))
        kind = self.kind()
        options = self.options(kind)
        if len({option.name for option in options}) < len(options):
            raise self.refusal("duplicate option names", "criteria")
        most = min(limits.options, len(kind.labels))
        if len(options) > most:
            raise self.refusal(f"at most {most} options for this model", "criteria")
        instructions = self.spec.instructions
        return Question(
            name=self.name,
            kind=kind,
            instructions="" if instructions is None else self.written(instructions),
            options=options,
        )

    def kind(self) -> Kind:
        kind = KINDS.get(self.spec.type)
        if kind is None:
            raise RequestError(
                f"unknown question type {shortened(self.spec.type)!r}; supported: {sorted(KINDS)}",
                path=("questions", self.id, "type"),
            )
        return kind

    def options(self, kind: Kind) -> tuple[Option, ...]:
        criteria = self.spec.criteria
        if kind is Kind.CHOICE:
            return self.choices(criteria)
        if kind is Kind.NOUL:
            return self.sides(criteria)
        return self.levels(criteria)

    def choices(self, criteria: Any) -> tuple[Option, ...]:
        if not isinstance(criteria, dict) or not criteria:
            raise self.refusal(
                "choice criteria must map option names to a description or null", "criteria"
            )
        return tuple(self.option(name, said) for name, said in criteria.items())

    def sides(self, criteria: Any) -> tuple[Option, ...]:
        sides = {} if criteria is None else criteria
        if not isinstance(sides, dict) or not sides.keys() <= {"true", "false"}:
            raise self.refusal("noul criteria must be an object with true and false", "criteria")
        return self.option("yes", sides.get("true")), self.option("no", sides.get("false"))

    def levels(self, criteria: Any) -> tuple[Option, ...]:
        if not isinstance(criteria, list) or len(criteria) < MIN_LEVELS:
            raise self.refusal("score criteria must be an ordered list of levels", "criteria")
        return tuple(Option(self.written(level)) for level in criteria)

    def option(self, name: str, description: Any) -> Option:
        return Option(name, None if description is None else self.written(description))

    def written(self, value: Any) -> str:
        """Text as it is; a structure as vLLM's Python or TypeSafe's JSON would show it."""
        if isinstance(value, str):
            return value
        if self.dialect == "typesafe":
            return json_text(value, "questions", self.id)
        return str(value)


def _answered(question: Question, answer: Answer, dialect: Dialect) -> dict[str, Any]:
    said: dict[str, Any] = {"type": TYPES[question.kind]}
    names = [option.name for option in question.options]
    probabilities = answer.probabilities
    if question.kind is Kind.CHOICE:
        said |= {
            "choice": names[answer.best],
            "probabilities": dict(zip(names, probabilities, strict=True)),
        }
    elif question.kind is Kind.NOUL:
        said |= {
            "noul": probabilities[0],
            "probabilities": dict(zip(names, probabilities, strict=True)),
        }
    else:
        said |= {
            "score": sum(level * p for level, p in enumerate(probabilities)),
            "legend": {str(level): name for level, name in enumerate(names)},
            "probabilities": {str(level): p for level, p in enumerate(probabilities)},
        }
    return said | {"confidence": confidence(question.kind, answer, dialect)}
