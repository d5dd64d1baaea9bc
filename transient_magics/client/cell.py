"""What can be known about a training cell before anything is launched, without running it.

The cell's code runs on the VMs, where nothing of the notebook exists. So its syntax is checked, and
every name that it uses must be defined or imported in it, or be one of Python's own. Errors name
the line as the user sees it in the notebook's cell: `line_offset` lines (the magic's own) lie above
the body.
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
from ..protocol.names import is_path
from ..runtime.training.t2t import hyperparameters
from ..spec import check_package
from . import keras_cell

OURS = __name__.partition(".")[0]
"""The package that VMs have anyway."""
MOST_PACKAGES_BYTES = 2**30
_NAMES_SHOWN = 4
# What every module has, and what IPython adds to the built-ins of this process but not to those of
# a VM.
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
"""What IPython reads in a line, and Python does not: `%magic`, `!command`, `files = !ls` and
`name?`.
"""
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
"""Names in a cell that mean something without being read in it."""
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
    """Check the body of a training cell (or a file, with `line_offset` 0).

    With `own_model` it must define what is trained, as no model of Tensor2Tensor is named; `params`
    are names that it has from its begin, all of which it has to read, each with the option that
    gives it. `hparams`: whether its first line may hand over hyper-parameters.

    `notebook` has the names that exist in the notebook; where it is a mapping to their values, the
    advice is more precise. `folder` is where local modules lie. Raises CellError.
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
        if own_model:
            unread = _unread(source, params)
        else:
            unread = {}
        _check_names(source, tree, notebook, line_offset, hparams and not own_model, params, unread)
        if own_model:
            _check_own_model(source, tree)
            _check_params(source, tree, params, line_offset)


def check_hyperparameters(names: Iterable[str], source: str, *, where: str) -> None:
    """Check the names of hyper-parameters of Tensor2Tensor, which were typed at the option `where`.

    One that the cell names is its own. Raises DeclarationError for one that Tensor2Tensor has
    nowhere; where it is not installed here, the check of the run will.
    """
    known = hyperparameters.hyperparameter_names()
    for name in names if known else ():
        if name not in known and not re.search(rf"\b{re.escape(name)}\b", source):
            raise unknown("hyper-parameter of Tensor2Tensor", name, known, where=where)


def check_syntax(source: str, line_offset: int = 0, file: str = "") -> None:
    """Raises CellError where the code of a job cannot be compiled, or there is none.

    `line_offset`: how many lines a cell has above it; `file`: the name of the file in which the
    code is.
    """
    if not source.strip():
        if file:
            what = f"{file} is empty"
        else:
            what = "There is nothing to run"
        raise CellError(what, fix="Name a command, or write code below the first line.")
    _parse(source, line_offset, file)


def listed(given: str | Iterable[str]) -> tuple[str, ...]:
    """Files or packages as they were given: one alone may stand for itself."""
    if isinstance(given, str):
        return (given,)
    return tuple(given)


def packages(
    words: str | Iterable[str], folder: Path | None = None, *, build: bool = False
) -> tuple[str, ...]:
    """What --pip is to install: files and folders here as absolute paths, all else as pip reads it.

    With `build` also what has no wheel. Raises DeclarationError.
    """
    found = []
    for word in listed(words):
        path = (folder or Path.cwd()) / Path(word).expanduser()
        local = path.exists() and ("/" in word or path.is_file())
        found.append(str(path.resolve()) if local else word)
        check_package(found[-1], build=build)
    return tuple(found)


def files_of(packages: Iterable[str]) -> dict[str, Path]:
    """Of what `packages` gave, the files on this machine, by the names that they get in the run's
    folder.

    Raises DeclarationError.
    """
    found: dict[str, Path] = {}
    for path in (
        Path(fromkey)
        for fromkey in dict.fromkeys(packages)
        if fromkey.startswith("/") and Path(fromkey).is_file()
    ):
        if path.name in found:
            raise DeclarationError(f"Two files are called {path.name}", where="--pip")
        if not is_path(path.name):
            raise DeclarationError(f"No package is called {path.name!r}", where="--pip")
        found[path.name] = path
    if sum(path.stat().st_size for path in found.values()) > MOST_PACKAGES_BYTES:
        raise DeclarationError(
            f"The files of packages are larger than {MOST_PACKAGES_BYTES >> 20} MB",
            where="--pip",
            fix="Name what is so large by its URL.",
        )
    return found


def as_declared(packages: Iterable[str], files: Mapping[str, Path]) -> tuple[str, ...]:
    """What `packages` gave, as a declaration names it: of its `files` the names that they get in
    the folder.
    """
    return tuple(
        Path(package).name if Path(package) in files.values() else package for package in packages
    )


def _parse(source: str, line_offset: int, file: str = "") -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a warning about the user's strings is nothing to do with launching
            # Only the compiler refuses a top-level `return` or `await` and a late `from
            # __future__`.
            compile(source, "cell", "exec", dont_inherit=True)
            return ast.parse(source)
    except SyntaxError as error:
        number = error.lineno or 1
        line = (source.splitlines() or [""])[min(number, len(source.splitlines())) - 1].strip()
        if line:
            fix = f"It reads: {line}"
        else:
            fix = ""
        if _OF_NOTEBOOKS.search(line):
            fix = "Lines with % and ! are the notebook's own; the VMs run plain Python. For packages: --pip."
        if re.search(r"await|async", error.msg):
            fix = "Only notebooks await at the top level: await in an async function, which asyncio.run(...) runs."
        raise CellError(f"{_place(number, line_offset, file)}: {error.msg}", fix=fix) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CellError(
            f"{file or 'The cell'} cannot be compiled: {error or type(error).__name__}"
        ) from None


def _place(line: int, line_offset: int, file: str = "") -> str:
    if line_offset:
        return f"cell line {line + line_offset}"
    return f"{file} line {line}".lstrip()


def _has_unknowable_names(tree: ast.Module) -> bool:
    """With a star import, or names made by exec() and the like, nobody can say what is defined."""
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
            known = name in defined or name in _BUILT_IN or not symbol.is_referenced()
            if looked_up and not known and (lines := list(_uses(tree, name))):
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
        what = "The cell trains no model: it defines no model or model_fn"
    else:
        what = "The cell trains no model: it neither calls fit nor defines input_fn"
    if not keras_cell.uses_keras(tree):
        fix += " For a model of Tensor2Tensor, name --model, --hparams-set and --problem."
    raise CellError(what, fix=fix)


def _check_params(source: str, tree: ast.Module, params: Collection[str], line_offset: int) -> None:
    """A parameter that the cell never reads would change nothing, nor would one that it sets
    itself.
    """
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
            if lines:
                place = f"{_place(min(lines), line_offset)}: "
            else:
                place = ""
            raise CellError(
                f"{place}'{name}' is a parameter, and the cell sets it itself",
                fix="Leave that out.",
            )
        if name in unread:
            fix = f"Read it by its name, as in: keras.optimizers.Adam({name})"
            raise CellError(f"The cell does not read the parameter '{name}'", fix=fix)


def _unread(source: str, params: Mapping[str, str]) -> dict[str, str]:
    """Those parameters that the cell reads nowhere, by name the option that gives each."""
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
    """With `from __future__ import annotations`, nobody looks up what an annotation names."""
    postponed = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and node.names[0].name == "annotations"
        for node in tree.body
    )
    for node in ast.walk(tree) if postponed else ():
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
    """Lines on which `name` is looked up in the module, and not in a function or comprehension that
    binds it.
    """
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
        known = name in notebook or name in _OF_IPYTHON
        if known:
            why = "exists in this notebook, but not on the VMs"
        else:
            why = "is defined nowhere"
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
            f"{unread[given]} gives '{given}', which the cell does not read: use one name in both."
        )
    if name not in notebook:
        return "Import it in the cell, or define it there."
    if isinstance(notebook, Mapping):
        value = notebook[name]
    else:
        value = None
    if isinstance(value, ModuleType):
        if value.__name__ == name:
            alias = ""
        else:
            alias = f" as {name}"
        return f"Write `import {value.__name__}{alias}` in the cell."
    if callable(value):
        return "Define it in the cell, or put it in a module: --include that file, and import it in the cell."
    if not hparams:  # which are Tensor2Tensor's
        return "Define it in the cell, or in a module that comes with --include."
    return (
        f"Define it in the cell, or hand its value over in the first line, as --hparams {name}={{{name}}}; "
        "what is in a module comes with --include."
    )


def _check_local_imports(tree: ast.Module, line_offset: int, sent: set[str], folder: Path) -> None:
    """An import of a module that lies beside the notebook finds nothing on a VM, unless it is sent
    along.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise CellError(
                    f"{_place(node.lineno, line_offset)}: a cell belongs to no package, so nothing can be imported "
                    "relative to it",
                    fix="Import the module by its whole name.",
                )
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            if top in (*sys.stdlib_module_names, OURS) or {top, f"{top}.py"} & sent:
                continue
            for path in (folder / f"{top}.py", folder / top / "__init__.py"):
                if path.exists():
                    if path.name == f"{top}.py":
                        shown = f"{top}.py"
                    else:
                        shown = top
                    raise CellError(
                        f"{_place(node.lineno, line_offset)}: '{top}' lies beside the notebook, but not on the VMs",
                        fix=f"Send it along: --include {shown}",
                    )
