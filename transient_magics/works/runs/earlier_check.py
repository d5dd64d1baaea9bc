"""The earlier check of another run, found by its folder: what it has found holds for the same code and packages."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...controller.decisions.alike import alike
from ...files import write_atomically
from ...journal import RunState
from ...protocol import layout
from ...protocol.run import RunSpec

log = logging.getLogger(__name__)


def content(folder: Path) -> bytes:
    """A sum of the code and the packages in a run's folder. Raises OSError."""
    said = hashlib.sha256((folder / layout.CELL).read_bytes())
    for path in _files(folder):
        said.update(f"\0{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        said.update(path.read_bytes())
    return said.digest()


def found_alike(folder: Path, spec: RunSpec, others: Sequence[RunState]) -> bool:
    """Whether one of `others`, which passed their checks, was checked for the same as the run in `folder`.

    What was counted of its model holds here too, and is written into the folder.
    """
    for other in reversed(others):
        if other.name == spec.name or not alike(other.spec, spec):
            continue
        there = folder.with_name(other.name)
        try:
            if content(there) != content(folder):
                continue
            if (counted := there / layout.MODEL).exists():
                write_atomically(folder / layout.MODEL, counted.read_bytes())
        except OSError as error:
            log.warning("%s: whether %s was checked for the same is not known: %s", spec.name, other.name, error)
            continue
        log.info("%s: what the check of %s has found holds for it", spec.name, other.name)
        return True
    return False


def _files(folder: Path) -> Iterator[Path]:
    for name in (layout.INCLUDE, layout.WHEELS):
        yield from sorted(path for path in (folder / name).rglob("*") if path.is_file())
