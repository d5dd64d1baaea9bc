"""The vocabularies of a run's problem, which were made with its records, kept beside its checkpoints.

A checkpoint of a text model means nothing without them, so they go wherever checkpoints go: home, into the bucket, to
the VM that takes a lost one's place, and to the run that resumes from it. There they are laid out before records are
made anew, and Tensor2Tensor takes a vocabulary that it finds: the one that the model has learnt with.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ...files import write_atomically
from .blocks import is_shard

PREFIX = "vocabulary."
"""Of their names among the checkpoints; behind it comes the name that Tensor2Tensor looks for."""
MOST_BYTES = 16 << 20
_MOST_FILES = 32


def keep(data: Path, checkpoints: Path, *, shared: bool) -> None:
    """Copy the vocabularies in the folder `data` to the checkpoints: small files that are no records.

    Of a folder that is `shared` with other problems only what is called a vocabulary. Raises OSError.
    """
    found = [path for path in sorted(data.iterdir()) if _is_vocabulary(path, shared)][:_MOST_FILES]
    for path in found:
        kept = checkpoints / f"{PREFIX}{path.name}"
        content = path.read_bytes()
        if not kept.exists() or kept.read_bytes() != content:
            checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(kept, content)


def kept(checkpoints: Path) -> list[Path]:
    """The vocabularies among the checkpoints."""
    return sorted(checkpoints.glob(f"{PREFIX}*"))


def lay_out(checkpoints: Path, data: Path) -> None:
    """Copy what is kept to the folder `data`, under the names that Tensor2Tensor looks for. Raises OSError."""
    for path in kept(checkpoints):
        shutil.copyfile(path, data / path.name.removeprefix(PREFIX))


def _is_vocabulary(path: Path, shared: bool) -> bool:
    if path.name.startswith(".") or is_shard(path.name) or not path.is_file():
        return False
    return path.stat().st_size <= MOST_BYTES and ("vocab" in path.name.lower() or not shared)
