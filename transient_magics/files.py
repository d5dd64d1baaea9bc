"""Files that other processes read, lock and connect to: replaced whole, locked while a process
lives, for one user.

Standard library only: VMs have this module, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool = True, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` at the end of the block; after an error
    nothing has changed.

    A reader sees the old content or the new one, never a part; with `durable` so does whoever reads
    after the machine lost its power.
    """
    beside = path.with_name(
        f".{path.name}-{secrets.token_hex(4)}.{os.getpid()}"
    )  # threads have one process id
    try:
        with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_atomically(
    path: Path, content: str | bytes, *, durable: bool = True, mode: int = 0o600
) -> None:
    """Replace `path` by `content`, as `replacing` does."""
    with replacing(path, durable=durable, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def lock(path: Path) -> int | None:
    """Lock the file, made where it is missing, and return its descriptor; None where another
    process has locked it.

    The lock is held until the descriptor is closed, at the latest by the end of the process and of
    those it forked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def private_sockets() -> Iterator[None]:
    """What is bound in the block, this user alone can connect to. Of the whole process: bind, and
    leave.
    """
    mask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(mask)
