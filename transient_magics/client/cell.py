"""Static checks of the code of a cell, before anything is launched.

The code runs on VMs, which have nothing of the notebook. So its syntax must be valid, and every
name that it uses must be built in, or defined or imported in the cell. Errors give the line number
of the whole cell: `line_offset` lines, such as that of the magic, are above the body.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import symtable
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType

from ..errors import CellError, DeclarationError, unknown
from ..protocol.checks import is_path
from ..runtime.training.t2t import hyperparameters
from ..spec import check_package
from . import keras_cell

OURS = __name__.partition(".")[0]
"""The package that all VMs have."""
MOST_PACKAGES_BYTES = 2**30
_NAMES_SHOWN = 4
# Names of every module, and names that IPython adds to the built-ins of this process only.
_OF_MODULES = {
    "__name__",
    "__file__",
    "__doc__",
    "__builtins__",
    "__package__",
    "__spec__",
    "__loader__",
}
_OF_IPYTHON = {"get_ipython", "display", "__IPYTHON__"}
_BUILT_IN = (set(dir(builtins)) - _OF_IPYTHON) | _OF_MODULES
_OF_NOTEBOOKS = re.compile(r"^[%!?]|=\s*[%!]|\?$")
"""Syntax of IPython that Python does not have: `%magic`, `!command`, `files = !ls` and `name?`."""
_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_READ_BY_US = {"batch_size"}
"""Parameters that have an effect even if the cell does not read them."""
_DYNAMIC = {"exec", "eval", "globals", "vars", "locals", "__import__"}


def check(
    source: str,
    notebook: Collection[str] = (),
    *,
    line_offset: int = 1,
    include: Iterable[str] = (),
    folder: Path | None = None,
    own_model: bool = False,
    params: Mapping[str, str] = MappingProxyType({}),
    hparams: bool = True,
) -> None:
    """Check the body of a training cell, or a file with `line_offset` 0.

    Parameters
    ----------
    source
        The code.
    notebook
        Names that exist in the notebook. A mapping to their values makes the advice more precise.
    line_offset
        The number of lines above the code in its cell.
    include
        Paths of files and folders that are sent along.
    folder
        The folder with local modules (default: the current folder).
    own_model
        Whether the code must define a model, because no model of Tensor2Tensor is named.
    params
        Parameters that are defined before the code runs, each with the option that sets it. With
        `own_model`, the code must read all of them.
    hparams
        Whether the options may set hyperparameters.

    Raises
    ------
    CellError
        The code is invalid.
    """
    if not source.strip():
        raise CellError(
            "The cell has no body", fix="Write the code of the model below the first line."
        )
    tree = _parse(source, line_offset)
    if own_model:
        keras_cell.refuse(tree, partial(_place, line_offset=line_offset))
    _check_local_imports(
        tree, line_offset, {Path(path).name for path in include}, folder or Path.cwd()
    )
    if not _has_unknowable_names(tree):
        unread: dict[str, str] = {}
        if own_model:
            unread = _unread(source, params)
        _check_names(source, tree, notebook, line_offset, hparams and not own_model, params, unread)
        if own_model:
            _check_own_model(source, tree)
            _check_params(source, tree, params, line_offset)


def check_hyperparameters(names: Iterable[str], source: str, *, where: str) -> None:
    """Check the names of hyperparameters of Tensor2Tensor.

    Names that appear in the code count as defined by it. If Tensor2Tensor is not installed on this
    machine, the check of the run on the VM finds unknown names.

    Parameters
    ----------
    names
        The names.
    source
        The code.
    where
        The option that was typed, for the error.

    Raises
    ------
    DeclarationError
        Tensor2Tensor does not have the name.
    """
    valid = hyperparameters.hyperparameter_names()
    if not valid:
        return
    for name in names:
        if name not in valid and not re.search(rf"\b{re.escape(name)}\b", source):
            raise unknown("hyperparameter of Tensor2Tensor", name, valid, where=where)


def check_syntax(source: str, line_offset: int = 0, file: str = "") -> None:
    """Check that code is not empty and compiles.

    Parameters
    ----------
    source
        The code.
    line_offset
        The number of lines above the code in its cell.
    file
        The name of the file with the code.

    Raises
    ------
    CellError
        The code is empty or does not compile.
    """
    if not source.strip():
        what = "There is no code to run"
        if file:
            what = f"{file} is empty"
        raise CellError(what, fix="Name a command, or write code below the first line.")
    _parse(source, line_offset, file)


def listed(given: str | Iterable[str]) -> tuple[str, ...]:
    """Return files or packages as a tuple; a string is a single one."""
    if isinstance(given, str):
        return (given,)
    return tuple(given)


def packages(
    words: str | Iterable[str], folder: Path | None = None, *, build: bool = False
) -> tuple[str, ...]:
    """Return the arguments of pip for the values of `--pip`, with absolute paths of local files.

    Parameters
    ----------
    words
        The values.
    folder
        The base of relative paths (default: the current folder).
    build
        Whether packages without a wheel are allowed.

    Raises
    ------
    DeclarationError
        A package is invalid or not allowed.
    """
    found = []
    for word in listed(words):
        path = (folder or Path.cwd()) / Path(word).expanduser()
        local = path.exists() and ("/" in word or path.is_file())
        if local:
            word = str(path.resolve())
        check_package(word, build=build)
        found.append(word)
    return tuple(found)


def files_of(packages: Iterable[str]) -> dict[str, Path]:
    """Return the local files among the result of `packages`, by their name in the work's folder.

    Raises
    ------
    DeclarationError
        Two files have the same name, a name is invalid, or the files are too large.
    """
    found: dict[str, Path] = {}
    for package in dict.fromkeys(packages):
        path = Path(package)
        if not package.startswith("/") or not path.is_file():
            continue
        if path.name in found:
            raise DeclarationError(
                f"Two package files have the name {path.name}", where="--pip", fix="Leave one out."
            )
        if not is_path(path.name):
            raise DeclarationError(
                f"Invalid name of a package file: {path.name!r}",
                where="--pip",
                fix="Rename the file.",
            )
        found[path.name] = path
    if sum(path.stat().st_size for path in found.values()) > MOST_PACKAGES_BYTES:
        raise DeclarationError(
            f"The package files have more than {MOST_PACKAGES_BYTES >> 20} MB together",
            where="--pip",
            fix="Give the URL of large packages instead of a file.",
        )
    return found


def as_declared(packages: Iterable[str], files: Mapping[str, Path]) -> tuple[str, ...]:
    """Return packages as a declaration names them: local `files` by their name in the folder."""
    return tuple(
        Path(package).name if Path(package) in files.values() else package for package in packages
    )


def _parse(source: str, line_offset: int, file: str = "") -> ast.Module:
    try:
        with warnings.catch_warnings():
            # Warnings about the user's strings do not prevent a launch.
            warnings.simplefilter("ignore")
            # Only the compiler refuses a `return` or `await` at the top level, and a late
            # `from __future__`.
            compile(source, "cell", "exec", dont_inherit=True)
            return ast.parse(source)
    except SyntaxError as error:
        number = error.lineno or 1
        line = (source.splitlines() or [""])[min(number, len(source.splitlines())) - 1].strip()
        fix = ""
        if line:
            fix = f"The line is: {line}"
        if _OF_NOTEBOOKS.search(line):
            fix = (
                "Remove lines with % and !, because VMs run plain Python. For packages, use --pip."
            )
        if re.search(r"await|async", error.msg):
            fix = (
                "Only notebooks can await at the top level. Await in an async function, and call "
                "asyncio.run(...)."
            )
        raise CellError(f"{_place(number, line_offset, file)}: {error.msg}", fix=fix) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CellError(
            f"{file or 'The cell'} cannot be compiled: {str(error) or type(error).__name__}"
        ) from None


def _place(line: int, line_offset: int, file: str = "") -> str:
    if line_offset:
        return f"cell line {line + line_offset}"
    return f"{file} line {line}".lstrip()


def _has_unknowable_names(tree: ast.Module) -> bool:
    """Return whether the names of the module are unknown: star imports, `exec` and such."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _DYNAMIC
        ):
            return True
    return False


def _check_names(
    source: str,
    tree: ast.Module,
    notebook: Collection[str],
    line_offset: int,
    hparams: bool,
    params: Collection[str],
    unread: Mapping[str, str],
) -> None:
    module = symtable.symtable(source, "cell", "exec")
    scopes = list(_scopes(module))
    defined = {symbol.get_name() for symbol in module.get_symbols() if _binds(symbol)} | {*params}
    defined |= {
        symbol.get_name()
        for scope in scopes
        for symbol in scope.get_symbols()
        if symbol.is_declared_global() and symbol.is_assigned()
    }
    _drop_unevaluated_annotations(tree)
    missing: dict[str, int] = {}
    for scope in scopes:
        for symbol in scope.get_symbols():
            name = symbol.get_name()
            looked_up = symbol.is_global() or (scope is module and not _binds(symbol))
            if not looked_up or not symbol.is_referenced():
                continue
            if name in defined or name in _BUILT_IN:
                continue
            if lines := list(_uses(tree, name)):
                missing[name] = min(lines)
    if missing:
        raise _missing_names(missing, notebook, line_offset, hparams, unread)


def _check_own_model(source: str, tree: ast.Module) -> None:
    if keras_cell.trains(tree):
        return
    symbols = symtable.symtable(source, "cell", "exec").get_symbols()
    defined = {symbol.get_name() for symbol in symbols if _binds(symbol)}
    if "input_fn" in defined and {"model", "model_fn"} & defined:
        return
    fix = (
        "Call fit of a compiled Keras model, or define input_fn(mode) and model (a compiled Keras "
        "model) or model_fn(features, labels, mode)."
    )
    if "input_fn" in defined:
        what = "The cell does not train a model: it defines neither model nor model_fn"
    else:
        what = "The cell does not train a model: it neither calls fit nor defines input_fn"
    if not keras_cell.uses_keras(tree):
        fix += " For a model of Tensor2Tensor, name --model, --hparams-set and --problem."
    raise CellError(what, fix=fix)


def _check_params(source: str, tree: ast.Module, params: Collection[str], line_offset: int) -> None:
    """Raise CellError for a parameter without effect: the cell sets it, or does not read it."""
    module = symtable.symtable(source, "cell", "exec")
    bound = {symbol.get_name() for symbol in module.get_symbols() if _binds(symbol)}
    unread = _unread(source, dict.fromkeys(params, ""))
    for name in params:
        if name in bound:
            lines = [
                node.lineno
                for node in ast.walk(tree)
                if isinstance(node, ast.Name) and node.id == name
            ]
            place = ""
            if lines:
                place = f"{_place(min(lines), line_offset)}: "
            raise CellError(
                f"{place}'{name}' is a parameter, but the cell sets it itself",
                fix="Remove the assignment.",
            )
        if name in unread:
            fix = f"Read it by its name, as in: keras.optimizers.Adam({name})"
            raise CellError(f"The cell does not read the parameter '{name}'", fix=fix)


def _unread(source: str, params: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that the cell does not read, each with the option that sets it."""
    scopes = _scopes(symtable.symtable(source, "cell", "exec"))
    read = {
        symbol.get_name()
        for scope in scopes
        for symbol in scope.get_symbols()
        if symbol.is_referenced()
    }
    return {
        name: option
        for name, option in params.items()
        if name not in read and name not in _READ_BY_US
    }


def _drop_unevaluated_annotations(tree: ast.Module) -> None:
    """Remove annotations that `from __future__ import annotations` leaves unevaluated."""
    postponed = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and node.names[0].name == "annotations"
        for node in tree.body
    )
    if not postponed:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _uses(node: ast.AST, name: str) -> Iterator[int]:
    """Yield the lines that look up `name` in the module, outside of scopes that bind it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and child.id == name and isinstance(child.ctx, ast.Load):
            yield child.lineno
        elif not (isinstance(child, _SCOPES) and _bound_within(child, name)):
            yield from _uses(child, name)


def _bound_within(scope: ast.AST, name: str) -> bool:
    for node in ast.walk(scope):
        if isinstance(node, ast.Global) and name in node.names:
            return False
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False


def _missing_names(
    missing: Mapping[str, int],
    notebook: Collection[str],
    line_offset: int,
    hparams: bool,
    unread: Mapping[str, str],
) -> CellError:
    in_order = sorted(missing.items(), key=lambda item: (item[1], item[0]))
    parts = []
    for name, line in in_order[:_NAMES_SHOWN]:
        why = "is not defined"
        if name in notebook or name in _OF_IPYTHON:
            why = "exists in this notebook, but not on the VMs"
        parts.append(f"{_place(line, line_offset)}: '{name}' {why}")
    if len(in_order) > _NAMES_SHOWN:
        parts.append(f"and {len(in_order) - _NAMES_SHOWN} more")
    first = in_order[0][0]
    return CellError("; ".join(parts), fix=_advice(first, notebook, hparams, unread))


def _advice(name: str, notebook: Collection[str], hparams: bool, unread: Mapping[str, str]) -> str:
    if name in _OF_IPYTHON:
        return "The VMs run plain Python, without IPython."
    if given := next(iter(difflib.get_close_matches(name, unread, 1) or unread), ""):
        return (
            f"{unread[given]} sets '{given}', which the cell does not read: use the same name in "
            "both."
        )
    if name not in notebook:
        return "Import it in the cell, or define it there."
    value = None
    if isinstance(notebook, Mapping):
        value = notebook[name]
    if isinstance(value, ModuleType):
        if value.__name__ == name:
            return f"Write `import {name}` in the cell."
        return f"Write `import {value.__name__} as {name}` in the cell."
    if callable(value):
        return (
            "Define it in the cell, or import it there from a module that you send with --include."
        )
    if not hparams:  # only models of Tensor2Tensor have hyperparameters
        return "Define it in the cell, or in a module that comes with --include."
    return (
        "Define it in the cell, or pass its value in the first line, as --hparams "
        f"{name}={{{name}}}; "
        "send modules with --include."
    )


def _check_local_imports(tree: ast.Module, line_offset: int, sent: set[str], folder: Path) -> None:
    """Raise CellError for imports of local modules that are not sent to the VMs."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise CellError(
                    f"{_place(node.lineno, line_offset)}: relative imports do not work in a cell, "
                    "which has no package",
                    fix="Import the module by its full name.",
                )
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            if top in (*sys.stdlib_module_names, OURS) or {top, f"{top}.py"} & sent:
                continue
            for name, path in (
                (f"{top}.py", folder / f"{top}.py"),
                (top, folder / top / "__init__.py"),
            ):
                if path.exists():
                    place = _place(node.lineno, line_offset)
                    raise CellError(
                        f"{place}: the module '{top}' is next to the notebook, but not on the VMs",
                        fix=f"Send it along: --include {name}",
                    )
