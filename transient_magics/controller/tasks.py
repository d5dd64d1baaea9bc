"""Keyed tasks: starting one twice changes nothing, and expected errors end only their task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ..errors import TransientError

log = logging.getLogger(__name__)


class Tasks:
    """Keyed tasks in a task group.

    `failed` receives expected errors; any other error is a bug and ends all tasks.
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

    def do(self, key: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start `work` unless a task with this key is in flight."""
        if key in self._tasks:
            return
        task = self._group.create_task(self._guarded(key, work), name=key)
        self._tasks[key] = task
        task.add_done_callback(lambda task: self._done(key, task))

    async def finished(self, key: str, timeout: float) -> None:
        """Wait until no task with this key is in flight, at most `timeout` seconds."""
        if task := self._tasks.get(key):
            await asyncio.wait([task], timeout=timeout)

    def cancel(self, key: str) -> None:
        """Cancel the task with this key."""
        if task := self._tasks.get(key):
            task.cancel()

    def cancel_all(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks.values():
            task.cancel()

    def _done(self, key: str, task: asyncio.Task[None]) -> None:
        # The task was cancelled before it began.
        if self._tasks.get(key) is task:
            del self._tasks[key]
        self._changed()

    async def _guarded(self, key: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            try:
                await work()
            finally:
                # A call from here on, before the task is done, requests another run.
                self._tasks.pop(key, None)
        except* (TransientError, OSError) as group:
            # Work that has tasks of its own raises groups.
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            log.warning("%s: %s", key, error)
            self._failed(key, str(error))
