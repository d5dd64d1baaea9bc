"""The program of a run: the user's cell as a module, its errors in words, and its packages.

`run_program` loads the cell in every process that needs its problem, hparams set, model or data:
check, chief, workers, evaluation, predictions and the notebook's `run.model()`. `run_cell` does so
for jobs of a bag. The module can be imported by name, also in processes that the cell starts
(spawned/transient_cell.py). The cell's file is the file of its code, so tracebacks,
`inspect.getsource`, AutoGraph, `torch.jit` and caches of numba find it. Nothing here imports
TensorFlow.
"""

from __future__ import annotations

import ast
import fcntl
import importlib.util
import json
import linecache
import os
import re
import site
import subprocess
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import CellError, DeclarationError, TrainingError, TransientError
from ...protocol.run import RunSpec
from ..folder import RunFolder
from .reproducibility import Generators, seeded

MODULE_NAME = "transient_cell"
SPAWNED = Path(__file__).with_name("spawned")
"""The folder from which a process started by the cell imports the cell's module."""
_PROGRAM = "TRANSIENT_PROGRAM"
"""The environment variable with the arguments of `run_cell` for such a process."""
_files: set[str] = set()
"""The files of the cells that this process executed."""
_INNER = ("tensorflow", "tf_keras", "keras")
_CALLED = re.compile(r"Exception encountered when calling (.*?)\.?")
"""Keras first names the layer, and then writes its error in bold."""
_BOLD = re.compile(r"\x1b\[\d+m")
_PREFACE = re.compile(
    r"(?:\(\d+\) )?(?:[A-Z_]+: )?From /job:\S+|\d+ root error\(s\) found\.|=+|"
    r"Graph execution error:|"
    rf"Detected at node .*|File \".*\", line \d+, in .*|Node: .*|{_CALLED.pattern}|"
)
"""Lines of TensorFlow before its message.

The first kind has the number of the worker.
"""
_CONVERTED = "in user code:"
"""First line of an error from code that AutoGraph converted.

The error itself is the last line, after the lines of code that led to it.
"""
_MADE_AT = re.compile(r'File "(.+?)", line (\d+), in ')
"""A line of TensorFlow with the place at which the failed operation was created."""

_INSTALL_SECONDS = 300.0
_LONGEST_REASON = 300
_ASIDE = ("WARNING: ", "DEPRECATION: ", "[notice]", "hint: ", "note: ")
"""Beginnings of pip's lines that do not explain a failure."""


class CellEnd(BaseException):
    """Ends the execution of a cell early and without an error, as a recorded `model.fit` does.

    It is not an Exception, so that a cell's own `except Exception` does not catch it.
    """


def run_program(
    folder: RunFolder, spec: RunSpec, last: Callable[[ast.Module], int] | None = None
) -> types.ModuleType:
    """Execute the cell of a run with the run's parameters and seed. Raises CellError.

    `last` returns how many of the cell's statements to execute (None: all).
    """
    return run_cell(
        folder.cell, folder.include, spec.line_offset, spec.params, spec.program_seed, last
    )


def run_cell(
    cell: Path,
    include: Path,
    line_offset: int,
    params: Mapping[str, object] | None = None,
    seed: int = 0,
    last: Callable[[ast.Module], int] | None = None,
) -> types.ModuleType:
    """Execute the cell as the module `transient_cell`.

    Parameters
    ----------
    cell, include
        The file of the cell, and the folder of modules that it can import from now on.
    line_offset
        The line of the notebook's cell at which the file begins.
    params
        Variables that the module has from the start.
    seed
        Seed of the cell's random numbers (reproducibility.py).
    last
        Returns how many of the cell's statements to execute (None: all).

    Raises
    ------
    CellError
        With the line of the cell, for any exception.
    """
    _make_importable(cell, include, params or {}, seed)
    source = ""
    if cell.exists():
        source = cell.read_text(encoding="utf-8")
    name = str(cell)
    _files.add(name)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType(MODULE_NAME)
    module.__spec__ = importlib.util.spec_from_file_location(MODULE_NAME, name)
    if module.__spec__:
        module.__loader__ = module.__spec__.loader
    module.__file__ = name
    module.__dict__.update(params or {})
    sys.modules[MODULE_NAME] = module
    try:
        tree = ast.parse(source, name)
        if last is not None:
            del tree.body[last(tree) :]
        with seeded(seed):
            exec(compile(tree, name, "exec", dont_inherit=True), module.__dict__)
    except CellEnd:
        return module
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise to_transient_error(error, line_offset) from error
    return module


def run_again() -> None:
    """Execute the cell of the parent process, in place of the module that is being imported."""
    given = json.loads(os.environ[_PROGRAM])
    module = run_cell(
        Path(given["cell"]), Path(given["include"]), 1, given["params"], given["seed"]
    )
    Generators(vars(module)).renew()


def is_of_cell(file_name: str) -> bool:
    """Return whether `file_name` is the file of a cell that this process executed."""
    return file_name in _files


def _make_importable(cell: Path, include: Path, params: Mapping[str, object], seed: int) -> None:
    if include.is_dir() and str(include) not in sys.path:
        sys.path.insert(0, str(include))
    if str(SPAWNED) not in sys.path:
        sys.path.append(str(SPAWNED))
    given = {"cell": str(cell), "include": str(include), "params": dict(params), "seed": seed}
    os.environ[_PROGRAM] = json.dumps(given)


def cell_line(error: BaseException, line_offset: int) -> int | None:
    """Return the cell's line at which `error` was raised, as the notebook counts it.

    None if the error comes from elsewhere.
    """
    if isinstance(error, SyntaxError) and is_of_cell(error.filename or "") and error.lineno:
        return error.lineno + line_offset
    converted = str(error).startswith(_CONVERTED)
    found: list[tuple[str, str]] = []
    if _operation(error) or converted:
        found = _MADE_AT.findall(str(error))
    made = [line for file_name, line in found if is_of_cell(file_name)]
    if converted and made:
        return int(made[-1]) + line_offset
    seen: BaseException | None = error
    while seen is not None:
        frames = [
            frame
            for frame in traceback.extract_tb(seen.__traceback__)
            if is_of_cell(frame.filename)
        ]
        if frames and frames[-1].lineno:
            return frames[-1].lineno + line_offset
        seen = seen.__cause__ or seen.__context__
    if made:
        return int(made[-1]) + line_offset
    return None


def sentence(error: BaseException, limit: int = 300) -> str:
    """Return `error` in one line: its type and the first line of its message."""
    if isinstance(error, TransientError):
        return str(error)
    lines = [line.strip() for line in _BOLD.sub("", str(error)).splitlines()]
    if lines and lines[0] == _CONVERTED:
        lines = [
            next(line for line in reversed(lines) if line).removeprefix(f"{type(error).__name__}: ")
        ]
    text = next((line for line in lines if not _PREFACE.fullmatch(line)), "")
    if isinstance(error, SyntaxError):
        text = error.msg
    if isinstance(error, SystemExit):
        return (
            f"the cell ends its program (exit code {error.code}), as argparse does: a run has no "
            "command line. Write the values into the cell, or pass them with --param."
        )
    kind = type(error).__name__
    if text:
        return f"{kind}: {text}"[:limit]
    return kind[:limit]


def _operation(error: BaseException) -> str:
    """Return the name of the graph's operation that failed, or an empty text."""
    return getattr(getattr(error, "node_def", None), "name", "")


def _place(error: BaseException) -> str:
    """Return the place of an error outside of the cell.

    The graph's operation, or Keras's layer, or the innermost line outside of TensorFlow's code.
    """
    if operation := _operation(error):
        return operation
    if called := _CALLED.fullmatch(str(error).partition("\n")[0]):
        return called[1]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not any(f"/{name}/" in frame.filename for name in _INNER)]
    if not ours:
        return ""
    path = ours[-1].filename
    short = Path(path).name
    if "site-packages/" in path:
        short = path.rpartition("site-packages/")[2]
    return f"{short} line {ours[-1].lineno}"


def to_transient_error(error: BaseException, line_offset: int) -> TransientError:
    """Return `error` as an error of this package.

    A CellError with the line, if it arose in the cell; else a TrainingError with its place.
    """
    line = cell_line(error, line_offset)
    if isinstance(error, DeclarationError) and line is not None:
        return CellError(f"cell line {line}: {error}", where=f"line {line}")
    if isinstance(error, TransientError):
        return error
    if line is None:
        return TrainingError(sentence(error), where=_place(error))
    return CellError(f"cell line {line}: {sentence(error)}", where=f"line {line}")


def reason(error: BaseException, line_offset: int) -> str:
    """Return the text of `error` in the event train.failed."""
    converted = to_transient_error(error, line_offset)
    if isinstance(converted, CellError):
        return converted.what
    return str(converted)


# The packages of a run (`--pip`), installed into the run's folder in addition to those of the VM.
# Their wheels come with the run's other files and fit the packages of every VM. So nothing is
# downloaded, and the VM's environment does not change.


def provide_packages(folder: RunFolder) -> None:
    """Make the run's packages importable. The first process that needs them installs them."""
    wheels = sorted(map(str, folder.wheels.glob("*.whl")))
    if not wheels:
        return
    complete = folder.packages / ".complete"
    folder.packages.mkdir(exist_ok=True, mode=0o700)
    with (folder.packages / ".lock").open("w", encoding="utf-8") as lock:
        # An evaluation may start at the same time as the parameter server.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            _install(wheels, str(folder.packages))
            complete.touch()
    site.addsitedir(sysconfig.get_path("purelib", vars={"base": str(folder.packages)}))


def _install(wheels: list[str], prefix: str) -> None:
    options = ["--no-index", "--no-deps", "--ignore-installed", "--no-warn-script-location"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        *options,
    ]
    done = subprocess.run(
        [*command, "--prefix", prefix, *wheels],
        capture_output=True,
        text=True,
        check=False,
        timeout=_INSTALL_SECONDS,
        encoding="utf-8",
    )
    if done.returncode:
        raise TrainingError(
            pip_reason(done.stderr, [path.rpartition("/")[2] for path in wheels]), where="--pip"
        )


def pip_reason(output: str, wheels: Sequence[str]) -> str:
    """Return the reason of a failed pip in one sentence.

    Parameters
    ----------
    output
        What pip wrote to stderr.
    wheels
        Names of the files that it installed.

    Returns
    -------
    str
        Its last error, shortened, because pip quotes the content of invalid files; and the wheel
        that the output names.
    """
    lines = [line.strip() for line in output.splitlines()]
    relevant = [line for line in lines if line and not line.startswith(_ASIDE)]
    errors = [line for line in relevant if line.startswith("ERROR: ")]
    last = next(reversed(errors or relevant), "no output").removeprefix("ERROR: ")
    what = "".join(letter if letter.isprintable() else " " for letter in last)
    if len(what) > _LONGEST_REASON:
        what = f"{what[:_LONGEST_REASON]}..."
    subject = "the packages"
    if len(wheels) == 1:
        subject = wheels[0]
    subject = next((name for name in wheels if name in output), subject)
    return f"pip cannot install {subject}: {what}"
