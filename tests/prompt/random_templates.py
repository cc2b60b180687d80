"""Chat templates that do anything Jinja can do with a message, as Hypothesis strategies."""

from hypothesis import strategies as st

PREAMBLE = (
    "{% set ns = namespace(c=messages[0].content) %}{% set c = messages[-1].content %}"
    "{% set d = 'd' %}{% set m = messages[0] %}{% set x = 'x' %}"
)
sources = st.sampled_from(
    [
        "messages[-1].content", "messages[0]['content']", "m.content", "m['content']", "c", "d",
        "ns.c", "m.get('content', '')", "messages[0].content", "m.role", "x",
    ]
)  # fmt: skip
literals = st.sampled_from(
    [
        "'U'",
        "'You'",
        "'ab'",
        "''",
        "' '",
        "'\\n'",
        "'Q'",
        "'?'",
        "'abUser'",
        "'x' ",
        "'user'",
        "'0'",
    ]
)
filters = st.sampled_from(
    [
        "trim", "upper", "lower", "length", "string", "e", "safe", "default('z')", "first", "last",
        "list|join", "replace('a', 'b')", "tojson", "trim|trim", "title", "indent", "truncate(5)",
        "trim('U')", "int", "wordcount", "reverse", "center(9)", "list", "escape", "d('', true)",
        "capitalize", "urlencode", "striptags", "pprint", "format('a')", "join('-')", "items",
    ]
)  # fmt: skip
methods = st.sampled_from(
    [
        "strip()", "lstrip()", "rstrip()", "upper()", "strip('U')", "split('a')[0]", "title()",
        "replace('a', 'b')", "startswith('U')", "endswith('?')", "find('a')", "format('x')",
        "splitlines()[0]", "lower()", "startswith(('U', 'a'))", "endswith(messages[0].content)",
        "startswith(messages[0].content)", "count('a')", "zfill(3)", "join(['a', 'b'])",
        "encode()", "isupper()", "removeprefix('U')", "partition('a')[2]", "startswith('U', 1)",
    ]
)  # fmt: skip
tests = st.sampled_from(
    [
        "string", "upper", "lower", "mapping", "iterable", "sequence", "defined", "none", "true",
        "eq('ab')", "in('abUser')", "in(['ab', 'U'])", "sameas(messages[0].content)", "number",
        "ne('')", "callable", "escaped", "odd", "in(messages[0].content)", "lt('b')", "boolean",
    ]
)  # fmt: skip


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def of(shape: str, *parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.builds(shape.format, *parts)

    return st.one_of(
        of("({} + {})", inner, inner),
        of("({} + {})", literals, inner),
        of("({} ~ {})", inner, literals),
        of("({}|{})", inner, filters),
        of("({}.{})", inner, methods),
        of("({})[{}]", inner, st.sampled_from(["0", "1:", "::-1", "'x'", ":3", "-1"])),
        of("({} if {} else {})", inner, inner, inner),
        of("({} == {})", inner, inner),
        of("({} != {})", inner, literals),
        of("({} in {})", inner, inner),
        of("({} not in {})", literals, inner),
        of("({} in {})", inner, literals),
        of("({} in [{}, {}])", inner, inner, literals),
        of("({} is {})", inner, tests),
        of("({} is not {})", inner, tests),
        of("({} < {})", inner, literals),
        of("({} and {})", inner, inner),
        of("({} or {})", inner, inner),
        of("(not {})", inner),
        of("('%s!' % {})", inner),
        of("({} % {})", inner, inner),
        of("('<%s>' % ({},))", inner),
        of("('{{}}'.format({}))", inner),
        of("('abUser'.startswith({}))", inner),
        of("('a'.join([{}, {}]))", inner, inner),
        of("([{}, {}]|join)", inner, inner),
        of("([{}, {}]|last)", literals, inner),
        of("({{'k': {}}}.k)", inner),
        of("({{'k': {}}}|tojson)", inner),
        of("(dict(k={})['k'])", inner),
        of("({} * 2)", inner),
        of("(messages|map(attribute='content')|join({}))", literals),
        of("(messages|selectattr('role', 'equalto', {})|list)", literals),
        of("((messages|last).content ~ {})", literals),
        of("(namespace(v={}).v)", inner),
        of("(messages[{}])", inner),
        of("(cycler({}).next())", inner),
        of("({} + 1)", inner),
        of("({} + eos_token)", inner),
        of("(strftime_now({}))", inner),
    )


expressions = st.recursive(st.one_of(sources, sources, literals), _larger, max_leaves=3)
plain_output = st.builds("{{{{ {} }}}}".format, sources)


def _statements(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    blocks = st.lists(inner, min_size=1, max_size=3).map("".join)
    return st.one_of(
        st.builds(
            "{{%- if {} %}}{}{{%- else %}}{}{{%- endif %}}".format, expressions, blocks, inner
        ),
        st.builds("{{% for m in messages %}}{}{{% endfor %}}".format, blocks),
        st.builds("{{% for m in messages if {} %}}{}{{% endfor %}}".format, expressions, blocks),
        st.builds("{{% for d in {} %}}{}{{% endfor %}}".format, expressions, blocks),
        st.builds(
            "{{% for m in messages recursive %}}{{% if m.role %}}{{% set d = loop([m.content]) %}}"
            "{}{{% else %}}{{{{ m }}}}{{% endif %}}{{% endfor %}}".format,
            blocks,
        ),
        st.builds("{{% set c %}}{}{{% endset %}}{{{{ c|trim }}}}".format, blocks),
        st.builds(
            "{{% macro f(c) %}}{}{{% endmacro %}}{{{{ f({})|trim }}}}".format, blocks, expressions
        ),
        st.builds("{{% filter upper %}}{}{{% endfilter %}}".format, blocks),
        st.builds("{{% generation %}}{}{{% endgeneration %}}".format, blocks),
        st.builds("{{% autoescape true %}}{}{{% endautoescape %}}".format, blocks),
        st.builds("{{% with c = {} %}}{}{{% endwith %}}".format, expressions, blocks),
    )


one_statement = st.one_of(
    st.builds("{{{{ {} }}}}".format, expressions),
    st.builds("{{{{- {} -}}}}".format, expressions),
    st.builds("{{% set c = {} %}}".format, expressions),
    st.builds("{{% set ns.c = {} %}}".format, expressions),
    st.builds(
        "{{% if {} %}}{{{{ raise_exception('no ' + {}) }}}}{{% endif %}}".format,
        expressions,
        sources,
    ),
    plain_output,
    st.sampled_from(["<|im_start|>\n", " text\n", "\n", "{# note #}"]),
)
statements = st.recursive(one_statement, _statements, max_leaves=4)
decisions = st.builds("{{% if {} %}}yes{{% else %}}no{{% endif %}}".format, expressions)
templates = st.builds(
    lambda parts, asked: PREAMBLE + "".join(parts) + "".join(asked),
    st.lists(statements, min_size=1, max_size=2),
    st.lists(st.one_of(decisions, plain_output), max_size=2),
)
contents = st.sampled_from(
    [
        "",
        "U",
        "User",
        "You are",
        " a",
        "a ",
        "\n",
        "ab",
        "Q?",
        " \n x \n",
        "<b>&amp;",
        "UPPER",
        "abU",
        "x",
        "user",
        "1",
        "%s",
        "{}",
        "ſ",
        "0",
        "a" * 40,
    ]
)
