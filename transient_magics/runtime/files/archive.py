"""A folder in one file and back: regular files and folders under plain names, and nothing else.

An archive is an uncompressed tar file. What is packed never follows a link, and is either as the
folder was at one moment, as far as that can be seen, or is not made at all. What is unpacked may
come from anybody: each member is looked at before the first one is written, and the folder is there
whole or not at all.
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
from ...protocol.names import checked_file, is_path

MOST_KEPT_BYTES = 8 * 2**30
MOST_KEPT_FILES = 10_000
"""A folder that is larger, or has more files, is not brought here."""
_BLOCK = 1 << 20
_TRIES = 4
_PAUSE = 0.25
_DEEPEST = 32
_LONGEST = 2000
"""Of a file's path in an archive, in bytes: below a folder of this machine, too, it is no longer
than Linux allows.
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
"""By path: mode, size, time of change in ns, inode."""


@dataclass(frozen=True)
class Packed:
    """What was packed: how many `files` of how many `bytes`, the archive's SHA-256, and what was
    left out, and why.
    """

    files: int
    bytes: int
    digest: str
    left_out: tuple[str, ...] = ()


@dataclass
class _Found:
    entries: _Listing = field(default_factory=_Listing)
    left_out: list[str] = field(default_factory=list[str])
    newest: int = 0
    """The last change of an entry, in ns."""


def signature(folder: Path, since: int = 0) -> object:
    """What changes when anything in the folder does, of what changed after `since` (ns). Raises
    OSError.
    """
    return _listed(folder, since).entries


def last_change(folder: Path, since: int = 0) -> float:
    """When anything in the folder changed last, in seconds since 1970, of what changed after
    `since` (ns).

    By the kernel's time of change, which no program sets, as one sets that of a copied file. Raises
    OSError.
    """
    return max(folder.stat().st_ctime_ns, _listed(folder, since).newest) / 1e9


def pack(folder: Path, target: Path, since: int = 0) -> Packed:
    """Write the archive of a folder to `target`, which is there once all of it is on disk: all of
    it, or what changed after `since` (ns).

    Links, devices and names that are none are left out. Raises ValueError, a clause, where the
    folder is too large, has too many files, or does not hold still; OSError where it cannot be
    read, or the archive written.
    """
    for last in [False] * (_TRIES - 1) + [True]:
        before = _listed(folder, since)
        _check_size(before.entries)
        digest = _write(folder, before.entries, target, grown=last)
        after = _listed(folder, since).entries
        if digest and (before.entries == after or (last and _only_grew(before.entries, after))):
            sizes = [size for mode, size, *_ in before.entries.values() if stat.S_ISREG(mode)]
            return Packed(len(sizes), sum(sizes), digest, tuple(before.left_out))
        target.unlink(missing_ok=True)
        time.sleep(_PAUSE)
    raise ValueError("it changes while it is packed: write files beside it and rename them into it")


def path_of(folder: Path, number: int) -> Path:
    """Where the archive of that number is in the folder of a job, or would be."""
    return folder / layout.KEPT / layout.archive(number)


def newest(folder: Path, most: int) -> int:
    """The number of the newest archive in the folder of a job, of those up to `most`; 0: there is
    none.
    """
    return max((number for number in numbers(folder) if number <= most), default=0)


def numbers(folder: Path) -> list[int]:
    """Those of the archives in the folder of a job."""
    return [
        int(path.stem) for path in (folder / layout.KEPT).glob("*.tar") if path.stem.isdecimal()
    ]


def look_through(archive: Path) -> None:
    """Raises ValueError, a clause, where an archive has anything but files and folders under plain
    names, or too much of them.
    """
    with _opened(archive) as tar:
        _members(tar)


def unpack(archive: Path, folder: Path) -> None:
    """Have `folder`, which must not be there, with what is in the archive. Raises ValueError as
    `look_through`, or OSError; there is nothing then.
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
                with (
                    source,
                    open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
                ):
                    shutil.copyfileobj(source, file, _BLOCK)
                    if file.tell() != member.size:
                        raise ValueError(f"{member.name} is cut off")
                os.utime(path, (member.mtime, member.mtime))
        fresh.rename(folder)
    except tarfile.TarError as error:
        raise ValueError(f"it is no whole archive: {error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def overlay(below: Path, above: Path, target: Path, *, newer: bool) -> Packed:
    """Write to `target` what is in two archives. A file in both, and what cannot be beside it,
    comes from `above` where that is the `newer` one, else from `below`. Raises ValueError, a
    clause, or OSError.
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
            raise ValueError("the folders of several ranks have too much in them together")
        with _hashed(target) as hashed, _written(hashed) as tar:
            for archive, members in ((first, chosen), (second, added)):
                for member in members:
                    fresh = tarfile.TarInfo(member.name)
                    fresh.mtime = member.mtime
                    fresh.mode = member.mode
                    fresh.type = member.type
                    fresh.size = member.size
                    tar.addfile(fresh, archive.extractfile(member) if member.isreg() else None)
    return Packed(len(sizes), sum(sizes), hashed.digest.hexdigest())


def _parents(name: str) -> list[str]:
    """The folders in which a file is, by their names in an archive."""
    return [str(parent) for parent in PurePosixPath(name).parents][:-1]


class _Member(tarfile.TarInfo):
    """What stands before a file in an archive: its header, and before that one more where its name
    or its time has no room in the first. Others would have tarfile take as much memory as they say,
    or call itself without end.
    """

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """As tarfile's, which asks it for the header behind a further one, too. Raises ValueError
        as well.
        """
        assert isinstance(tarfile, _Archive)
        assert tarfile.fileobj is not None
        begin = tarfile.fileobj.tell()
        told = cls.frombuf(
            tarfile.fileobj.read(_HEADER), tarfile.encoding or "utf-8", tarfile.errors
        )
        if told.type in _FURTHER:
            if told.type != _PAX or tarfile.extended or not 0 <= told.size <= _MOST_FURTHER:
                raise ValueError("it has headers that there is no reason for")
            if b"GNU.sparse" in tarfile.fileobj.read(told.size):
                raise ValueError("it has a file with holes")
        tarfile.extended = told.type == _PAX
        tarfile.fileobj.seek(begin)
        return super().fromtarfile(tarfile)


class _Archive(tarfile.TarFile):
    tarinfo = _Member
    extended = False
    """The header that was read last belongs to the one behind it."""


def _opened(archive: Path) -> tarfile.TarFile:
    try:
        return _Archive.open(archive, "r:")
    except (tarfile.TarError, OverflowError) as error:
        raise ValueError(f"it is no archive: {error}") from None


def _members(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    found: dict[str, tarfile.TarInfo] = {}
    folders = set[str]()
    size = 0
    try:
        for member in tar:
            name = member.name
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise ValueError(f"{name!r:.80} is neither a file nor a folder")
            if not is_path(name) or name.count("/") >= _DEEPEST or len(name.encode()) > _LONGEST:
                raise ValueError(f"{name!r:.80} is no name of a file")
            if name in found:
                raise ValueError(f"{name!r:.80} is there twice")
            folders.update(_above(name))
            if member.size < 0 or not 0 <= member.mtime < 2**40:
                raise ValueError(f"{name!r:.80} has a size or time that there is not")
            size += member.size
            found[name] = member
            if size > MOST_KEPT_BYTES or len(found) > 2 * MOST_KEPT_FILES:
                raise ValueError("it has too much in it")
    except (tarfile.TarError, OverflowError) as error:  # the latter: a size that no file has
        raise ValueError(f"it is no whole archive: {error}") from None
    if both := [name for name in folders if name in found and not found[name].isdir()]:
        raise ValueError(f"{min(both)!r:.80} is a file and a folder")
    return list(found.values())


def _above(name: str) -> Iterator[str]:
    """The folders in which a path lies."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _listed(folder: Path, since: int = 0) -> _Found:
    found = _Found()
    for entry, name in _walk(folder, ""):
        try:
            known = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if known.st_ctime_ns <= since:
            continue
        if not (stat.S_ISREG(known.st_mode) or stat.S_ISDIR(known.st_mode)):
            found.left_out.append(f"{name!r:.80} is no file")
        elif not _is_plain(name) or len(name.encode()) > _LONGEST:
            found.left_out.append(f"{name!r:.80} has a name that cannot be kept")
        else:
            changed = 0 if stat.S_ISDIR(known.st_mode) else known.st_mtime_ns
            size = 0 if stat.S_ISDIR(known.st_mode) else known.st_size
            found.entries[name] = known.st_mode, size, changed, known.st_ino
            found.newest = max(found.newest, known.st_ctime_ns)
    return found


def _walk(folder: Path, below: str, deep: int = 0) -> Iterator[tuple[os.DirEntry[str], str]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            name = f"{below}{entry.name}"
            yield entry, name
            if deep < _DEEPEST - 1 and entry.is_dir(follow_symlinks=False) and _is_plain(name):
                yield from _walk(folder / entry.name, f"{name}/", deep + 1)


def _is_plain(name: str) -> bool:
    try:
        checked_file(name.rpartition("/")[2]).encode()
    except ValueError:  # UnicodeEncodeError among them: a name that is no text
        return False
    return True


def _check_size(entries: _Listing) -> None:
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
    """Whether nothing has happened but that the same files were written on at their ends, as logs
    are, or new ones came: then each is what it was at one moment.
    """
    return all(
        name in after
        and after[name][3] == inode
        and (after[name] == (mode, size, at, inode) or after[name][1] > size)
        for name, (mode, size, at, inode) in before.items()
    )


class _Hashed:
    """A file that is written once, and its digest."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, block: bytes) -> int:
        self.digest.update(block)
        return self._file.write(block)


@contextmanager
def _hashed(target: Path) -> Iterator[_Hashed]:
    """A file that becomes `target` once all of it is on disk; after an error nothing is there."""
    part = target.with_name(f".{target.name}.part")
    try:
        with open(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb"
        ) as file:
            yield _Hashed(file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _written(hashed: _Hashed) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("BinaryIO", hashed), mode="w|", format=tarfile.PAX_FORMAT)


class _Gone(Exception):
    """A file went or shrank while it was packed."""


def _write(folder: Path, entries: _Listing, target: Path, *, grown: bool) -> str:
    """The digest of the archive; empty where a file went or shrank meanwhile."""
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
                with open(
                    os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"
                ) as source:
                    now = os.fstat(source.fileno())
                    if (
                        not stat.S_ISREG(now.st_mode)
                        or now.st_size < size
                        or (now.st_size > size and not grown)
                    ):
                        raise _Gone
                    tar.addfile(member, source)
    except (FileNotFoundError, tarfile.TarError, _Gone):
        return ""
    except OSError as error:
        if error.errno in (None, errno.ELOOP):  # it ended too early, or is a link by now
            return ""
        raise
    return hashed.digest.hexdigest()
