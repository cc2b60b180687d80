from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decision_proxy.errors import RequestError
from decision_proxy.prompt.opaque import Contents
from decision_proxy.prompt.template import ChatTemplate
from decision_proxy.prompt.tokenizer import TokenizerError
from tests.prompt.conftest import real_tokenizer
from tests.prompt.small import small_file, small_hf

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GEMMA2 = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{{ m.content | trim }}{% endfor %}"
)
LOOKS = "{% if messages[-1].content|length %}{% endif %}"
NOON = datetime(2026, 7, 26, 12, tzinfo=UTC)


def chat_template(source: str, **special_tokens: str) -> ChatTemplate:
    hf = small_hf(small_file(), chat_template=source)
    for name, token in special_tokens.items():
        setattr(hf, name, token)
    return ChatTemplate(hf)


def texts(template: ChatTemplate, asked: Contents, **options: Any) -> list[str]:
    rendered = template.render(asked, **options)
    return [rendered.head + tail for tail in rendered.tails]


@pytest.mark.parametrize("source", [CHATML, CHATML + LOOKS])
def test_each_prompt_is_one_user_turn_and_the_generation_prompt(source: str) -> None:
    asked = Contents("State.\n\n", ["One?", "Two?"])
    assert texts(chat_template(source), asked) == [
        f"<|user|>State.\n\n{question}</><|assistant|>" for question in asked.tails
    ]


@pytest.mark.parametrize("source", [CHATML, CHATML + LOOKS])
def test_instructions_are_the_system_message(source: str) -> None:
    found = texts(chat_template(source), Contents("a", ["b"]), system="Be brief.")
    assert found == ["<|system|>Be brief.</><|user|>ab</><|assistant|>"]


def test_prompts_share_everything_up_to_their_own_text() -> None:
    rendered = chat_template(CHATML).render(Contents("State.\n\n", ["One?", "Two?"]))
    assert rendered.head == "<|user|>State.\n\n"
    assert rendered.tails == ("One?</><|assistant|>", "Two?</><|assistant|>")


@pytest.mark.parametrize("source", [GEMMA2, GEMMA2 + LOOKS])
def test_a_template_that_refuses_a_system_role_is_quoted(source: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat_template(source).render(Contents("a", ["b"]), system="Be brief.")
    assert refused.value.status == 400
    assert refused.value.message == "the chat template refuses this: System role not supported"


def test_a_template_that_breaks_is_the_requests_fault_too() -> None:
    with pytest.raises(RequestError, match="the chat template fails on this"):
        chat_template("{{ messages[0].content + 1 }}").render(Contents("a", ["b"]))


@pytest.mark.parametrize("strip", ["|trim", ".strip()", ".lstrip()", ".rstrip()"])
@given(head=st.text(" \na", max_size=4), tails=st.lists(st.text(" \na", max_size=3), min_size=1))
@settings(max_examples=60)
def test_a_template_that_trims_gives_the_trimmed_prompts(
    strip: str, head: str, tails: list[str]
) -> None:
    template = chat_template("<{{ messages[-1].content" + strip + " }}>")
    method = strip.strip("|.()").replace("trim", "strip")
    wanted = [f"<{getattr(head + tail, method)()}>" for tail in tails]
    assert texts(template, Contents(head, tails)) == wanted


@pytest.mark.parametrize("look", ["", LOOKS])
def test_a_dated_template_reads_one_clock_for_every_prompt(look: str) -> None:
    template = chat_template("{{ strftime_now('%H:%M:%S.%f') }} {{ messages[-1].content }}" + look)
    found = texts(template, Contents("a", ["b", "c"]))
    assert len({text.split(" ")[0] for text in found}) == 1
    later = NOON + timedelta(hours=1)
    assert texts(template, Contents("a", ["b", "c"]), now=later) == [
        "13:00:00.000000 ab",
        "13:00:00.000000 ac",
    ]


def test_a_published_dated_template_follows_the_given_clock() -> None:
    template = ChatTemplate(real_tokenizer("llama3_1").hf)
    assert "26 Jul 2026" not in texts(template, Contents("a", ["b"]))[0]
    source = template._template.environment.from_string("{{ strftime_now('%d %b %Y') }}")
    assert source.render(strftime_now=NOON.strftime) == "26 Jul 2026"


@pytest.mark.parametrize("look", ["", LOOKS])
def test_options_and_special_tokens_reach_the_template(look: str) -> None:
    source = "{{ bos_token }}{{ tone }}{{ enable_thinking }}{{ messages[-1].content }}" + look
    template = chat_template(source, bos_token="<s>")
    assert texts(template, Contents("a", ["b"]), options={"tone": "dry"}) == ["<s>dryFalseab"]
    assert texts(template, Contents("a", ["b"]), options={"bos_token": "!"}) == ["!Falseab"]


def test_a_template_that_loops_over_content_gets_parts() -> None:
    template = chat_template(
        "{% for m in messages %}{% for c in m.content %}[{{ c.type }}]{{ c.text }}{% endfor %}"
        "{% endfor %}"
    )
    assert template.followable
    assert texts(template, Contents("a", ["b"]), system="s") == ["[text]s[text]ab"]


def test_a_frame_says_what_around_the_content_came_from_the_user() -> None:
    frame = chat_template(CHATML).render(Contents("a", ["b"]), system="sys").frame
    assert frame is not None
    assert frame.before == (("<|system|>", False), ("sys", True), ("</><|user|>", False))
    assert frame.after == (("</><|assistant|>", False),)


def test_a_tokenizer_without_a_chat_template_is_refused_with_what_to_do() -> None:
    with pytest.raises(TokenizerError, match="--prompt-chat-template"):
        ChatTemplate(small_hf(small_file()))


def test_a_chat_template_that_is_no_template_is_refused() -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        chat_template("{% if %}")


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "llama3", "deepseek_v3", "smollm2"])
@pytest.mark.parametrize("system", [None, "Be brief. "])
def test_prompts_are_what_transformers_renders(name: str, system: str | None) -> None:
    hf = real_tokenizer(name).hf
    template = ChatTemplate(hf)
    asked = Contents(" State.\n\n", ["One? ", "Two?"])
    wanted = []
    for tail in asked.tails:
        messages = [{"role": "user", "content": template._content(asked.head + tail)}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": template._content(system)})
        wanted.append(
            hf.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )
    assert texts(template, asked, system=system) == wanted
