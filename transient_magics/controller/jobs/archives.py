"""Archives of the folder that a job keeps, as they come to the job's folder here.

An archive counts once all of it is here, on disk, with the digest that was told, and nothing but plain files in it;
until then the one before does.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...errors import ForeignError
from ...protocol.job import MOST_KEPT_BYTES
from ...runtime.jobs.archive import look_through, numbers, path_of

MOST_BYTES = MOST_KEPT_BYTES + 64 * 2**20
"""Of an archive: what is kept, and the names of its files."""


def look_at(path: Path, digest: str) -> None:
    """Raises ForeignError or ValueError where the archive is not what was told of it, or holds what no folder may."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ForeignError("it is not what the VM said that it is", where=str(path))
    look_through(path)


def forget_older(folder: Path, number: int) -> None:
    """Delete those from before that number."""
    for each in numbers(folder):
        if each < number:
            path_of(folder, each).unlink(missing_ok=True)
