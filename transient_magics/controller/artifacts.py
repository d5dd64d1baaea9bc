"""Results of work: what each piece of work leaves elsewhere, and how it gets into the local folder.

A kind of work lists what it leaves as `Artifact`s. They come from the VM that made them, from the
VM of the controller, or from the cluster's bucket. None of these is trusted. An artifact takes its
names here once all of its files are on this machine's disk, each within its size limit and with the
reported digest, and its check has passed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import ForeignError, RoomError
from ..journal import metrics
from ..protocol import jsonl
from ..remote import Allowance, Connection, follow_blocks_across, room


def accept(*files: Path) -> None:
    """Accept files with any content: they are only read as text, or checked by their reader."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Set of files that belong together, by their names in the cluster's folder."""

    what: str
    """Name for messages. Artifacts with the same name are brought one after the other."""
    files: tuple[str, ...]
    most: int
    """Maximum size of each file, in bytes."""
    digest: str | None = None
    """Reported SHA-256 of the only file; None if none was reported."""
    size: int = 0
    """Reported size in bytes, for which there has to be disk space first; 0 if unknown."""
    check: Callable[..., object] = accept
    """Check that is called with the paths of the files that arrived.

    It runs in a thread, may rewrite the files, and raises ValueError.
    """
    version: int | None = None
    """Version of files that are replaced by others of the same names.

    None means that the files do not change.
    """


class Source(Protocol):
    """Place elsewhere that has the cluster's folder, or a part of it."""

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """Fetch the file of that name in the folder to `target`; return False if there is none."""
        ...


class VmFolder:
    """Folder of the cluster at `folder` on a VM.

    If the VM has only the folder of one piece of work, `below` is the name of that folder in the
    cluster's folder.
    """

    def __init__(
        self, connection: Callable[[], Awaitable[Connection]], folder: str, below: str = ""
    ) -> None:
        self.connection = connection
        self._folder = folder
        self._below = below

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """Fetch a file as in `Source`. Raises RemoteError, ForeignError or OSError."""
        connection = await self.connection()
        there = self.path(name)
        if not await connection.exists(there):
            return False
        await connection.get(there, target, most=most)
        return True

    def path(self, name: str) -> str:
        """Return the path on the VM of a file of that name in the cluster's folder."""
        return f"{self._folder}/{name.removeprefix(self._below).removeprefix('/')}"


async def bring(artifact: Artifact, directory: Path, source: Source) -> bool:
    """Bring an artifact into the cluster's folder.

    Parameters
    ----------
    artifact
        What to bring.
    directory
        The cluster's folder on this machine.
    source
        Where it is.

    Returns
    -------
    bool
        False if the source does not have all of its files.

    Raises
    ------
    ForeignError
        It differs from what was reported, or its check failed.
    RoomError
        The disk here has no room for it.
    RemoteError, OSError
        The source or the disk here failed. It may work later.
    """
    async with fetched(artifact, directory, source) as arrived:
        for path, name in zip(arrived, artifact.files, strict=False):
            path.replace(directory / name)
        return bool(arrived)


@asynccontextmanager
async def fetched(
    artifact: Artifact, directory: Path, source: Source, mark: str = ""
) -> AsyncGenerator[tuple[Path, ...], None]:
    """Fetch the files of an artifact beside their places, and yield their paths.

    Yields no paths if the source lacks a file. `mark` distinguishes them from files that arrive for
    the same places simultaneously. Files that the block does not move are deleted. Raises the
    errors of `bring`.
    """
    targets = [directory / name for name in artifact.files]
    arrived = tuple(target.with_name(f".{target.name}{mark}.part") for target in targets)
    try:
        for name, path in zip(artifact.files, arrived, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            look_for_room(path.parent, artifact.size)
            if not await source.get(name, path, most=artifact.most):
                yield ()
                return
        await asyncio.to_thread(_look_at, artifact, arrived)
        yield arrived
    finally:
        for path in arrived:
            path.unlink(missing_ok=True)


async def follow(
    artifact: Artifact,
    directory: Path,
    source: VmFolder,
    append: Callable[[Path, bytes], object] | None = None,
    *,
    rows: bool = False,
) -> None:
    """Append the lines of a file on a VM to the local one as they are written, until cancelled.

    Parameters
    ----------
    artifact
        What has the file.
    directory
        The cluster's folder on this machine.
    source
        The folder on the VM.
    append
        Appends lines to a file here (default: `jsonl.append_lines`).
    rows
        Take only lines that continue the local ones: others arrive when the file is brought whole.

    Raises
    ------
    ForeignError
        The file is longer than its limit.
    """
    (name,) = artifact.files
    append = append or jsonl.append_lines
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        jsonl.cut_torn_line(path)
    if path.exists():
        size = path.stat().st_size
    else:
        size = 0
    allowance = Allowance(artifact.most, size)
    async for block in follow_blocks_across(
        source.connection, source.path(name), size, allowance=allowance
    ):
        lines = metrics.joined(block)
        end = block[-1][0]
        if not rows or end == size + len(lines):
            append(path, lines)
            size = end


def look_for_room(folder: Path, needed: int) -> None:
    """Raise RoomError if the disk of a folder has no room for `needed` more bytes."""
    if needed > room(folder):
        what = f"this machine's disk has no room for another {needed:,} bytes"
        raise RoomError(what, where=str(folder), fix="Free some space; then the copy is retried.")


def _look_at(artifact: Artifact, arrived: tuple[Path, ...]) -> None:
    if artifact.digest is not None:
        with arrived[0].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != artifact.digest:
                raise ForeignError("its SHA-256 differs from the reported one")
    try:
        artifact.check(*arrived)
    except (ValueError, RecursionError) as error:
        raise ForeignError(str(error)) from error
