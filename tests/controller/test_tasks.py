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


async def test_what_is_asked_for_at_the_end_of_the_same_is_done_once_more() -> None:
    """Whom the last word of a task wakes is there before the task itself counts as done."""
    begun, word = list[int](), asyncio.Event()

    async def says_a_last_word() -> None:
        begun.append(len(begun))
        await asyncio.sleep(0)
        word.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = Tasks(group, lambda: None, lambda *_: None)
        for _ in range(3):
            tasks.do("run", says_a_last_word)
            await word.wait()
            word.clear()
        tasks.do("run", says_a_last_word)
        tasks.cancel("run")
        tasks.do("run", says_a_last_word)
        await asyncio.sleep(0.01)
        tasks.do("run", says_a_last_word)
    assert begun == [0, 1, 2, 3], "and what was cancelled before it began, is begun when it is asked for again"
