"""Which files of a run go to its VMs: its declaration and code, and for the chief all that the run has made so far."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...protocol import layout


def files_of(folder: Path, *, with_results: bool) -> Mapping[str, bytes | Path]:
    """Those in the `folder` of a run, by their place below the run's folder on a VM."""
    files: dict[str, bytes | Path] = {layout.RUN: folder / layout.RUN, layout.CELL: folder / layout.CELL}
    folders = [layout.INCLUDE, layout.WHEELS, *([layout.CHECKPOINTS] if with_results else [])]
    found = [path for each in folders for path in (folder / each).rglob("*") if is_plain(path)]
    if with_results:  # on a VM that takes a lost one's place everything goes on behind what is here
        found += [path for name in (layout.EVENTS, layout.METRICS) if is_plain(path := folder / name)]
    files.update({str(path.relative_to(folder)): path for path in found})
    return files


def is_plain(path: Path) -> bool:
    """Whether there is a regular file. What links point to was never meant to be sent."""
    return path.is_file() and not path.is_symlink()
