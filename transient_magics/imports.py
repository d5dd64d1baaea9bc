"""Imports of a program that starts."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def uncollected() -> Generator[None]:
    """Let no garbage collector go through what is imported: nothing of that is ever thrown away.

    It takes up to a quarter of their time. What is there at the end is not looked through later either, and so stays
    shared with a process that was forked from this one.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.freeze()
            gc.enable()
