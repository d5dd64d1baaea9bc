"""Files that other processes use: replaced atomically, locks, and sockets for one user.

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
    """Open a file that replaces `path` at the end of the block.

    A reader sees the old content or the new one, never a part. After an error nothing has changed.

    Parameters
    ----------
    path
        The file to replace.
    durable
        Whether this also holds after a power failure.
    mode
        The mode of the new file.

    Yields
    ------
    BinaryIO
        The new file.
    """
    # Threads have one process id, so the name has a random part, too.
    beside = path.with_name(f".{path.name}-{secrets.token_hex(4)}.{os.getpid()}")
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
    """Lock a file and return its descriptor; None if another process has locked it.

    A missing file is created. The lock ends when the descriptor is closed: at the latest when this
    process and those that it forked have ended.
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
    """Let only this user connect to sockets that are bound in the block.

    This changes the umask of the whole process, so the block should do nothing else.
    """
    mask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(mask)
