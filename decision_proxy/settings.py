"""One frozen settings object. Flags, environment and the README's table all come from it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, HttpUrl, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from decision_proxy.errors import Dialect

MIB = 1024 * 1024


def _server(url: HttpUrl) -> HttpUrl:
    if url.username or url.password:
        raise ValueError(
            "must hold no user name or password; vLLM's key is another setting, upstream_api_key"
        )
    if url.query is not None or url.fragment is not None:
        raise ValueError("must hold no query and no fragment")
    if (url.path or "").rstrip("/").endswith("/v1"):
        raise ValueError("must end before /v1")
    return url


def _header_value(key: SecretStr) -> SecretStr:
    value = key.get_secret_value()
    if not value or not all("!" <= char <= "~" for char in value):
        raise ValueError("must be printable ASCII without white space")
    return key


def _text_file(path: Path) -> Path:
    try:
        path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError("must name a file of UTF-8 text") from error
    return path


def _one(workers: int) -> int:
    if workers != 1:
        raise ValueError(
            "must be 1: one process holds the one gate where decisions take turns, and each more "
            "would let as much again into vLLM at a time; it scales by --prompt-threads instead"
        )
    return workers


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Limits(Group):
    questions: Annotated[int, Field(ge=1, le=400)] = Field(
        400, description="Most questions in one decision."
    )
    options: Annotated[int, Field(ge=2, le=26)] = Field(
        26, description="Most options of one question."
    )
    body_bytes: Annotated[int, Field(ge=1024)] = Field(
        64 * MIB, description="Largest request body, in bytes."
    )
    bodies_bytes: Annotated[int, Field(ge=1024)] = Field(
        1024 * MIB, description="Request bodies held at a time, in bytes; more are answered 429."
    )
    deadline_s: Seconds = Field(
        600.0,
        description="Seconds a decision may take; a request says less with x-decision-timeout-s.",
    )


class Prompt(Group):
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        4, description="Threads that parse, render and tokenize."
    )
    cache_bytes: Annotated[int, Field(ge=0)] = Field(
        256 * MIB, description="Memory for token ids of states seen before, in bytes; 0 is off."
    )
    user_text_specials: Literal["keep", "split"] = Field(
        "keep",
        description="Control tokens written out in user text: keep them as vLLM does, or split "
        "them into plain text.",
    )
    chat_template: Annotated[Path, AfterValidator(_text_file)] | None = Field(
        None, description="A chat template file; give the one vLLM was started with, if any."
    )


class Reads(Group):
    connections: Annotated[int, Field(ge=1, le=4096)] = Field(
        256, description="Most connections to vLLM for reads."
    )
    connect_timeout_s: Seconds = Field(5.0, description="Seconds to wait for a connection to vLLM.")
    timeout_s: Seconds = Field(600.0, description="Seconds to wait for the answer of one read.")
    keepalive_s: Annotated[float, Field(ge=0, le=4)] = Field(
        2.0, description="Seconds an idle connection is kept; vLLM closes its own after 5."
    )


class Gate(Group):
    policy: Literal["off", "turns", "budget"] = Field(
        "turns",
        description="How big decisions take turns: not at all, `slots` at a time, or by a budget "
        "of tokens that vLLM has not cached.",
    )
    slots: Annotated[int, Field(ge=1, le=1024)] = Field(
        2, description="Big decisions that read at a time under policy turns."
    )
    budget_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Uncached tokens in vLLM at a time under policy budget; by default 8 steps of "
        "its engine.",
    )
    max_batched_tokens: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="vLLM's --max-num-batched-tokens; by default what vLLM says, else 8192.",
    )
    prefix_caching: bool | None = Field(
        None, description="Whether vLLM caches prefixes; by default what vLLM says, else true."
    )
    priority_scheduling: bool | None = Field(
        None,
        description="Whether vLLM has --scheduling-policy priority, which ends policy turns; by "
        "default what vLLM says, else false.",
    )
    waiting: Annotated[int, Field(ge=0)] = Field(
        1024, description="Most decisions that wait for their turn; more are answered 429."
    )
    waiting_bytes: Annotated[int, Field(ge=0)] = Field(
        512 * MIB, description="Most memory of decisions that wait for their turn, in bytes."
    )


class Settings(BaseSettings):
    """Environment: prefix `DECISION_PROXY_`, groups joined by `__`; flags say the same."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        env_prefix="DECISION_PROXY_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    upstream: Annotated[HttpUrl, AfterValidator(_server)] = Field(
        description="URL of the vLLM server, without /v1."
    )
    tokenizer: Annotated[str, Field(min_length=1)] = Field(
        description="Folder (or cached hub name) with the served model's tokenizer and template."
    )
    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1", description="Address to listen on."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8001, description="Port to listen on.")
    dialect: Dialect = Field(
        "vllm", description="Whose /v1/systemone to speak where the two disagree."
    )
    aliases: dict[str, str] = Field(
        default_factory=dict, description="JSON object: name clients use → served model name."
    )
    upstream_api_key: Annotated[SecretStr, AfterValidator(_header_value)] | None = Field(
        None, description="vLLM's API key for the proxy's own checks; clients bring theirs."
    )
    shutdown_s: Seconds = Field(
        25.0, description="Seconds that running decisions get to end after SIGTERM or Ctrl-C."
    )
    workers: Annotated[int, AfterValidator(_one)] = Field(
        1, description="Processes; only 1 is possible, as all decisions share one gate."
    )
    limits: Limits = Field(default_factory=Limits)
    prompt: Prompt = Field(default_factory=Prompt)
    gate: Gate = Field(default_factory=Gate)
    reads: Reads = Field(default_factory=Reads)
