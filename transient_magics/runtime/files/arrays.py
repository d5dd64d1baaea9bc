"""Arrays by any names in a file, between a program and who asked for its answer.

In NumPy's files names are names of files, and parameters of its functions: those that cannot be are
in a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray

_NAMES = "names"
_TAKEN = frozenset((_NAMES, "file", "args", "kwds", "allow_pickle"))


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write the arrays; `path` ends in `.npz`."""
    import numpy

    if all(name.isidentifier() and name.isascii() and name not in _TAKEN for name in arrays):
        numpy.savez(path, **arrays)
        return
    numbered = {f"array_{number}": array for number, array in enumerate(arrays.values())}
    numpy.savez(path, **{_NAMES: numpy.array(list(arrays), dtype=str)}, **numbered)


def read(path: Path) -> dict[str, ndarray]:
    """The arrays that `write` wrote, in their order."""
    import numpy

    with numpy.load(path, allow_pickle=False) as file:
        if _NAMES not in file.files:
            return {name: file[name] for name in file.files}
        return {str(name): file[f"array_{number}"] for number, name in enumerate(file[_NAMES])}
