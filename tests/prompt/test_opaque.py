import operator
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from decision_proxy.errors import RequestError
from decision_proxy.prompt.following import is_followable
from decision_proxy.prompt.opaque import Contents, NotOpaque, Opaque, placeholder
from decision_proxy.prompt.template import ChatTemplate
from decision_proxy.prompt.tokenizer import TokenizerError
from tests.prompt.random_templates import contents, templates
from tests.prompt.small import small_file, small_hf

NOW = datetime(2026, 7, 26, tzinfo=UTC)
HF = small_hf(small_file())


def chat_template(source: str) -> ChatTemplate:
    HF.chat_template = source
    return ChatTemplate(HF)


def full(template: ChatTemplate, asked: Contents, system: str | None) -> list[str] | str:
    """What rendering each conversation by itself gives, or why it is refused."""
    options = {"enable_thinking": False, "strftime_now": NOW.strftime}
    try:
        return [template._text(asked.head + tail, system, options) for tail in asked.tails]
    except RequestError as error:
        return error.message


def spliced(template: ChatTemplate, asked: Contents, system: str | None) -> list[str] | str:
    try:
        rendered = template.render(asked, system=system, now=NOW)
    except RequestError as error:
        return error.message
    return [rendered.head + tail for tail in rendered.tails]


CONVERSATIONS = [
    (Contents("", ["You are", "You too"]), "You are"),
    (Contents("ab", ["User", "ab "]), "ab"),
    (Contents("  User\n\n", ["Question: a", "B? "]), None),
    (Contents("", ["", "x"]), " x "),
    (Contents("User", [""]), "User"),
]


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.startswith('You') }}{{ messages[-1].content }}",
        "{% if messages[0].content == '' %}empty{% endif %}{{ messages[-1].content }}",
        "{% if messages[0].content %}full{% endif %}{{ messages[-1].content }}",
        "{{ messages[-1].content + eos_token }}",
        "{{ messages[-1].content + 1 }}",
        "{{ messages[-1].content }}{{ messages[0].content in messages[-1].content }}",
        "{{ messages[-1].content }}{{ messages[0].content == messages[-1].content }}",
        "{{ messages[-1].content }}{{ messages[-1].content.endswith(messages[0].content) }}",
        "{{ messages[-1].content }}{{ messages[-1].content is upper }}",
        "{{ messages[-1].content }}{{ messages[-1].content is lower }}",
        "{{ messages[-1].content }}{{ messages[-1].content is in 'User ab' }}",
        "{{ messages[-1].content }}{% set s = 'User' %}{{ messages[-1].content in s }}",
        "{{ messages[-1].content }}{% set s = 'User' %}{{ messages[-1].content not in s }}",
        "{{ messages[-1].content }}{{ 'User'.startswith(messages[-1].content) }}",
        "{{ messages[-1].content }}{{ 'a User'.find(messages[-1].content) }}",
        "{% set f = '%s' %}{{ (f % (messages[-1].content,))|trim }}",
        "{{ ('{}'.format(messages[-1].content))|trim }}",
        "{{ ([messages[-1].content]|join)|trim }}",
        "{{ (messages|map(attribute='content')|join)|trim }}",
        "{% set tool_text = messages[-1].content %}{{ (tool_text|upper)|trim }}",
        "{% set tools = [messages[-1].content] %}{{ tools|tojson }}",
        "{% set tool_x = messages %}{{ tool_x|map(attribute='content')|join|trim }}",
        "{% set c %}{{ messages[-1].content }}{% endset %}{{ c|trim }}",
        "{% macro f(c) %}{{ c }}{% endmacro %}{{ f(messages[-1].content)|trim }}",
        "{{ (messages[-1].content ~ ' ')|trim }}",
        "{% autoescape true %}{{ messages[-1].content }}{% endautoescape %}",
        "{% for m in messages recursive %}{% if m.role %}{% set s = loop([m.content]) %}"
        "{{ s|trim }}{% else %}{{ m }}{% endif %}{% endfor %}",
        "{% generation %}{{ messages[-1].content }}{% endgeneration %}",
        "{{ raise_exception('no ' + messages[-1].content) }}",
        "{% set ns = namespace(x=messages[-1].content) %}{{ ns[ns.x] }}{{ ns.x }}",
        "{{ messages[-1].content }}{{ messages[-1].content is sameas(messages[-1].content|trim) }}",
        "{{ messages[-1].content.strip('U') }}",
        "{{ messages[-1].content.strip().startswith('U') }}{{ messages[-1].content }}",
        "{{ messages[-1].content[1:] }}{{ messages[-1].content|length }}",
        "{{ messages[-1].content.contents is defined }}{{ messages[-1].content }}",
        "{{ messages[-1].content }}{{ messages[-1].content }}",
        "{{ messages }}",
        "{{ messages[-1].content * 2 }}",
        "{% for c in messages[-1].content %}{{ c }}{% endfor %}",
        "{{ 'User' in messages[-1].content in ['User'] }}{{ messages[-1].content }}",
        "{{ dict(a=messages[-1].content).values()|list|join }}",
        "{{ cycler(messages[-1].content).next()|trim }}",
    ],
)
@pytest.mark.parametrize(("asked", "system"), CONVERSATIONS)
def test_a_template_that_looks_into_a_content_renders_as_if_it_were_not_followed(
    source: str, asked: Contents, system: str | None
) -> None:
    template = chat_template(source)
    assert spliced(template, asked, system) == full(template, asked, system)


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(templates, st.lists(contents, min_size=1, max_size=3), contents, st.none() | contents)
@example("{{ messages[-1].content ~ x }}", ["a"], "b", None)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_any_template_renders_as_if_it_were_not_followed(
    source: str, tails: list[str], head: str, system: str | None
) -> None:
    try:
        template = chat_template(source)
    except TokenizerError:
        return
    asked = Contents(head, tails)
    found, wanted = spliced(template, asked, system), full(template, asked, system)
    if " object at 0x" not in str(wanted):
        assert found == wanted


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[-1].content }}",
        "<s>{{ messages[-1]['content']|trim }}</s>",
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content.strip() + '</>' }}{% endfor %}",
        "{% set ns = namespace(c='') %}{% for m in messages %}{% set ns.c = m.content %}"
        "{% endfor %}{{ ns.c }}",
        "{% for m in messages if m.role in ['user'] %}{{ m.content.rstrip() }}{% endfor %}",
        "{% if 'zzz' not in messages[-1].content %}{{ messages[-1].content }}{% endif %}",
        "{% if messages[-1].content is string %}{{ messages[-1].content }}{% endif %}",
        "{% set u = messages|selectattr('role', 'equalto', 'user')|list %}{{ u[-1].content }}",
        "{{ (messages|last).content|default('', true) }}{{ [1]|tojson }}",
        "{{ messages[-1].get('content', '') }}{{ dict(a=messages[-1].content) is mapping }}",
    ],
)
def test_a_template_that_only_carries_the_content_is_followed(source: str) -> None:
    template = chat_template(source)
    asked = Contents(" State. \n\n", ["One? ", "Two?"])
    rendered = template.render(asked, now=NOW)
    assert rendered.frame is not None
    assert [rendered.head + tail for tail in rendered.tails] == full(template, asked, None)


def opaque(head: str, *tails: str) -> Opaque:
    return placeholder(Contents(head, tails), {})


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda text: text.startswith("ab"), True),
        (lambda text: text.startswith("b"), False),
        (lambda text: text.endswith("!"), True),
        (lambda text: "b c" in text, True),
        (lambda text: "aa" in text, False),
        (lambda text: "" in text, True),
        (lambda text: text == "ab", False),
        (lambda text: text != "ab", True),
        (lambda text: text == 5, False),
        (bool, True),
    ],
)
def test_a_question_with_one_answer_for_every_prompt_is_answered(
    question: Callable[[Any], Any], answer: Any
) -> None:
    assert question(opaque("ab c d a", "!", "?!")) is answer


def test_what_is_only_in_the_ends_together_is_not_found_in_the_middle() -> None:
    text = opaque("ab" + "-" * 20 + "cd", "ef")
    assert "bc" not in text
    assert "de" in text
    assert "ab" + "cd" not in text


@pytest.mark.parametrize(
    "question",
    [
        lambda text: text.endswith("!"),
        lambda text: "!" in text,
        lambda text: text == "ab!",
        lambda text: text.startswith(("a", "b")),
        lambda text: text.startswith("a", 1),
        lambda text: text.strip().startswith("a"),
        lambda text: text.strip().strip(),
        lambda text: (text + "x").endswith("x"),
        lambda text: text.startswith(text),
        lambda text: opaque("ab", "!") in text,
        lambda text: text + 1,
        lambda text: 1 + text,
        lambda text: text.strip("a"),
        partial(operator.mod, "%s"),
        lambda text: f"{text}",
        *[
            lambda text, act=act: act(text)
            for act in (len, list, hash, repr, str.upper, min, "".join)
            if act is not str.upper and act is not "".join
        ],
        lambda text: text[0],
        lambda text: text < "b",
        lambda text: text > "b",
        lambda text: text * 2,
        lambda text: text.upper(),
        lambda text: text.split("a"),
        lambda text: text.encode(),
    ],
)
def test_any_other_question_ends_the_following(question: Callable[[Any], Any]) -> None:
    with pytest.raises(NotOpaque):
        question(opaque("ab", "!", "?"))


def test_a_question_that_prompts_answer_differently_ends_the_following() -> None:
    with pytest.raises(NotOpaque):
        bool(opaque("", "", "x"))


@pytest.mark.parametrize(
    "source",
    [
        "{% macro f() %}{% endmacro %}",
        "{% set x %}{% endset %}",
        "{{ 1 ~ 2 }}",
        "{{ 1 in 2 in 3 }}",
        "{% filter trim %}{% endfilter %}",
        "{% for x in [] recursive %}{% endfor %}",
        "{% autoescape true %}{% endautoescape %}",
        "{% block a %}{% endblock %}",
    ],
)
def test_templates_that_capture_their_output_are_not_followed(source: str) -> None:
    assert not is_followable(Environment(autoescape=False).parse(source))
