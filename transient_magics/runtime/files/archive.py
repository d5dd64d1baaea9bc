"""A folder in one archive file and back: only regular files and folders with plain names.

An archive is an uncompressed tar file. Packing never follows a link. The result has the folder as
it was at one moment, as far as that can be detected, or there is no result. An archive to unpack
may come from any source: every member is checked before the first one is written, and the folder is
created completely or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self, cast

from ...protocol import layout
from ...protocol.checks import checked_file, is_path

MOST_KEPT_BYTES = 8 * 2**30
MOST_KEPT_FILES = 10_000
"""A folder that is larger, or has more files, is not brought here."""
_BLOCK = 1 << 20
_TRIES = 4
_PAUSE = 0.25
_DEEPEST = 32
_LONGEST = 2000
"""Longest path of a file in an archive, in bytes.

It leaves room for the path of the folder below Linux's limit.
"""
_HEADER = 512
_MOST_FURTHER = 64 * 2**10
_PAX = tarfile.XHDTYPE
_FURTHER = (
    _PAX,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.GNUTYPE_SPARSE,
)
_Listing = dict[str, tuple[int, int, int, int]]
"""Mode, size, time of change in ns, and inode by path."""


@dataclass(frozen=True)
class Packed:
    """The result of packing.

    Attributes
    ----------
    files, bytes
        Number of files, and their total size in bytes.
    digest
        SHA-256 of the archive.
    left_out
        Entries that were left out, with the reason.
    """

    files: int
    bytes: int
    digest: str
    left_out: tuple[str, ...] = ()


@dataclass
class _Found:
    """The entries of a folder."""

    entries: _Listing = field(default_factory=_Listing)
    left_out: list[str] = field(default_factory=list[str])
    newest: int = 0
    """Time of the last change of an entry, in ns."""


def signature(folder: Path, since: int = 0) -> object:
    """Return a value that changes with anything in the folder that changed after `since` (ns).

    Raises OSError.
    """
    return _listed(folder, since).entries


def last_change(folder: Path, since: int = 0) -> float:
    """Return the time of the last change in the folder, in seconds since 1970.

    Considers changes after `since` (ns). Uses the kernel's time of change, which programs cannot
    set, unlike the time of modification that copying sets. Raises OSError.
    """
    return max(folder.stat().st_ctime_ns, _listed(folder, since).newest) / 1e9


def pack(folder: Path, target: Path, since: int = 0) -> Packed:
    """Write the archive of a folder to `target`, which appears when all of it is on disk.

    Links, devices and entries with invalid names are left out.

    Parameters
    ----------
    folder
        The folder.
    target
        The archive's path.
    since
        Pack only what changed after this time, in ns.

    Raises
    ------
    ValueError
        With a clause about the folder, if it is too large, has too many files, or keeps changing.
    OSError
        If the folder cannot be read, or the archive cannot be written.
    """
    for attempt in range(_TRIES):
        last = attempt == _TRIES - 1
        before = _listed(folder, since)
        _check_size(before.entries)
        digest = _write(folder, before.entries, target, grown=last)
        after = _listed(folder, since).entries
        if digest and (before.entries == after or (last and _only_grew(before.entries, after))):
            sizes = [size for mode, size, *_ in before.entries.values() if stat.S_ISREG(mode)]
            return Packed(len(sizes), sum(sizes), digest, tuple(before.left_out))
        target.unlink(missing_ok=True)
        time.sleep(_PAUSE)
    raise ValueError(
        "it changed while it was packed: write files elsewhere and rename them into it"
    )


def path_of(folder: Path, number: int) -> Path:
    """Return the path of the archive with this number in the folder of a job."""
    return folder / layout.KEPT / layout.archive(number)


def newest(folder: Path, most: int) -> int:
    """Return the number of a job's newest archive up to `most`; 0 if there is none."""
    return max((number for number in numbers(folder) if number <= most), default=0)


def numbers(folder: Path) -> list[int]:
    """Return the numbers of the archives in the folder of a job."""
    return [
        int(path.stem) for path in (folder / layout.KEPT).glob("*.tar") if path.stem.isdecimal()
    ]


def check(archive: Path) -> None:
    """Check an archive without unpacking it.

    Raises ValueError, with a clause, for anything but files and folders with plain names, or for
    too much content.
    """
    with _opened(archive) as tar:
        _members(tar)


def unpack(archive: Path, folder: Path) -> None:
    """Create `folder`, which must not exist, with the content of an archive.

    Raises ValueError as `check` does, or OSError. Then the folder does not exist.
    """
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True, mode=0o700)
        with _opened(archive) as tar:
            for member in _members(tar):
                path = fresh / member.name
                if member.isdir():
                    path.mkdir(parents=True, exist_ok=True, mode=0o700)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                source = tar.extractfile(member)
                assert source is not None
                mode = 0o700 if member.mode & 0o100 else 0o600
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with source, open(handle, "wb") as file:
                    shutil.copyfileobj(source, file, _BLOCK)
                    if file.tell() != member.size:
                        raise ValueError(f"{member.name} is incomplete")
                os.utime(path, (member.mtime, member.mtime))
        fresh.rename(folder)
    except tarfile.TarError as error:
        raise ValueError(f"it is not a complete archive: {error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def overlay(below: Path, above: Path, target: Path, *, newer: bool) -> Packed:
    """Write the union of two archives to `target`.

    A file in both comes from `above` if that is the `newer` archive, else from `below`; so does a
    file where the other archive has a folder, or the reverse. Raises ValueError, with a clause, or
    OSError.
    """
    with _opened(below) as lower, _opened(above) as upper:
        if newer:
            first = upper
            second = lower
        else:
            first = lower
            second = upper
        chosen = _members(first)
        names = {member.name for member in chosen}
        files = {member.name for member in chosen if member.isreg()}
        folders = {parent for name in names for parent in _parents(name)}
        added = [
            member
            for member in _members(second)
            if member.name not in names
            and not files.intersection(_parents(member.name))
            and not (member.isreg() and member.name in folders)
        ]
        together = [*chosen, *added]
        sizes = [member.size for member in together if member.isreg()]
        if sum(sizes) > MOST_KEPT_BYTES or len(together) > MOST_KEPT_FILES:
            raise ValueError("the folders of all ranks together are too large")
        with _hashed(target) as hashed, _written(hashed) as tar:
            for archive, members in ((first, chosen), (second, added)):
                for member in members:
                    fresh = tarfile.TarInfo(member.name)
                    fresh.mtime = member.mtime
                    fresh.mode = member.mode
                    fresh.type = member.type
                    fresh.size = member.size
                    content = archive.extractfile(member) if member.isreg() else None
                    tar.addfile(fresh, content)
    return Packed(len(sizes), sum(sizes), hashed.digest.hexdigest())


def _parents(name: str) -> list[str]:
    """Return the folders that contain a file, by their names in an archive."""
    return [str(parent) for parent in PurePosixPath(name).parents][:-1]


class _Member(tarfile.TarInfo):
    """The headers of a member: its own, and one for a name or time that does not fit in it.

    Other headers are refused: they would make tarfile use as much memory as they declare, or
    recurse without end.
    """

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """Read a member, also for the header that follows an extended one.

        Raises ValueError in addition to tarfile's errors.
        """
        assert isinstance(tarfile, _Archive)
        assert tarfile.fileobj is not None
        begin = tarfile.fileobj.tell()
        block = tarfile.fileobj.read(_HEADER)
        header = cls.frombuf(block, tarfile.encoding or "utf-8", tarfile.errors)
        if header.type in _FURTHER:
            if header.type != _PAX or tarfile.extended or not 0 <= header.size <= _MOST_FURTHER:
                raise ValueError("it has unsupported headers")
            if b"GNU.sparse" in tarfile.fileobj.read(header.size):
                raise ValueError("it has a sparse file")
        tarfile.extended = header.type == _PAX
        tarfile.fileobj.seek(begin)
        return super().fromtarfile(tarfile)


class _Archive(tarfile.TarFile):
    """A tar file whose headers are checked."""

    tarinfo = _Member
    extended = False
    """Whether the last header was an extended one, which belongs to the next."""


def _opened(archive: Path) -> tarfile.TarFile:
    """Open an archive. Raises ValueError."""
    try:
        return _Archive.open(archive, "r:")
    except (tarfile.TarError, OverflowError) as error:
        raise ValueError(f"it is not an archive: {error}") from None


def _members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    """Return the checked members of an archive. Raises ValueError."""
    found: dict[str, tarfile.TarInfo] = {}
    folders = set[str]()
    size = 0
    try:
        for member in tar:
            name = member.name
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise ValueError(f"{name!r:.80} is neither a file nor a folder")
            if not is_path(name) or name.count("/") >= _DEEPEST or len(name.encode()) > _LONGEST:
                raise ValueError(f"{name!r:.80} is an invalid name of a file")
            if name in found:
                raise ValueError(f"{name!r:.80} occurs twice")
            folders.update(_above(name))
            if member.size < 0 or not 0 <= member.mtime < 2**40:
                raise ValueError(f"{name!r:.80} has an invalid size or time")
            size += member.size
            found[name] = member
            if size > MOST_KEPT_BYTES or len(found) > 2 * MOST_KEPT_FILES:
                raise ValueError("it is too large, or has too many files")
    except (tarfile.TarError, OverflowError) as error:  # OverflowError: an impossible size
        raise ValueError(f"it is not a complete archive: {error}") from None
    if both := [name for name in folders if name in found and not found[name].isdir()]:
        raise ValueError(f"{min(both)!r:.80} is both a file and a folder")
    return list(found.values())


def _above(name: str) -> Iterator[str]:
    """Yield the folders that contain a path."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _listed(folder: Path, since: int = 0) -> _Found:
    """Return the entries of a folder that changed after `since` (ns)."""
    found = _Found()
    for entry, name in _walk(folder, ""):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_ctime_ns <= since:
            continue
        is_folder = stat.S_ISDIR(status.st_mode)
        if not (stat.S_ISREG(status.st_mode) or is_folder):
            found.left_out.append(f"{name!r:.80} is not a regular file")
        elif not _is_plain(name) or len(name.encode()) > _LONGEST:
            found.left_out.append(f"{name!r:.80} has an unsupported name")
        else:
            changed = 0 if is_folder else status.st_mtime_ns
            size = 0 if is_folder else status.st_size
            found.entries[name] = status.st_mode, size, changed, status.st_ino
            found.newest = max(found.newest, status.st_ctime_ns)
    return found


def _walk(folder: Path, below: str, deep: int = 0) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Yield the entries at and below a folder with their paths, sorted."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            name = f"{below}{entry.name}"
            yield entry, name
            if deep < _DEEPEST - 1 and entry.is_dir(follow_symlinks=False) and _is_plain(name):
                yield from _walk(folder / entry.name, f"{name}/", deep + 1)


def _is_plain(name: str) -> bool:
    try:
        checked_file(name.rpartition("/")[2]).encode()
    except ValueError:  # includes UnicodeEncodeError, for names that are not text
        return False
    return True


def _check_size(entries: _Listing) -> None:
    """Raise ValueError if a folder has too many files, or is too large."""
    files = [size for mode, size, *_ in entries.values() if stat.S_ISREG(mode)]
    if len(entries) > MOST_KEPT_FILES:
        raise ValueError(
            f"it has {len(entries):,} files and folders, more than {MOST_KEPT_FILES:,}"
        )
    if sum(files) > MOST_KEPT_BYTES:
        raise ValueError(
            f"it has {sum(files) / 2**30:,.1f} GB, more than {MOST_KEPT_BYTES >> 30} GB"
        )


def _only_grew(before: _Listing, after: _Listing) -> bool:
    """Return whether files only grew at their ends, as logs do, or were added.

    Then each packed file is as it was at one moment.
    """
    return all(
        name in after
        and after[name][3] == inode
        and (after[name] == (mode, size, at, inode) or after[name][1] > size)
        for name, (mode, size, at, inode) in before.items()
    )


class _Hashed:
    """A file that is written once, with its digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, block: bytes) -> int:
        self.digest.update(block)
        return self._file.write(block)


@contextmanager
def _hashed(target: Path) -> Iterator[_Hashed]:
    """Open a file that becomes `target` when all of it is on disk; after an error there is none."""
    part = target.with_name(f".{target.name}.part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "wb") as file:
            yield _Hashed(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _written(hashed: _Hashed) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("BinaryIO", hashed), mode="w|", format=tarfile.PAX_FORMAT)


class _Gone(Exception):
    """A file disappeared or shrank while it was packed."""


def _write(folder: Path, entries: _Listing, target: Path, *, grown: bool) -> str:
    """Write the archive and return its digest.

    Returns an empty text if a file disappeared or shrank. `grown` files are packed up to their
    listed size.
    """
    try:
        with _hashed(target) as hashed, _written(hashed) as tar:
            for name, (mode, size, changed, _) in entries.items():
                member = tarfile.TarInfo(name)
                member.mtime = changed // 10**9
                member.mode = 0o700 if mode & 0o100 else 0o600
                if stat.S_ISDIR(mode):
                    member.type = tarfile.DIRTYPE
                    tar.addfile(member)
                    continue
                member.size = size
                handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with open(handle, "rb") as source:
                    now = os.fstat(source.fileno())
                    changed_size = now.st_size < size or (now.st_size > size and not grown)
                    if not stat.S_ISREG(now.st_mode) or changed_size:
                        raise _Gone
                    tar.addfile(member, source)
    except (FileNotFoundError, tarfile.TarError, _Gone):
        return ""
    except OSError as error:
        if error.errno in (None, errno.ELOOP):  # it ended too early, or is now a link
            return ""
        raise
    return hashed.digest.hexdigest()
