import pytest
from transformers.utils import chat_template_utils

from decision_proxy.prompt.content_format import takes_parts
from tests.prompt.conftest import real_tokenizer

LOOP = "{%% for c in %s %%}{{ c.text }}{%% endfor %%}"


def parts(source: str) -> bool:
    return takes_parts(
        chat_template_utils._compile_jinja_template(source).environment.parse(source)
    )


def over_messages(body: str, name: str = "m", messages: str = "messages") -> str:
    return f"{{% for {name} in {messages} %}}{body}{{% endfor %}}"


@pytest.mark.parametrize(
    "source",
    [
        over_messages(LOOP % "m.content"),
        over_messages(LOOP % "m['content']"),
        over_messages(LOOP % "m.content|list"),
        over_messages(LOOP % "m.content[1:]"),
        over_messages(LOOP % "m.content", messages="messages[1:]"),
        "{% set rest = messages[1:] %}" + over_messages(LOOP % "m.content", messages="rest"),
        "{% set ns = namespace(r=messages) %}" + over_messages(LOOP % "m.content", messages="ns.r"),
        "{% set ns.r = messages %}" + over_messages(LOOP % "m.content", messages="ns.r"),
        over_messages("{% set content = m.content %}" + LOOP % "content"),
        "{% macro f(x) %}" + LOOP % "x" + "{% endmacro %}" + over_messages("{{ f(m.content) }}"),
        "{% macro f(x) %}" + LOOP % "x" + "{% endmacro %}" + over_messages("{{ f(x=m.content) }}"),
    ],
)
def test_a_template_that_loops_over_a_messages_content_takes_parts(source: str) -> None:
    assert parts(source)


@pytest.mark.parametrize(
    "source",
    [
        over_messages("{{ m.content }}"),
        over_messages(LOOP % "m.tool_calls"),
        over_messages(LOOP % "x.content"),
        "{% set m = messages[0] %}" + LOOP % "m.content",
        LOOP % "messages[0]['content']",
        "{% macro f(content) %}"
        + LOOP % "content"
        + "{% endmacro %}"
        + over_messages("{{ f(1) }}"),
        over_messages("{% for a, b in m.content %}{% endfor %}"),
        over_messages(LOOP % "a.content", name="a, b"),
    ],
)
def test_a_template_that_vllm_gives_text_takes_text(source: str) -> None:
    assert not parts(source)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("gemma3", True), ("qwen3", False), ("llama3_1", False), ("deepseek_v3", False)],
)
def test_published_templates_take_what_vllm_gives_them(name: str, *, wanted: bool) -> None:
    assert parts(real_tokenizer(name).hf.get_chat_template()) is wanted
