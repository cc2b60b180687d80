"""A Jinja environment in which no placeholder becomes plain text before the output.

A placeholder follows what is asked of itself. But whatever formats, joins or searches with it
would see its mark as an ordinary text, and a later question about that text would be answered
wrongly. So each filter, test, call and `%` that is given a placeholder raises `NotOpaque`, unless
it is known to hand the placeholder on untouched or to ask it. What captures output (macros, `set`
blocks, recursive loops, `~`) cannot be guarded so: `is_followable` finds it in the syntax tree.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from jinja2 import Environment, Undefined, nodes
from jinja2.filters import do_trim
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from decision_proxy.prompt.opaque import NotOpaque, Opaque

_CAPTURING = (
    nodes.Macro,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.AssignBlock,
    nodes.Concat,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Extends,
    nodes.Block,
    nodes.EvalContextModifier,
)
_PASSING_FILTERS = frozenset(
    {"length", "count", "default", "d", "first", "last", "list", "string"}
    | {"select", "reject", "selectattr", "rejectattr"}
)
_PASSING_TESTS = frozenset(
    {"defined", "undefined", "none", "string", "mapping", "number", "integer", "float", "boolean"}
    | {"true", "false", "iterable", "sequence", "eq", "==", "equalto", "ne", "!="}
)
_BUILDERS = ("namespace", "dict")
_PLAIN = (str, int, float, type(None), Undefined, range, Context, EvalContext, Environment)


class FollowingEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"%"})

    @classmethod
    def like(cls, environment: Environment) -> "FollowingEnvironment":
        """One that renders as `environment` does."""
        following = cls(
            trim_blocks=environment.trim_blocks,
            lstrip_blocks=environment.lstrip_blocks,
            extensions=[type(extension) for extension in environment.extensions.values()],
        )
        following.globals.update(environment.globals)
        following.filters = _guarded(environment.filters, _PASSING_FILTERS) | {"trim": _trim}
        following.tests = _guarded(environment.tests, _PASSING_TESTS) | {"in": _is_in}
        return following

    def call(self, context: Context, called: Any, /, *args: Any, **options: Any) -> Any:
        if not any(called is self.globals.get(name) for name in _BUILDERS):
            _refuse_opaque(*args, *options.values())
        return super().call(context, called, *args, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _refuse_opaque(left, right)
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, Opaque):
            raise NotOpaque
        return super().getitem(obj, argument)


def is_followable(template: nodes.Template) -> bool:
    """Whether a placeholder can be followed through everything this template may do."""
    return (
        next(iter(template.find_all(_CAPTURING)), None) is None
        and not any(loop.recursive for loop in template.find_all(nodes.For))
        and not any(
            len(comparison.ops) > 1 and operand.op in ("in", "notin")
            for comparison in template.find_all(nodes.Compare)
            for operand in comparison.ops
        )
    )


class _Membership(NodeTransformer):
    """Turns the operator `in` into the test of that name, which can be guarded."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        operator = node.ops[0].op
        if operator not in ("in", "notin"):
            return node
        test = nodes.Test(node.expr, "in", [node.ops[0].expr], [], None, None)
        found = test if operator == "in" else nodes.Not(test)
        return found.set_lineno(node.lineno, override=True).set_environment(self.environment)


def followed(environment: Environment, source: str) -> nodes.Template:
    tree: nodes.Template = _Membership(environment).visit(environment.parse(source))
    return tree


def _may_hold(value: object) -> bool:
    if isinstance(value, Opaque):
        return True
    if isinstance(value, dict):
        return any(map(_may_hold, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return any(map(_may_hold, value))
    return not isinstance(value, _PLAIN)


def _refuse_opaque(*values: object) -> None:
    if any(map(_may_hold, values)):
        raise NotOpaque


def _guarded(
    functions: Mapping[str, Any], passing: frozenset[str]
) -> dict[str, Callable[..., Any]]:
    return {
        name: function if name in passing else _guard(function)
        for name, function in functions.items()
    }


def _guard(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def guarded(*args: Any, **options: Any) -> Any:
        _refuse_opaque(*args, *options.values())
        return function(*args, **options)

    return guarded


def _trim(value: Any, chars: str | None = None) -> str:
    """Jinja's filter, which would otherwise turn a placeholder into plain text first."""
    return value.strip(chars) if isinstance(value, Opaque) else do_trim(value, chars)


def _is_in(value: Any, container: Any) -> bool:
    if not isinstance(container, list | tuple):
        _refuse_opaque(value)
    return value in container
