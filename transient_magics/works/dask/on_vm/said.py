"""What the jobs of a bag print in a worker, and what they start does: the last of it, in a file.

A file outlives a process that crashes, so its successor can say what the one before printed last.
The worker's agent keeps it short meanwhile (`shorten`): a job may print more than a disk holds.
"""

# pyright: basic
# (Dask's own annotations are incomplete.)

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ....protocol.bag.events import MOST_SAID

NAME = "said.log"
_MOST_BYTES = 16 * 2**20
_ENOUGH = 8 * MOST_SAID
"""Bytes in which so many characters are, and a line that is cut."""


def take_over(folder: Path) -> None:
    """From now on what this process and its children print goes into the folder's file; Dask's own
    log does not.
    """
    log = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8")
    for handler in logging.getLogger("distributed").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(log)
    file = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False, encoding="utf-8")
    sys.stderr = sys.stdout


def begin(folder: Path) -> None:
    """Another attempt begins: what was printed before is not its own."""
    path = folder / NAME
    if path.exists():
        os.truncate(path, 0)


def last(folder: Path) -> str:
    """The last that was printed, whole lines where there are any; at most `MOST_SAID` characters."""
    try:
        end = _end(folder / NAME, _ENOUGH)
    except OSError:
        return ""
    text = end.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if len(text) <= MOST_SAID:
        return text
    text = text[-MOST_SAID:]
    return text.partition("\n")[2] or text


def shorten(folder: Path) -> None:
    """Keep the end alone of a file that has become large. Those who append to it go on behind that."""
    path = folder / NAME
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        end = _end(path, _ENOUGH)
        with path.open("ab") as file:
            file.truncate(0)
            file.write(end)


def _end(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
        return file.read(most)
