"""Files that a worker reads its examples from, taken out of the page cache, or brought into it.

`posix_fadvise` drops the pages of a file that nobody has changed since it was written out; no right is needed for it.
Which files those are: the records of the run, and what else the process has open of a regular file while it reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from ...files.data_files import MARKER

_EVERY = 0.2
"""Seconds between two drops while examples are read: what was read once is not to be found again."""
_BLOCK = 1 << 20
_CODE = (".py", ".pyc", ".so", ".log", ".whl", ".zip")


def files_below(folder: Path) -> set[Path]:
    """The files of a folder, which may not be there, but for the list of them."""
    return {path for path in folder.rglob("*") if path.is_file() and path.name != MARKER}


def open_files(apart_from: Iterable[Path] = ()) -> set[Path]:
    """Regular files that this process has open for reading alone, but for code and logs."""
    found = set[Path]()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it is closed meanwhile
            path = Path(os.readlink(f"/proc/self/fd/{number}"))
            regular = stat.S_ISREG(os.stat(f"/proc/self/fd/{number}").st_mode)
            if regular and path.suffix not in _CODE and path.exists() and _is_read(int(number)):
                found.add(path)
    return found - set(apart_from)


def _is_read(number: int) -> bool:
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def size(files: Iterable[Path]) -> int:
    """Bytes of these files."""
    return sum(path.stat().st_size for path in files if path.exists())


def drop(files: Iterable[Path]) -> None:
    """Have what they hold read from the disk again."""
    for path in files:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY)
            try:
                with contextlib.suppress(OSError):  # a file system that cannot: nothing of it is written out late
                    os.fdatasync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


def warm(files: Iterable[Path]) -> None:
    """Read them once, so that they are in the page cache as far as that has room."""
    for path in files:
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            while file.read(_BLOCK):
                pass


class KeptCold:
    """Inside, these files are dropped again and again."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files, self._over = list(files), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="cold files")

    def __enter__(self) -> None:
        drop(self._files)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(_EVERY):
            drop(self._files)
