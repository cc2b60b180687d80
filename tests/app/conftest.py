import pkgutil
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette

from decision_proxy.app import create_app
from decision_proxy.prompt.tokenizer import Tokenizer
from decision_proxy.settings import Settings
from tests.app.harness import ready
from tests.fakes.vllm import FakeVllm
from tests.servers import tokenizer_folder

MakeApp = Callable[..., Starlette]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(str(tokenizer_folder("qwen3")))


@pytest.fixture
async def vllm(tokenizer: Tokenizer) -> AsyncIterator[FakeVllm]:
    """Its /tokenize is transformers' own rendering, so that the proxy finds it fitting."""

    def tokenize(body: Any) -> list[int]:
        text = tokenizer.hf.apply_chat_template(
            body["messages"],
            tokenize=False,
            add_generation_prompt=True,
            **body["chat_template_kwargs"],
        )
        return tokenizer.encode(str(text))

    async with FakeVllm(tokenize=tokenize) as fake:
        yield fake


@pytest.fixture
def make_app(vllm: FakeVllm, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> MakeApp:
    """The application in front of the fake; the tokenizer is loaded once a session."""
    monkeypatch.setattr(Tokenizer, "load", lambda _source, chat_template: tokenizer)

    def make(**options: Any) -> Starlette:
        return create_app(Settings(**{"upstream": vllm.url, "tokenizer": "qwen3", **options}))

    return make


@pytest.fixture
async def app(make_app: MakeApp) -> AsyncIterator[Starlette]:
    async with ready(make_app()) as running:
        yield running


@pytest.fixture
async def typesafe_app(make_app: MakeApp) -> AsyncIterator[Starlette]:
    async with ready(make_app(dialect="typesafe")) as running:
        yield running


@pytest.fixture
def threads_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], list[str]]:
    """Names of the threads that a function runs in, in order of its calls."""

    def watch(owner: str, name: str) -> list[str]:
        found: list[str] = []
        target = pkgutil.resolve_name(owner)
        original = getattr(target, name)

        def watched(*args: Any, **options: Any) -> Any:
            found.append(threading.current_thread().name)
            return original(*args, **options)

        monkeypatch.setattr(target, name, watched)
        return found

    return watch
