"""Results of work: what each piece of work leaves elsewhere, and how it comes into the cluster's
folder here.

A kind of work lists what it leaves as `Artifact`s. They come from the VM that made them, from the
VM of the controller, or from the cluster's bucket. None of these is trusted: an artifact takes its
names here once all of its files are on this machine's disk, none larger than its bound, with the
digest that was told, and its check has passed.
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
    """Take files whatever they hold: they are only read as text, or checked by their reader."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Files that count together, by their names in the cluster's folder."""

    what: str
    """What it is, for messages. Of artifacts with the same text one comes after the other."""
    files: tuple[str, ...]
    most: int
    """Bytes of each file, at most."""
    digest: str | None = None
    """The SHA-256 that was told of the only file; None where none is told."""
    size: int = 0
    """The bytes that were told, for which there has to be room before they come; 0 where nothing
    was told.
    """
    check: Callable[..., object] = accept
    """Called with the paths of the files that arrived, in a thread. It may rewrite them. Raises
    ValueError.
    """
    version: int | None = None
    """Of files that are replaced by others of the same names: which ones these are. None: files
    here are the ones.
    """


class Source(Protocol):
    """A place elsewhere that has the cluster's folder, or a part of it."""

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """Fetch the file of that name in the folder as `target`; False where there is none."""
        ...


class VmFolder:
    """The cluster's folder on a VM, where it is `folder`.

    Of a VM that has the folder of one piece of work alone, `below` is the name of that one in the
    cluster's folder.
    """

    def __init__(
        self, connection: Callable[[], Awaitable[Connection]], folder: str, below: str = ""
    ) -> None:
        self.connection = connection
        self._folder = folder
        self._below = below

    async def get(self, name: str, target: Path, *, most: int) -> bool:
        """As `Source` says. Raises RemoteError, ForeignError or OSError."""
        connection = await self.connection()
        there = self.path(name)
        if not await connection.exists(there):
            return False
        await connection.get(there, target, most=most)
        return True

    def path(self, name: str) -> str:
        """The path on the VM of a file of that name in the cluster's folder."""
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
        False where the source does not have all of its files.

    Raises
    ------
    ForeignError
        It is not what was told of it, or its check failed.
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
    """Fetch the files of an artifact beside their places, and give their paths, none where the
    source lacks one.

    `mark` tells them from those that arrive for the same places simultaneously. Files that the
    block leaves where they are get deleted. Raises as `bring`.
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
    """Append the lines of a file on a VM to the one here, as they are written there, until
    cancelled.

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
        Only lines that follow on those here are taken: others come when the file is brought whole.

    Raises
    ------
    ForeignError
        The file is longer than its bound.
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
    """Raise RoomError where the disk of a folder has no room for so many bytes more."""
    if needed > room(folder):
        what = f"this machine's disk has no room for {needed:,} bytes more"
        raise RoomError(what, where=str(folder), fix="Free some of it.")


def _look_at(artifact: Artifact, arrived: tuple[Path, ...]) -> None:
    if artifact.digest is not None:
        with arrived[0].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != artifact.digest:
                raise ForeignError("it is not what was told of it")
    try:
        artifact.check(*arrived)
    except (ValueError, RecursionError) as error:
        raise ForeignError(str(error)) from error
