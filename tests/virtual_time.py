"""An event loop whose clock jumps to the next timer instead of waiting for it, for tests of timeouts."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """A selector that counts the seconds for which it is asked to wait, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # There is no timer: only a file or a thread can wake the loop.
            return super().select()
        ready = super().select(0)
        if not ready:
            self.seconds += max(timeout, 0.0)
        return ready


class _VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in a loop whose time begins at 0 and passes only while every task waits for a timer."""
    with asyncio.Runner(loop_factory=_VirtualTimeLoop) as runner:
        return runner.run(main)
