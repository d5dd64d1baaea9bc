"""The user's code of a run: the cell, with what was sent along, and how its errors are told.

The cell is compiled under the file name "cell", so that a traceback through it can be turned into "cell line N". It
runs as a module of its own in every process that needs its problem, hparams set or model. Nothing here imports
TensorFlow.
"""

from __future__ import annotations

import importlib.abc
import linecache
import re
import sys
import traceback
import types
from collections.abc import Mapping
from pathlib import Path

from ...errors import CellError, DeclarationError, TrainingError, TransientError

FILE_NAME = "cell"
MODULE_NAME = "transient_cell"
_INNER = ("tensorflow", "tf_keras", "keras")
_CALLED = re.compile(r"Exception encountered when calling (.*?)\.?")
"""Keras names the layer first, and says then, in bold, what went wrong in it."""
_BOLD = re.compile(r"\x1b\[\d+m")
_PREFACE = re.compile(
    r"(?:\(\d+\) )?(?:[A-Z_]+: )?From /job:\S+|\d+ root error\(s\) found\.|=+|Graph execution error:|"
    rf"Detected at node .*|File \".*\", line \d+, in .*|Node: .*|{_CALLED.pattern}|"
)
"""Lines of TensorFlow's that come before what it has to say. The first holds the number of the worker."""
_CONVERTED = "in user code:"
"""How AutoGraph begins what it says; the error itself is its last line, behind the lines of code that led to it."""
_MADE_AT = re.compile(rf'File "{FILE_NAME}", line (\d+), in ')
"""A line of the cell in which TensorFlow says where the operation that failed was made."""


class _Source(importlib.abc.InspectLoader):
    """Knows the cell's text: AutoGraph reads the functions that it converts, by way of their module."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, fullname: str) -> str:
        """The text of the cell."""
        return self._text


def run_cell(
    cell: Path, include: Path, line_offset: int, params: Mapping[str, object] | None = None
) -> types.ModuleType:
    """Execute the cell as a module; `include` is importable meanwhile and afterwards. Raises CellError.

    `params` are names that the module has from its begin.
    """
    if include.is_dir() and str(include) not in sys.path:
        sys.path.insert(0, str(include))
    source = cell.read_text() if cell.exists() else ""
    linecache.cache[FILE_NAME] = (len(source), None, source.splitlines(keepends=True), FILE_NAME)
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = FILE_NAME
    module.__loader__ = _Source(source)
    module.__dict__.update(params or {})
    sys.modules[MODULE_NAME] = module
    try:
        exec(compile(source, FILE_NAME, "exec"), module.__dict__)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise told(error, line_offset) from error
    return module


def cell_line(error: BaseException, line_offset: int) -> int | None:
    """The line of the cell, counted as the notebook shows it, at which `error` came up; None if it was elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == FILE_NAME and error.lineno:
        return error.lineno + line_offset
    converted = str(error).startswith(_CONVERTED)
    made = _MADE_AT.findall(str(error)) if _operation(error) or converted else []
    seen: BaseException | None = error if not (converted and made) else None
    while seen is not None:
        frames = [frame for frame in traceback.extract_tb(seen.__traceback__) if frame.filename == FILE_NAME]
        if frames and frames[-1].lineno:
            return frames[-1].lineno + line_offset
        seen = seen.__cause__ or seen.__context__
    return int(made[-1]) + line_offset if made else None


def sentence(error: BaseException, limit: int = 300) -> str:
    """`error` in one line: its kind and the first line of what it says, the same from every worker."""
    if isinstance(error, TransientError):
        return str(error)
    lines = [line.strip() for line in _BOLD.sub("", str(error)).splitlines()]
    if lines and lines[0] == _CONVERTED:
        lines = [next(line for line in reversed(lines) if line).removeprefix(f"{type(error).__name__}: ")]
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
    """The graph's operation or Keras's layer, else the innermost line outside TensorFlow's own code."""
    if operation := _operation(error):
        return operation
    if called := _CALLED.fullmatch(str(error).partition("\n")[0]):
        return called[1]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not any(f"/{name}/" in frame.filename for name in _INNER)]
    if not ours:
        return ""
    path = ours[-1].filename
    short = path.rpartition("site-packages/")[2] if "site-packages/" in path else Path(path).name
    return f"{short} line {ours[-1].lineno}"


def told(error: BaseException, line_offset: int) -> TransientError:
    """The error of this package that tells `error`: a CellError with its line if the cell is at fault."""
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
    known = told(error, line_offset)
    return known.what if isinstance(known, CellError) else str(known)
