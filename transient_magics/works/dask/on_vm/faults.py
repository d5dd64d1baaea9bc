"""Whose fault it is that a worker is gone: pure.

A scheduler sees a worker go and cannot know why: its VM may have been taken, or a task may have
crashed it. So what was in hand then is remembered, and counts only once the VM, which lives, tells
that the process crashed. No word comes from a VM that was taken. Dask's own count knows no
difference and is not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable

_MOST_REMEMBERED = 1000


class Faults:
    """How often each task was in hand where a worker crashed. More than `allowed` times, and it has
    failed.
    """

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self._in_hand: dict[str, frozenset[Hashable]] = {}
        self._told: set[tuple[str, int]] = set()
        self._causes: dict[Hashable, Counter[str]] = {}

    def gone(self, worker: str, in_hand: Collection[Hashable]) -> None:
        """The worker at that address is gone, without a word, and had these tasks in hand."""
        self._in_hand[worker] = frozenset(in_hand)
        while len(self._in_hand) > _MOST_REMEMBERED:
            del self._in_hand[next(iter(self._in_hand))]

    def crashed(self, worker: str, process: int, cause: str) -> dict[Hashable, str]:
        """Its VM says that it crashed. The tasks that have failed by now, each with the causes of
        all its crashes.

        To be told twice of a process is to be told once.
        """
        if (worker, process) in self._told:
            return {}
        self._told.add((worker, process))
        failed: dict[Hashable, str] = {}
        for task in self._in_hand.pop(worker, ()):
            causes = self._causes.setdefault(task, Counter())
            causes[cause] += 1
            if causes.total() > self.allowed:
                failed[task] = ", ".join(
                    f"{count} x {why}" for why, count in sorted(causes.items())
                )
        return failed

    def failed(self, task: Hashable) -> None:
        """The task was let fail; where it is tried again, it begins anew."""
        self._causes.pop(task, None)
