"""Whether a chat template wants a message's content as text or as a list of parts.

vLLM decides by the template's syntax: one that loops over a message's content gets parts. The
same rule here, or the prompts would differ.
"""

from collections.abc import Iterator

from jinja2 import nodes


def takes_parts(template: nodes.Template) -> bool:
    messages = _aliases(template, "messages")
    loop_names = {
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and _is_from(loop.iter, messages)
    }
    assigned = {
        name
        for name, value in _assignments(template)
        if any(_is_element(value, alias) for alias in messages)
    }
    holders = loop_names | assigned
    in_macros = {
        id(loop) for macro in template.find_all(nodes.Macro) for loop in macro.find_all(nodes.For)
    }
    return any(
        _is_content(loop.iter, holders)
        or (id(loop) not in in_macros and _is_name(loop.iter, "content"))
        for loop in template.find_all(nodes.For)
    ) or any(_loops_over_parameter(template, macro, holders) for macro in _macros(template))


def _macros(template: nodes.Template) -> Iterator[nodes.Macro]:
    return template.find_all(nodes.Macro)


def _loops_over_parameter(template: nodes.Template, macro: nodes.Macro, holders: set[str]) -> bool:
    """Whether the macro is called with a message's content, and loops over it."""
    names = [argument.name for argument in macro.args]
    passed = {
        name
        for call in template.find_all(nodes.Call)
        if _is_name(call.node, macro.name)
        for name, value in [
            *zip(names, call.args, strict=False),
            *((keyword.key, keyword.value) for keyword in call.kwargs),
        ]
        if _is_content(value, holders)
    }
    return any(
        isinstance(loop.iter, nodes.Name) and loop.iter.name in passed
        for loop in macro.find_all(nodes.For)
    )


def _assignments(template: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    for assign in template.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name):
            yield assign.target.name, assign.node
        elif isinstance(assign.target, nodes.NSRef):
            yield f"{assign.target.name}.{assign.target.attr}", assign.node
        call = assign.node
        if isinstance(call, nodes.Call) and _is_name(call.node, "namespace"):
            for keyword in call.kwargs:
                yield f"{getattr(assign.target, 'name', '')}.{keyword.key}", keyword.value


def _aliases(template: nodes.Template, root: str) -> set[str]:
    """`root`, and every variable that is assigned from it or from a slice or filter of it."""
    known = {root}
    while True:
        found = {name for name, value in _assignments(template) if _is_from(value, known)}
        if found <= known:
            return known
        known |= found


def _is_from(node: nodes.Node | None, names: set[str]) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_from(node.node, names)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Slice) and _is_from(node.node, names)
    return _dotted(node) in names


def _is_element(node: nodes.Node | None, name: str) -> bool:
    if isinstance(node, nodes.Filter):
        return _is_element(node.node, name)
    if not isinstance(node, nodes.Getitem) or isinstance(node.arg, nodes.Slice):
        return False
    return _is_from(node.node, {name})


def _is_content(node: nodes.Node | None, holders: set[str]) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_content(node.node, holders)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _is_content(node.node, holders)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content" and _dotted(node.node) in holders
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        return node.arg.value == "content" and (
            _dotted(node.node) in holders or _is_element(node.node, "messages")
        )
    return False


def _dotted(node: nodes.Node | None) -> str | None:
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return None


def _is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name
