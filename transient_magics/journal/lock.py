"""The lock of a folder: the program in charge of the folder holds it while it lives.

Whether a process holds the lock is the only evidence of such a program.
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
    """Take the lock of `directory` until this process ends; None if another process holds it."""
    lock = files.lock(directory / LOCK)
    if lock is not None:
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def mark(lock: int) -> None:
    """Record in the lock's file that its holder is alive.

    The modification time of the file thus shows when a holder died.
    """
    os.utime(lock)


def is_of(lock: int, directory: Path) -> bool:
    """Return whether this lock is still that of the folder, whose name another one may have now."""
    try:
        there = os.stat(directory / LOCK)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(lock), there)


def starting(directory: Path, since: float) -> bool:
    """Return whether a program started on `directory` at `since` may still be starting.

    `since` is in seconds since 1970. No process has taken the lock yet in this case.
    """
    return not (directory / LOCK).exists() and time.time() - since < _START_SECONDS


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of `directory`."""
    try:
        # Opening it for reading also works without write access.
        lock = os.open(directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
