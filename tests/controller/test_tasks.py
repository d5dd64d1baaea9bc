"""Keyed tasks: what is foreseen ends one of them, not all, however deep it was raised."""

from __future__ import annotations

import asyncio

from transient_magics.controller.tasks import Tasks
from transient_magics.errors import RemoteError


async def test_a_foreseen_error_in_a_task_of_a_task_ends_nobody_else() -> None:
    told: list[tuple[str, str]] = []
    ended = asyncio.Event()

    async def fails() -> None:
        raise RemoteError("The channel was refused")

    async def has_tasks_of_its_own() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(fails())
            inner.create_task(asyncio.sleep(60))

    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group, lambda: None, lambda key, what: told.append((key, what)))
        tasks.do("run", has_tasks_of_its_own)
        await tasks.finished("run", 10)
        tasks.do("run", has_tasks_of_its_own)
        await tasks.finished("run", 10)
        ended.set()
    assert ended.is_set()
    assert told == [("run", "The channel was refused.")] * 2
