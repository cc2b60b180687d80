"""Whether a chat template wants a message's content as text or as a list of parts.

vLLM decides by the template's syntax: one that loops over a message's content gets parts. The
same rule here, oddities included, or the prompts would differ: a loop that it should follow but
whose variable is a tuple makes vLLM fall back to text.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from jinja2 import nodes


def takes_parts(template: nodes.Template) -> bool:
    messages = _aliases(template)
    loops = list(template.find_all(nodes.For))
    over_messages = [loop for loop in loops if _is_from(loop.iter, messages)]
    if not all(isinstance(loop.target, nodes.Name) for loop in over_messages):
        return False
    holders = {loop.target.name for loop in over_messages if isinstance(loop.target, nodes.Name)}
    parameters = _content_parameters(template, holders)
    for loop in loops:
        if _is_content(loop.iter, holders) or _is_named(loop, parameters):
            return isinstance(loop.target, nodes.Name)
    return False


def _is_named(loop: nodes.For, parameters: dict[int, set[str]]) -> bool:
    """Whether the loop is over `content`, or inside a macro over what it is given as content."""
    if not isinstance(loop.iter, nodes.Name):
        return False
    return loop.iter.name in parameters.get(id(loop), {"content"})


def _content_parameters(template: nodes.Template, holders: AbstractSet[str]) -> dict[int, set[str]]:
    """For each loop inside a macro, the macro's parameters that receive a message's content."""
    found: dict[int, set[str]] = {}
    for macro in template.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        passed = {
            name
            for name, value in _given(template, macro.name, names)
            if _is_content(value, holders)
        }
        for loop in macro.find_all(nodes.For):
            found[id(loop)] = passed or found.get(id(loop), set())
    return found


def _given(
    template: nodes.Template, macro: str, names: list[str]
) -> Iterator[tuple[str, nodes.Node]]:
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == macro:
            yield from zip(names, call.args, strict=False)
            yield from ((word.key, word.value) for word in call.kwargs if word.key in names)


def _assignments(template: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    for assign in template.find_all(nodes.Assign):
        target, value = assign.target, assign.node
        if isinstance(target, nodes.Name):
            yield target.name, value
            yield from ((f"{target.name}.{key}", given) for key, given in _attributes(value))
        elif isinstance(target, nodes.NSRef):
            yield f"{target.name}.{target.attr}", value


def _attributes(value: nodes.Node) -> Iterable[tuple[str, nodes.Node]]:
    """The attributes that a call of `namespace` sets."""
    if not isinstance(value, nodes.Call) or not isinstance(value.node, nodes.Name):
        return ()
    if value.node.name != "namespace":
        return ()
    return ((word.key, word.value) for word in value.kwargs)


def _aliases(template: nodes.Template) -> set[str]:
    """`messages`, and every variable that is assigned from it or from a slice or filter of it."""
    known = {"messages"}
    while True:
        found = {name for name, value in _assignments(template) if _is_from(value, known)}
        if found <= known:
            return known
        known |= found


def _unwrapped(node: nodes.Node | None) -> nodes.Node | None:
    """What is filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _is_from(node: nodes.Node | None, names: AbstractSet[str]) -> bool:
    return _dotted(_unwrapped(node)) in names


def _is_content(node: nodes.Node | None, holders: AbstractSet[str]) -> bool:
    found = _unwrapped(node)
    if isinstance(found, nodes.Getattr):
        return found.attr == "content" and _dotted(found.node) in holders
    if isinstance(found, nodes.Getitem) and isinstance(found.arg, nodes.Const):
        return bool(found.arg.value == "content") and _dotted(found.node) in holders
    return False


def _dotted(node: nodes.Node | None) -> str | None:
    if isinstance(node, nodes.Getattr):
        base = _dotted(node.node)
        return None if base is None else f"{base}.{node.attr}"
    return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else None
