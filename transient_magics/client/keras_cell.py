"""Checks of a cell that trains with Keras, from its syntax alone: in the kernel, within a second.

What only the model itself shows is checked on a VM (runtime/training/user_model). These checks find
what no run can train, before anything is rented, and name the line and the remedy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..errors import CellError
from ..protocol.fit_calls import last_fit

_JOB = "Run it as a job: write %%job --pip {package} above the cell instead of %%train."
_FRAMEWORKS = {
    "torch": ("PyTorch", "torch"),
    "lightning": ("PyTorch Lightning", "lightning"),
    "pytorch_lightning": ("PyTorch Lightning", "pytorch-lightning"),
    "jax": ("JAX", "jax"),
    "flax": ("Flax", "flax"),
}
"""Modules of other frameworks, with their names and packages."""
_KERAS = ("keras", "tensorflow", "tf_keras", "tensor2tensor")


Place = Callable[[int], str]
"""Names a line of the tree as the user sees it."""


def refuse(tree: ast.Module, place: Place) -> None:
    """Raise CellError for what no run trains.

    Parameters
    ----------
    tree
        The syntax tree of the cell.
    place
        The function that names a line of the tree as the user sees it.

    Raises
    ------
    CellError
        With the line, and with what to write instead.
    """
    imported = {name.partition(".")[0]: line for name, line in reversed(list(_imports(tree)))}
    calls = list(_calls(tree))
    _refuse_frameworks(imported, _backend(tree), place)
    for call, name in calls:
        if name.endswith("Strategy") and "tensorflow" in imported:
            raise CellError(
                f"{_at(place, call)}: {name} has no effect in a run",
                fix="Leave the strategy and its scope out: a run distributes the model itself.",
            )
    for method in _train_steps(tree):
        raise CellError(
            f"{_at(place, method)}: a run does not call a custom train_step",
            fix="Override compute_loss instead, or run the cell as a job with %%job.",
        )
    if trains(tree):
        _refuse_uncompiled(tree, calls, imported, place)
        return
    for call, name in calls:
        if name == "GradientTape" and not _defines(tree, "input_fn"):
            raise CellError(
                f"{_at(place, call)}: a run does not execute a custom training loop (GradientTape)",
                fix="Call fit of a compiled Keras model, or run the cell as a job with %%job.",
            )


def trains(tree: ast.Module) -> bool:
    """Return whether a method `fit` is called anywhere: only the run can tell whose it is."""
    return any(
        name == "fit" and isinstance(call.func, ast.Attribute) for call, name in _calls(tree)
    )


def notes(source: str, line_offset: int = 0) -> list[str]:
    """Return sentences about the parts of a cell that a run ignores.

    Parameters
    ----------
    source
        The code of the cell, which compiles.
    line_offset
        The number of lines above the code in its cell.
    """
    tree = ast.parse(source)
    found: list[str] = []
    backend = _backend(tree)
    if backend not in ("", "tensorflow"):
        found.append(f"KERAS_BACKEND={backend} is ignored: a run computes with TensorFlow.")
    executed = last_fit(tree)
    if 0 < executed < len(tree.body):
        first = tree.body[executed].lineno + line_offset
        last = (tree.body[-1].end_lineno or first) + line_offset
        lines = f"Lines {first} to {last} come" if last > first else f"Line {first} comes"
        found.append(
            f"{lines} after model.fit and {'are' if last > first else 'is'} not executed: continue "
            "in the next cell, with model = run.model()."
        )
    return found


def history_name(source: str) -> str:
    """Return the variable to which the cell assigns what its last `fit` returns; "" for none."""
    tree = ast.parse(source)
    assigned = {
        id(node.value): node.targets[0].id
        for node in _of_module(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    fits = [
        call
        for call, name in _calls(tree)
        if name == "fit" and isinstance(call.func, ast.Attribute)
    ]
    last = max(fits, key=lambda call: call.lineno, default=None)
    return assigned.get(id(last), "")


def _of_module(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes whose assignments bind names of the module."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield from _of_module(node)


def uses_keras(tree: ast.Module) -> bool:
    """Return whether the cell imports Keras, directly or from TensorFlow."""
    return any(
        name.partition(".")[0] == "keras" or name.startswith("tensorflow.keras")
        for name, _ in _imports(tree)
    ) or any(isinstance(node, ast.Attribute) and node.attr == "keras" for node in ast.walk(tree))


def _refuse_frameworks(imported: dict[str, int], backend: str, place: Place) -> None:
    for module, (name, package) in _FRAMEWORKS.items():
        if module not in imported:
            continue
        line = place(imported[module])
        if backend == module:
            raise CellError(
                f"{line}: the cell uses {name}, but Keras uses TensorFlow in a run",
                fix=f"Use keras.ops instead of {module}. {_JOB.format(package=package)}",
            )
        if not any(other in imported for other in _KERAS):
            raise CellError(
                f"{line}: the cell uses {name}, but %%train trains only models of Keras and "
                "TensorFlow",
                fix=_JOB.format(package=package),
            )


def _refuse_uncompiled(
    tree: ast.Module, calls: list[tuple[ast.Call, str]], imported: dict[str, int], place: Place
) -> None:
    """Raise CellError for a model that is made in the cell, fitted and never compiled."""
    if any(name in ("compile", "load_model", "from_pretrained") for _, name in calls):
        return
    made = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _name(node.value) in ("Sequential", "Model")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call, name in calls:
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if name == "fit" and isinstance(receiver, ast.Name) and receiver.id in made:
            raise CellError(
                f"{_at(place, call)}: {receiver.id} is fitted, but not compiled",
                fix=f"Write {receiver.id}.compile(optimizer=..., loss=...) above it.",
            )


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the imported modules with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def _calls(tree: ast.Module) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls, each with the last part of the name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _name(node)
            if name:
                yield node, name


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    if isinstance(call.func, ast.Name):
        return call.func.id
    return ""


def _backend(tree: ast.Module) -> str:
    """Return the value that the cell gives to KERAS_BACKEND, or nothing."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)):
            continue
        target = node.targets[0]
        if not (isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)):
            continue
        if target.slice.value == "KERAS_BACKEND":
            return str(node.value.value)
    return ""


def _train_steps(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the methods `train_step` of classes that derive from a model."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        if not any(ast.unparse(base).endswith(("Model", "Sequential")) for base in node.bases):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "train_step":
                yield method


def _defines(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in tree.body)


def _at(place: Place, node: ast.expr | ast.stmt) -> str:
    return place(node.lineno)
