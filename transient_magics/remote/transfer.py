"""Copy files to and from a VM by SFTP, each one atomically: write beside it, then rename.

One SFTP session per connection serves all copies; eight run at a time. A file fetched from a VM is
complete, and on disk, before it takes its name, because the VM may be deleted right after.

Nothing that a VM reports about its files is trusted. Only regular files are taken, not links, under
names that stay in the folder, at most `MOST_FILES` at once, none larger than `LARGEST_FILE`, and
only while the disk here has room. A full disk raises RoomError, everything else ForeignError.
Entries of all kinds count, and folders have at most `MOST_LEVELS` levels, because a server can
invent them without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import secrets
import shutil
import stat
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, cast

import asyncssh

from ..errors import ForeignError, RemoteError, RoomError
from ..protocol.checks import checked_file
from .failures import explained

MOST_FILES = 10_000
MOST_LEVELS = 64
LARGEST_FILE = 2**38
KEPT_FREE = 2**30
"""Bytes of a local disk that stay free of VMs' files, but at most a fiftieth of the disk."""
_AT_ONCE = 8
_BLOCK = 4 * 2**20
_FAREWELL_SECONDS = 1.0


def room(folder: Path) -> int:
    """Return how many bytes of VMs' files the disk of `folder` has room for. Raises OSError."""
    disk = shutil.disk_usage(folder)
    return max(disk.free - min(KEPT_FREE, disk.total // 50), 0)


class Transfer:
    """Files of the VM `name`, over one connection."""

    def __init__(self, ssh: asyncssh.SSHClientConnection, name: str) -> None:
        self._ssh = ssh
        self._name = name
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._opening = asyncio.Lock()
        self._opened: asyncssh.SFTPClient | None = None

    async def put(self, files: Mapping[str, bytes | Path], *, mode: int | None) -> None:
        """Write several files, each one atomically, in folders that are created if missing."""
        folders = {posixpath.dirname(path) for path in files} - {"", "/"}
        async with self._sftp("making folders") as sftp:
            for folder in sorted(folders):
                await sftp.makedirs(folder, asyncssh.SFTPAttrs(permissions=0o700), exist_ok=True)
        await _all(self._put(path, source, mode) for path, source in files.items())

    async def put_tree(self, local: Path, path: str) -> None:
        """Copy the folder `local` to `path`, without byte code, keeping each file's mode."""

        def found() -> dict[str, bytes | Path]:
            files = (
                entry
                for entry in sorted(local.rglob("*"))
                if entry.is_file() and "__pycache__" not in entry.parts
            )
            return {
                posixpath.join(path, file.relative_to(local).as_posix()): file for file in files
            }

        await self.put(await asyncio.to_thread(found), mode=None)

    async def get(self, path: str, local: Path, most: int | None = None) -> None:
        """Copy a file from the VM, of at most `most` bytes (default: `LARGEST_FILE`)."""
        async with self._slots, self._sftp(f"fetching {path}") as sftp:
            await self._get(sftp, path, local, most)

    async def get_tree(self, path: str, local: Path, without: Collection[str]) -> list[str]:
        """Copy a folder except the paths in `without`; return the relative paths copied."""
        found: list[str] = []
        entries = 0
        async with self._sftp(f"listing {path}") as sftp:
            folders = [(path, 0)]
            while folders:
                folder, level = folders.pop()
                if level > MOST_LEVELS:
                    raise ForeignError(
                        f"{path} on {self._name} has more than {MOST_LEVELS} levels of folders"
                    )
                async for entry in sftp.scandir(folder):
                    entries += 1
                    if entries > MOST_FILES:
                        raise ForeignError(
                            f"{path} on {self._name} has more than {MOST_FILES} files and folders"
                        )
                    if entry.filename in (".", "..", b".", b".."):
                        continue
                    entry_path = posixpath.join(folder, self._checked(entry.filename))
                    kind = stat.S_IFMT(entry.attrs.permissions or 0)
                    if kind == stat.S_IFDIR:
                        folders.append((entry_path, level + 1))
                    elif kind == stat.S_IFREG and not entry_path.endswith(".part"):
                        found.append(posixpath.relpath(entry_path, path))
        copied: list[str] = []

        async def copy(relative: str) -> None:
            async with self._slots, self._sftp(f"fetching {relative}") as sftp:
                # Old checkpoints are removed while new ones arrive.
                with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                    await self._get(sftp, posixpath.join(path, relative), _below(local, relative))
                    copied.append(relative)

        await _all(copy(relative) for relative in found if relative not in without)
        return sorted(copied)

    async def remove(self, path: str) -> None:
        """Remove a file; a missing file is success."""
        async with self._sftp(f"removing {path}") as sftp:
            with contextlib.suppress(asyncssh.SFTPNoSuchFile):
                await sftp.remove(path)

    async def rename(self, path: str, target: str) -> None:
        """Rename a file, replacing `target`, or a folder, to a missing or empty `target`."""
        async with self._sftp(f"renaming {path}") as sftp:
            await sftp.posix_rename(path, target)

    async def exists(self, path: str) -> bool:
        """Return whether there is a file or folder at `path`."""
        async with self._sftp(f"looking for {path}") as sftp:
            return await sftp.exists(path)

    async def _put(self, path: str, source: bytes | Path, mode: int | None) -> None:
        async with self._slots, self._sftp(f"writing {path}") as sftp:
            if mode is None:
                if isinstance(source, Path):
                    mode = stat.S_IMODE(source.stat().st_mode)
                else:
                    mode = 0o600
            part = f"{path}.{secrets.token_hex(4)}.part"
            try:
                # The file is made with its mode, so that a secret is never readable, not even while
                # it is written.
                async with await sftp.open(
                    part, "wb", asyncssh.SFTPAttrs(permissions=mode)
                ) as file:
                    if isinstance(source, bytes):
                        await file.write(source)
                if isinstance(source, Path):
                    await sftp.put(source, part)
                await sftp.posix_rename(part, path)
            except BaseException:
                with contextlib.suppress(asyncssh.Error, OSError):
                    await sftp.remove(part)
                raise

    async def _get(
        self, sftp: asyncssh.SFTPClient, path: str, local: Path, most: int | None = None
    ) -> None:
        local.parent.mkdir(parents=True, exist_ok=True)
        part = local.with_name(f"{local.name}.{secrets.token_hex(4)}.part")
        try:
            promised = await self._size(sftp, path, LARGEST_FILE if most is None else most)
            self._look_for_room(path, promised, promised, local)
            with _new(part) as target:
                async with self._reading(sftp, path) as source:
                    size = 0
                    while size < promised and (
                        block := cast("bytes", await source.read(min(_BLOCK, promised - size)))
                    ):
                        # Other files arrive at the same time.
                        self._look_for_room(path, promised, promised - size, local)
                        size += len(block)
                        await asyncio.to_thread(target.write, block)
                if size < promised:
                    raise RemoteError(
                        f"Only {size:,} of {promised:,} bytes of {path} arrived", where=self._name
                    )
                await asyncio.to_thread(_settle, target, part, local)
        finally:
            part.unlink(missing_ok=True)

    @asynccontextmanager
    async def _reading(
        self, sftp: asyncssh.SFTPClient, path: str
    ) -> AsyncGenerator[asyncssh.SFTPClientFile]:
        source = await sftp.open(path, "rb")
        try:
            yield source
        finally:
            try:
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    await source.close()
            except TimeoutError:
                # A caller that was cancelled for lack of progress must not wait for the close,
                # either.
                sftp.exit()
                if self._opened is sftp:
                    self._opened = None

    def _look_for_room(self, path: str, size: int, to_come: int, local: Path) -> None:
        if to_come > room(local.parent):
            what = (
                f"{path} on {self._name} has {size:,} bytes, and this machine's disk has no "
                "room for it"
            )
            raise RoomError(
                what, where=str(local.parent), fix="Free some space; then the copy is retried."
            )

    async def _size(self, sftp: asyncssh.SFTPClient, path: str, most: int) -> int:
        """Return the present size of a regular file; what is appended later is not taken."""
        attributes = await sftp.lstat(path)
        if not stat.S_ISREG(attributes.permissions or 0) or attributes.size is None:
            raise ForeignError(
                f"{path} on {self._name} is not a regular file, so it is not copied",
                where=self._name,
            )
        if not 0 <= attributes.size <= most:
            raise ForeignError(
                f"{path} on {self._name} has {attributes.size:,} bytes, more than the limit of "
                f"{most:,}, so it is not copied",
                where=self._name,
            )
        return attributes.size

    def _checked(self, name: str | bytes) -> str:
        try:
            return checked_file(name if isinstance(name, str) else name.decode())
        except ValueError as error:
            raise ForeignError(
                f"A file on {self._name} is not copied: {error}", where=self._name
            ) from None

    @asynccontextmanager
    async def _sftp(self, doing: str) -> AsyncGenerator[asyncssh.SFTPClient]:
        with explained(self._name, doing):
            async with self._opening:
                if self._opened is None:
                    self._opened = await self._ssh.start_sftp_client()
            try:
                yield self._opened
            except (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection):
                # The session may end before the connection does.
                self._opened = None
                raise


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines concurrently; the first error ends the rest.

    Unlike in a task group, a cancellation is never lost.
    """
    tasks = {asyncio.create_task(coroutine) for coroutine in work}
    if not tasks:
        return
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended, _ = await asyncio.wait(tasks)
    errors = [error for task in ended if not task.cancelled() and (error := task.exception())]
    if errors:
        raise errors[0]


def _new(part: Path) -> IO[bytes]:
    """Create a file that does not exist yet, not even as a link."""
    return open(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600),
        "wb",
    )


def _below(folder: Path, relative: str) -> Path:
    """Return the path in `folder`. Raises ForeignError if a link leads out of it."""
    path = folder / relative
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise ForeignError(f"{relative} would be outside of its folder", where=str(folder))
    return path


def _settle(file: IO[bytes], part: Path, local: Path) -> None:
    """Flush the file to disk, then rename it."""
    file.flush()
    os.fsync(file.fileno())
    part.replace(local)
