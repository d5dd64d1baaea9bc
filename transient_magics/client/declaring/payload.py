"""Code, files and packages that new work gets into its folder."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ...errors import DeclarationError, reason_of
from ...protocol import layout
from ..cell import as_declared, files_of, listed, packages

MOST_BYTES = 200 * 2**20
MOST_FILES = 100_000
"""The limit of files and folders, because links to the same folder multiply its content."""
_BLOCK = 2**20
_LEFT_OUT = "__pycache__"
_OPTION = "--include"


class _Room:
    """The rest of the limits of bytes and entries."""

    def __init__(self) -> None:
        self._bytes = MOST_BYTES
        self._entries = MOST_FILES

    def take(self, path: Path, size: int = 0, entries: int = 0) -> None:
        """Count a part of `path`. Raises DeclarationError if it exceeds the limit."""
        self._bytes -= size
        self._entries -= entries
        if self._bytes < 0:
            raise DeclarationError(
                f"With '{path}', the included files have more than {MOST_BYTES >> 20} MB",
                where=_OPTION,
                fix="Use --include for code; put large data into --data-dir.",
            )
        if self._entries < 0:
            what = f"With '{path}', more than {MOST_FILES:,} files are included"
            raise DeclarationError(what, where=_OPTION, fix="Include only the needed folders.")


def included(paths: Iterable[str], folder: Path | None = None) -> tuple[str, ...]:
    """Return the absolute paths of files and folders to send along; `helpers` finds `helpers.py`.

    Parameters
    ----------
    paths
        The values of `--include`.
    folder
        The base of relative paths (default: the current folder).

    Raises
    ------
    DeclarationError
        A path does not exist, is unreadable, or exceeds the limits.
    """
    folder = folder or Path.cwd()
    found: list[str] = []
    room = _Room()
    for text in paths:
        candidates = [
            folder / Path(text).expanduser(),
            folder / f"{text}.py",
            folder / text.replace(".", "/"),
        ]
        path = next((candidate for candidate in candidates if candidate.exists()), None)
        if path is None:
            raise DeclarationError(
                f"'{text}' is neither a file nor a folder",
                where=_OPTION,
                fix=f"Use a path that is absolute or relative to {folder}.",
            )
        if not os.access(path, os.R_OK):
            raise DeclarationError(
                f"'{text}' cannot be read", where=_OPTION, fix="Check its permissions."
            )
        for file, _ in _walk(path, room):
            room.take(file, size=_status(file).st_size)
        found.append(str(path.resolve()))
    return tuple(found)


def copy(paths: Iterable[str], target: Path) -> None:
    """Copy files and folders into a folder.

    Raises
    ------
    DeclarationError
        A file is unreadable, or the present sizes exceed the limits.
    OSError
        A copy cannot be written.
    """
    room = _Room()
    for text in paths:
        path = Path(text).expanduser()
        copied = target / path.name
        if copied.exists():
            what = f"Two of the included files and folders have the name '{path.name}'"
            raise DeclarationError(what, where=_OPTION, fix="Rename one.")
        if path.is_dir():
            copied.mkdir()
        for file, relative in _walk(path, room):
            (copied / relative).parent.mkdir(parents=True, exist_ok=True)
            _copy_file(file, copied / relative, room)


def _walk(top: Path, room: _Room) -> Iterator[tuple[Path, Path]]:
    """Yield each regular file at or below `top`, with its path relative to `top`."""
    folders: list[tuple[Path, frozenset[tuple[int, int]]]] = []
    status = _status(top)
    if stat.S_ISREG(status.st_mode):
        room.take(top, entries=1)
        yield top, Path()
    elif stat.S_ISDIR(status.st_mode):
        folders.append((top, frozenset([_identity(status)])))
    while folders:
        folder, above = folders.pop()
        for path in _entries(folder):
            room.take(path, entries=1)
            status = _status(path)
            if stat.S_ISDIR(status.st_mode):
                if _identity(status) in above:
                    what = f"'{path}' is a link to a folder that contains it"
                    raise DeclarationError(
                        what,
                        where=_OPTION,
                        fix="Remove the link, or include only the needed folders.",
                    )
                folders.append((path, above | {_identity(status)}))
            elif stat.S_ISREG(status.st_mode):  # a socket or a pipe has no content to send
                yield path, path.relative_to(top)


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if name != _LEFT_OUT]
    except OSError as error:
        raise _unreadable(folder, error) from None


def _status(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> DeclarationError:
    if isinstance(error, FileNotFoundError) and path.is_symlink():
        return DeclarationError(f"'{path}' is a broken link", where=_OPTION, fix="Remove it.")
    return DeclarationError(f"'{path}' cannot be read: {reason_of(error)}", where=_OPTION)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _copy_file(source: Path, target: Path, room: _Room) -> None:
    """Copy a file with its mode and its times; it may grow during the copy."""
    try:
        # Not blocking, because another process may have replaced the file by a pipe.
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(source, error) from None
    with os.fdopen(descriptor, "rb") as here, target.open("xb") as there:
        while block := here.read(_BLOCK):
            room.take(source, size=len(block))
            there.write(block)
    shutil.copystat(source, target)


@dataclass(frozen=True)
class Payload:
    """Code, files and packages of new work.

    Attributes
    ----------
    source : str
        The Python code; empty if there is none.
    include : tuple of str
        Files and folders of this machine.
    pip : tuple of str
        Packages as the declaration names them.
    files : Mapping[str, Path]
        Local files of packages, by their name in the folder.
    """

    source: str = ""
    include: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict[str, Path])

    @classmethod
    def of(
        cls,
        source: str,
        include: str | Iterable[str] = (),
        pip: str | Iterable[str] = (),
        *,
        build: bool = False,
    ) -> Self:
        """Check the values of `--include`, `--pip` and `--pip-build`.

        Raises
        ------
        DeclarationError
            A file does not exist, or a package is not allowed.
        """
        paths = listed(include)
        for path in paths:
            if not Path(path).expanduser().exists():
                raise DeclarationError(f"'{path}' does not exist", where="--include")
        named = packages(pip, build=build)
        files = files_of(named)
        return cls(source, paths, as_declared(named, files), files)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a declaration that name the files and packages."""
        return {"include": tuple(Path(path).name for path in self.include), "pip": self.pip}

    def fill(self, folder: Path) -> None:
        """Write the code, files and packages into the folder of new work.

        Raises
        ------
        DeclarationError
            A file to include cannot be copied.
        OSError
            The folder cannot be written.
        """
        (folder / layout.INCLUDE).mkdir(mode=0o700)
        (folder / layout.CELL).write_text(self.source, encoding="utf-8")
        copy(self.include, folder / layout.INCLUDE)
        (folder / layout.PIP).mkdir(mode=0o700)
        for name, path in self.files.items():
            shutil.copyfile(path, folder / layout.PIP / name)
