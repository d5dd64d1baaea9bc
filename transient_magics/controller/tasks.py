"""Work under way, keyed: asking for the same twice changes nothing, and foreseen errors end nobody
else's work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import TransientError

log = logging.getLogger(__name__)


class Tasks:
    """Keyed tasks in a task group. `failed` is told of foreseen errors; any other is a bug and ends
    all.
    """

    def __init__(
        self,
        group: asyncio.TaskGroup,
        changed: Callable[[], None],
        failed: Callable[[str, str], None],
    ) -> None:
        self._group = group
        self._changed = changed
        self._failed = failed
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._tasks

    def do(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin `work` unless something is under way under this key."""
        if key in self._tasks:
            return
        task = self._group.create_task(self._guarded(key, work), name=key)
        self._tasks[key] = task
        task.add_done_callback(lambda task: self._done(key, task))

    async def finished(self, key: str, timeout: float) -> None:
        """Wait until nothing is under way under `key`, at most `timeout` seconds."""
        if task := self._tasks.get(key):
            await asyncio.wait([task], timeout=timeout)

    def cancel(self, key: str) -> None:
        """End what is under way under `key`."""
        if task := self._tasks.get(key):
            task.cancel()

    def cancel_all(self) -> None:
        """End everything under way."""
        for task in self._tasks.values():
            task.cancel()

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:  # cancelled before it began
            del self._tasks[key]
        self._changed()

    async def _guarded(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            try:
                await work()
            finally:  # who asks from here on, before the task itself is done, means once more
                self._tasks.pop(key, None)
        except* (TransientError, OSError) as group:  # as work that has tasks of its own raises them
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            log.warning("%s: %s", key, error)
            self._failed(key, str(error))
