"""The calls of a cell that may call `fit`, from its syntax alone.

The syntax tells neither whose `fit` a call means nor how often it is executed. So this analysis
finds every call that may be one; only the execution of the cell tells which calls train a model.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

_Name = tuple[type[ast.AST], str]
"""A name as it is used: of a function (ast.Name), or of a method (ast.Attribute)."""

_FIT: _Name = (ast.Attribute, "fit")
_CONSTRUCTORS = ("__new__", "__init__", "__post_init__")
_REPEATING = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def last_fit(tree: ast.Module) -> int:
    """Return the number of the cell's statements up to the last that may call `fit`; 0: none may.

    A statement may call it itself, or through functions and methods that the cell defines.
    """
    calling = _calling(tree)
    if _is_passed_on(tree, calling):
        return len(tree.body)
    found = 0
    for number, statement in enumerate(tree.body, 1):
        if not _defines(statement) and _calls(_nodes(statement), calling):
            found = number
    return found


def may_continue(tree: ast.Module, line: int) -> bool:
    """Return whether the cell may call `fit` again, after its line `line` has called it.

    `line` is the outermost line of the call, which is outside of functions.
    """
    calling = _calling(tree)
    if _is_passed_on(tree, calling):
        return True
    rest = [
        node
        for statement in tree.body
        if not _defines(statement)
        for node in _nodes(statement)
        if (getattr(node, "end_lineno", None) or 0) >= line
    ]
    bodies = [_nodes(node) for node in _nodes(tree) if _is_function(node)]
    return any(_may_repeat(nodes, calling) for nodes in (rest, *bodies))


def _may_repeat(nodes: Sequence[ast.AST], calling: Collection[_Name]) -> bool:
    """Return whether `nodes` have several calls that may call `fit`, or one in a loop."""
    if len(_calls(nodes, calling)) > 1:
        return True
    return any(_calls(_nodes(node), calling) for node in nodes if isinstance(node, _REPEATING))


def _calling(tree: ast.Module) -> set[_Name]:
    """Return the names of `fit`, and of the cell's functions and methods that may call it."""
    functions: dict[_Name, list[ast.AST]] = {}
    classes = {
        id(node): defined.name
        for defined in _nodes(tree)
        if isinstance(defined, ast.ClassDef)
        for node in defined.body
    }
    for node in _nodes(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        name: _Name = (ast.Name, node.name)
        if id(node) in classes:
            name = (ast.Attribute, node.name)
            if node.name in _CONSTRUCTORS:
                name = (ast.Name, classes[id(node)])
        functions.setdefault(name, []).extend(_nodes(node))
    calling = {_FIT}
    while True:
        more = {name for name, nodes in functions.items() if _uses(nodes, calling)}
        if more <= calling:
            return calling
        calling |= more


def _is_passed_on(tree: ast.Module, calling: Collection[_Name]) -> bool:
    """Return whether calls without these names may call `fit` as well.

    The cell uses a name other than in a call, or in a lambda, or Python calls a special method.
    """
    nodes = _nodes(tree)
    if len(_uses(nodes, calling)) > len(_calls(nodes, calling)):
        return True
    if any(_uses(_nodes(node), calling) for node in nodes if isinstance(node, ast.Lambda)):
        return True
    return any(name.startswith("__") for _, name in calling)


def _calls(nodes: Sequence[ast.AST], calling: Collection[_Name]) -> list[ast.AST]:
    """Return the calls of these names."""
    return _uses([node.func for node in nodes if isinstance(node, ast.Call)], calling)


def _uses(nodes: Sequence[ast.AST], calling: Collection[_Name]) -> list[ast.AST]:
    """Return the nodes that are one of these names, and not assigned to it."""
    found: list[ast.AST] = []
    for node in nodes:
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Name):
            name = node.id
        else:
            continue
        if isinstance(node.ctx, ast.Load) and (type(node), name) in calling:
            found.append(node)
    return found


def _nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _defines(statement: ast.stmt) -> bool:
    return _is_function(statement) or isinstance(statement, ast.ClassDef)
