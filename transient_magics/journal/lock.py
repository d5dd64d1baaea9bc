"""One program in charge of a folder: the lock that it holds while it lives is the truth about
whether there is one.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from .. import files

LOCK = "controller.lock"
_START_SECONDS = 20.0
"""A program that has not taken its lock after this time has failed to start."""


def take(directory: Path) -> int | None:
    """Hold the lock of `directory` until this process ends, and return it; None where another
    process holds it.
    """
    lock = files.lock(directory / LOCK)
    if lock is not None:
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def mark(lock: int) -> None:
    """Note in the lock's file that its holder is alive now: its time of modification tells when a
    holder died.
    """
    os.utime(lock)


def is_of(lock: int, directory: Path) -> bool:
    """Whether this lock is still that of the folder: another one may bear its name by now."""
    try:
        there = os.stat(directory / LOCK)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(lock), there)


def starting(directory: Path, since: float) -> bool:
    """Return whether a program that was started on `directory` at `since` (seconds since 1970) may
    still be starting.

    No process has taken its lock yet then.
    """
    return not (directory / LOCK).exists() and time.time() - since < _START_SECONDS


def held(directory: Path) -> bool:
    """Whether a process holds the lock of `directory`."""
    try:
        lock = os.open(
            directory / LOCK, os.O_RDONLY | os.O_CLOEXEC
        )  # also where nothing can be written
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
