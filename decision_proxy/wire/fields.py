"""What both wire APIs share: how a shape is checked, cache salts, template options."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from decision_proxy.errors import Path, RequestError, dotted, shortened
from decision_proxy.settings import Limits

MAX_SALT_LENGTH = 128
SALT_FORBIDS = frozenset("@/\\\0")

# What transformers' chat rendering and Jinja itself call by name.
RESERVED_TEMPLATE_NAMES = frozenset(
    {
        "self",
        "conversation",
        "conversations",
        "messages",
        "chat_template",
        "compiled_template",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "sanitize_control_tokens",
        "load_audio_from_video",
        "tokenizer_kwargs",
        "processor_kwargs",
        "template_kwargs",
        "raise_exception",
        "strftime_now",
        "caller",
        "cycler",
        "dict",
        "joiner",
        "kwargs",
        "lipsum",
        "loop",
        "namespace",
        "range",
        "super",
        "varargs",
    }
)
THINKING = ("enable_thinking", "thinking")
# vLLM takes these as "not given", so the template sees its own default.
UNSET = (None, "auto")

MAX_WORDS = 200
MAX_ERRORS = 1000

EXPECTED = {
    "missing": "required",
    "extra_forbidden": "unknown field",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "union_tag_not_found": "needs a type",
    "union_tag_invalid": "type must be one of {expected_tags}",
}


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


AnyShape = TypeVar("AnyShape", bound=Shape)


def shaped(shape: type[AnyShape], body: Mapping[str, Any]) -> AnyShape:
    try:
        return shape.model_validate(body)
    except ValidationError as error:
        raise _refusal(error, body) from None


def _refusal(error: ValidationError, body: Mapping[str, Any]) -> RequestError:
    # Each listed error costs a dict, and a hostile body may hold a million.
    if error.error_count() > MAX_ERRORS:
        return RequestError(f"{error.error_count()} fields of the body are wrong")
    first = error.errors(include_url=False, include_input=False)[0]
    fallback = re.sub(r"^\w+ should ", "must ", first["msg"])
    known = EXPECTED.get(first["type"])
    words = shortened(known.format_map(first.get("ctx", {})) if known else fallback, MAX_WORDS)
    path = tuple(_path(body, first["loc"]))
    return RequestError(f"{dotted(path)}: {words}", path=path)


def _path(body: Any, loc: Path) -> Iterator[int | str]:
    """`loc` without what only the model knows: union tags, and parts of a value it rewrote."""
    node = body
    for depth, step in enumerate(loc, start=1):
        last = depth == len(loc)
        if not last and depth > 1 and _tells_apart(node, step):
            continue
        if _holds(node, step):
            node = node[step]
            yield step
        elif last and isinstance(node, dict):
            yield step


def _tells_apart(node: Any, step: int | str) -> bool:
    """A union's tag, and not a field of the same name."""
    return isinstance(node, dict) and node.get("type") == step


def _holds(node: Any, step: int | str) -> bool:
    if isinstance(node, dict):
        return step in node
    return isinstance(node, list) and isinstance(step, int) and step < len(node)


def json_text(value: Any, *path: int | str) -> str:
    """The value as vLLM's endpoints write JSON into a prompt."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise RequestError(f"{dotted(path)}: cannot be written as JSON", path=path) from None


def refuse_too_many_questions(body: Mapping[str, Any], limits: Limits) -> None:
    """Counted before anything is built from them."""
    questions = body.get("questions")
    if isinstance(questions, dict | list) and len(questions) > limits.questions:
        raise RequestError(
            f"questions: at most {limits.questions} for this model", path=("questions",)
        )


def refuse_joint_reads(*, joint: bool) -> None:
    if joint:
        raise RequestError(
            "joint: this model reads each question on its own; joint reads need DiffusionGemma",
            path=("joint",),
        )


def _checked_salt(salt: Any) -> Any:
    if salt is None:
        return salt
    if not isinstance(salt, str) or not salt:
        raise RequestError(
            "Parameter 'cache_salt' must be a non-empty string if provided.", path=("cache_salt",)
        )
    if len(salt) > MAX_SALT_LENGTH or not SALT_FORBIDS.isdisjoint(salt):
        raise RequestError(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain "
            "'@', '/', '\\\\', or NUL.",
            path=("cache_salt",),
        )
    return salt


CacheSalt = Annotated[str | None, BeforeValidator(_checked_salt)]


def template_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a request may say to the chat template; never its template, and never thinking."""
    options = given or {}
    for name in options:
        if name in RESERVED_TEMPLATE_NAMES:
            path = ("chat_template_kwargs", name)
            raise RequestError(f"{dotted(path)}: a request must not set this", path=path)
    _refuse_thinking(options, THINKING)
    return {name: value for name, value in options.items() if value not in UNSET}


def _refuse_thinking(options: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        value = options.get(name)
        path = ("chat_template_kwargs", name)
        if value is True:
            raise RequestError(
                "a read is the reply's first token, so thinking must be off", path=path
            )
        if value is not None and value is not False:
            raise RequestError(f"{dotted(path)}: must be false", path=path)
