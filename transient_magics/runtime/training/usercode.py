"""The program of a run: the user's cell as a module, with what was sent along, and how its errors
are reported.

`run_program` loads it in every process that needs its problem, hparams set, model or data: check,
chief, workers, evaluation, predictions and the notebook's `run.model()`; `run_cell` does so for
jobs of a bag. The module is one that can be imported by its name, also in processes that the cell
starts (spawned/transient_cell.py). The file of the cell is the file of its code, so that
tracebacks, `inspect.getsource`, AutoGraph, `torch.jit` and caches of numba find it. Nothing here
imports TensorFlow.
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import CellError, DeclarationError, TrainingError, TransientError
from ...protocol.run import RunSpec
from ..folder import RunFolder
from .reproducibility import Generators, seeded

MODULE_NAME = "transient_cell"
SPAWNED = Path(__file__).with_name("spawned")
"""The folder from which a process that the cell has started imports its module."""
_PROGRAM = "TRANSIENT_PROGRAM"
"""The environment variable with the arguments of `run_cell`, for such a process."""
_files: set[str] = set()
"""The files of the cells that this process has run."""
_INNER = ("tensorflow", "tf_keras", "keras")
_CALLED = re.compile(r"Exception encountered when calling (.*?)\.?")
"""Keras names the layer first, and says then, in bold, what went wrong in it."""
_BOLD = re.compile(r"\x1b\[\d+m")
_PREFACE = re.compile(
    r"(?:\(\d+\) )?(?:[A-Z_]+: )?From /job:\S+|\d+ root error\(s\) found\.|=+|Graph execution error:|"
    rf"Detected at node .*|File \".*\", line \d+, in .*|Node: .*|{_CALLED.pattern}|"
)
"""Lines of TensorFlow's that come before what it has to say. The first holds the number of the
worker.
"""
_CONVERTED = "in user code:"
"""How AutoGraph begins what it says; the error itself is its last line, behind the lines of code
that led to it.
"""
_MADE_AT = re.compile(r'File "(.+?)", line (\d+), in ')
"""A line in which TensorFlow says where the operation that failed was made."""

_SECONDS = 300.0
_MOST_SAID = 300
_ASIDE = ("WARNING: ", "DEPRECATION: ", "[notice]", "hint: ", "note: ")
"""How lines of pip's begin that are not why it failed."""


def run_program(folder: RunFolder, spec: RunSpec) -> types.ModuleType:
    """Execute the cell of a run with the run's parameters and seed. Raises CellError."""
    return run_cell(folder.cell, folder.include, spec.line_offset, spec.params, spec.program_seed)


def run_cell(
    cell: Path,
    include: Path,
    line_offset: int,
    params: Mapping[str, object] | None = None,
    seed: int = 0,
) -> types.ModuleType:
    """Execute the cell as the module `transient_cell`.

    Parameters
    ----------
    cell, include
        The file of the cell, and the folder of modules that it can import from now on.
    line_offset
        The line of the notebook's cell at which the file begins.
    params
        Names that the module has from its beginning, with their values.
    seed
        What the cell draws follows from it (reproducibility.py).

    Raises
    ------
    CellError
        With the line of the cell, for whatever it raises.
    """
    _make_importable(cell, include, params or {}, seed)
    if cell.exists():
        source = cell.read_text(encoding="utf-8")
    else:
        source = ""
    name = str(cell)
    _files.add(name)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType(MODULE_NAME)
    module.__spec__ = importlib.util.spec_from_file_location(MODULE_NAME, name)
    module.__loader__ = module.__spec__.loader if module.__spec__ else None
    module.__file__ = name
    module.__dict__.update(params or {})
    sys.modules[MODULE_NAME] = module
    try:
        with seeded(seed):
            exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise to_transient_error(error, line_offset) from error
    return module


def run_again() -> None:
    """Execute the cell of the process that started this one, in place of the module that is being
    imported.
    """
    given = json.loads(os.environ[_PROGRAM])
    module = run_cell(
        Path(given["cell"]), Path(given["include"]), 1, given["params"], given["seed"]
    )
    Generators(vars(module)).renew()


def is_of_cell(file_name: str) -> bool:
    """Return whether code of this file is the cell's."""
    return file_name in _files


def _make_importable(cell: Path, include: Path, params: Mapping[str, object], seed: int) -> None:
    if include.is_dir() and str(include) not in sys.path:
        sys.path.insert(0, str(include))
    if str(SPAWNED) not in sys.path:
        sys.path.append(str(SPAWNED))
    given = {"cell": str(cell), "include": str(include), "params": dict(params), "seed": seed}
    os.environ[_PROGRAM] = json.dumps(given)


def cell_line(error: BaseException, line_offset: int) -> int | None:
    """The line of the cell, counted as the notebook shows it, at which `error` came up; None if it
    was elsewhere.
    """
    if isinstance(error, SyntaxError) and is_of_cell(error.filename or "") and error.lineno:
        return error.lineno + line_offset
    converted = str(error).startswith(_CONVERTED)
    if _operation(error) or converted:
        found = _MADE_AT.findall(str(error))
    else:
        found = []
    made = [line for file_name, line in found if is_of_cell(file_name)]
    seen: BaseException | None = error if not (converted and made) else None
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
    """`error` in one line: its kind and the first line of what it says, the same from every worker."""
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
            f"the cell ends its program (exit code {error.code}), as argparse does: a run has no command line. "
            "Write the values into the cell, or pass them with --param."
        )
    kind = type(error).__name__
    return (f"{kind}: {text}" if text else kind)[:limit]


def _operation(error: BaseException) -> str:
    """The name of the operation of a graph at which TensorFlow failed, if it did."""
    return getattr(getattr(error, "node_def", None), "name", "")


def _place(error: BaseException) -> str:
    """The graph's operation or Keras's layer, else the innermost line outside TensorFlow's own
    code.
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
    if "site-packages/" in path:
        short = path.rpartition("site-packages/")[2]
    else:
        short = Path(path).name
    return f"{short} line {ours[-1].lineno}"


def to_transient_error(error: BaseException, line_offset: int) -> TransientError:
    """The error of this package that tells `error`: a CellError with its line if the cell is at
    fault.
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
    """What train.failed says about `error`."""
    known = to_transient_error(error, line_offset)
    if isinstance(known, CellError):
        return known.what
    return str(known)


# The packages that a run asked for (`--pip`), in the run's own folder beside those of the machine.
#
# They come as wheels with the run's other files, already chosen to fit what every VM has, so
# nothing is looked up and nothing of the machine's own environment changes.


def provide_packages(folder: RunFolder) -> None:
    """Make the run's packages importable; they are installed by the first process that needs them."""
    wheels = sorted(map(str, folder.wheels.glob("*.whl")))
    if not wheels:
        return
    complete = folder.packages / ".complete"
    folder.packages.mkdir(exist_ok=True, mode=0o700)
    with (folder.packages / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an evaluation may begin beside the parameter server
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
        timeout=_SECONDS,
        encoding="utf-8",
    )
    if done.returncode:
        raise TrainingError(
            pip_reason(done.stderr, [path.rpartition("/")[2] for path in wheels]), where="--pip"
        )


def pip_reason(said: str, wheels: Sequence[str]) -> str:
    """A sentence of pip's errors: the last one, which file of `wheels` it is about, if it says so,
    and no more than a line of it, for what is wrong with a file is said with words out of that
    file.
    """
    lines = [line.strip() for line in said.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_ASIDE)]
    errors = [line for line in telling if line.startswith("ERROR: ")]
    last = next(reversed(errors or telling), "it says nothing").removeprefix("ERROR: ")
    plain = "".join(each if each.isprintable() else " " for each in last)
    if len(plain) > _MOST_SAID:
        what = f"{plain[:_MOST_SAID]}..."
    else:
        what = plain
    named = next((name for name in wheels if name in said), wheels[0] if len(wheels) == 1 else "")
    return f"pip cannot install {named or 'the packages'}: {what}"
