"""Whether what the check of one run has found holds for another, as for the trials of a study: then it is not repeated.

It holds for the same code and packages where the declarations differ in nothing that a graph's shape follows from. What
is left to go wrong with such a run goes wrong at its start, and fails it with the same sentence.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...files import write_atomically
from ...journal import RunState
from ...protocol import layout
from ...protocol.run import RunSpec

log = logging.getLogger(__name__)

_ASIDE = frozenset(
    {
        "name", "train_steps", "pip_build", "checkpoint_steps", "checkpoint_seconds", "checkpoint_auto", "keep",
        "deadband", "batch_smoothing", "max_workers", "workers", "least_workers", "most_workers", "machines", "chief",
        "alarm_below", "alarm_after", "noise_share", "eval_steps", "eval_batches", "seed", "resume", "pace_seconds",
        "notice_seconds", "when_done", "line_offset", "declared_at", "store", "resume_store", "threads", "token",
        "study", "trial", "repeat", "per_vm",
    }
)  # fmt: skip
"""What no graph is built of. A field that is not named here is looked at."""
_FRACTION = re.compile(r"=\s*[+-]?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?[eE][+-]?\d+)\s*(?=,|$)")
"""A value such as 0.1 or 1e-3: other than whole numbers, which may be sizes, it changes no shape."""


def alike(checked: RunSpec, other: RunSpec) -> bool:
    """Whether they are checked for the same, as far as their declarations say."""
    return _looked_at(checked) == _looked_at(other)


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


def _looked_at(spec: RunSpec) -> dict[str, Any]:
    fields = {name: value for name, value in spec.to_dict().items() if name not in _ASIDE}
    fields["hparams"] = _FRACTION.sub("=#", spec.hparams)
    fields["params"] = {name: "#" if isinstance(value, float) else value for name, value in spec.params.items()}
    return fields


def _files(folder: Path) -> Iterator[Path]:
    for name in (layout.INCLUDE, layout.WHEELS):
        yield from sorted(path for path in (folder / name).rglob("*") if path.is_file())
