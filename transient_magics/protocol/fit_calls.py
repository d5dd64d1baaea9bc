"""The last statement of a cell that may call `fit`, from its syntax alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_FIT = "fit"


def last_fit(tree: ast.Module) -> int:
    """Return the number of the cell's statements up to the last that may call `fit`; 0: none may.

    A statement may call it itself, or through functions and methods that the cell defines.
    """
    calling = _calling_functions(tree)
    found = 0
    for number, statement in enumerate(tree.body, 1):
        defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not defines and any(_may_call(call, calling) for call in _calls(statement)):
            found = number
    return found


def _calling_functions(tree: ast.Module) -> set[str]:
    """Return the names of the cell's functions and methods that may call `fit`."""
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != _FIT
    ]
    calling = set[str]()
    while True:
        more = {
            function.name
            for function in functions
            if any(_may_call(call, calling) for call in _calls(function))
        }
        if more <= calling:
            return calling
        calling |= more


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def _may_call(call: ast.Call, functions: set[str]) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr == _FIT or call.func.attr in functions
    return isinstance(call.func, ast.Name) and call.func.id in functions
