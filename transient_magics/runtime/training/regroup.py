"""Mini-batches of any size out of batches that somebody else has made (text: Tensor2Tensor's, by length and tokens).

A batch of the declared size has as many rows as belong together: of long sentences few, of short ones many. A
mini-batch of half that size is half of one, a mini-batch of twice that size is two with the same number of rows, whose
lengths are alike. What is left of a batch begins the next mini-batch, so no example is lost. Whole rows are not always
the exact part; what is missing is made up for by the next mini-batch of that kind. Pure NumPy.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

Batch = Mapping[str, Any]
"""Arrays by the feature's name, all with one row for each example; a number stands for the whole batch."""
AHEAD = 4
"""Mini-batches that are kept ready."""


class _Kind:
    """Batches with the same number of rows. `since` is the number of the oldest that is not used up."""

    def __init__(self, rows: int) -> None:
        self._whole, self._owed = rows, 0.0
        self._parts: deque[tuple[int, Batch]] = deque()
        self.rows = 0

    @property
    def since(self) -> int:
        return self._parts[0][0]

    def add(self, number: int, batch: Batch) -> None:
        self._parts.append((number, batch))
        self.rows += self._whole

    def wanted(self, part: float) -> int:
        """The rows of `part` of a batch."""
        return max(1, int(self._whole * part + self._owed + 1e-9))

    def take(self, part: float) -> Batch:
        wanted = missing = self.wanted(part)
        self._owed = max(0.0, self._whole * part + self._owed - wanted)
        taken: list[Batch] = []
        while missing:
            number, batch = self._parts.popleft()
            there = _rows(batch)
            taken.append(_cut(batch, 0, missing))
            if there > missing:
                self._parts.appendleft((number, _cut(batch, missing, there)))
            missing -= min(there, missing)
        self.rows -= wanted
        return _joined(taken)


class Regrouped:
    """Batches of the size `declared` come in, mini-batches of any size go out; two threads may share it."""

    def __init__(self, declared: int) -> None:
        self._declared, self._part = declared, 1.0
        self._kinds: dict[int, _Kind] = {}
        self._number = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def add(self, batch: Batch, wait: float = 0.0) -> bool:
        """Add a batch; while enough is there, wait for `wait` seconds at most. False if it was not added."""
        with self._changed:
            if wait and not self._changed.wait_for(lambda: self._ready() < AHEAD, wait):
                return False
            rows = _rows(batch)
            self._number += 1
            self._kinds.setdefault(rows, _Kind(rows)).add(self._number, batch)
            self._changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """No batch comes any more: a waiting thread gets this error, until `resume`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def resume(self) -> None:
        """Batches come again."""
        with self._changed:
            self._error = None

    def take(self, size: int) -> Batch:
        """A mini-batch of `size`, filled up with zeros where lengths differ; waits until there is one.

        It is of the kind whose oldest batch has waited longest. Raises the error of `fail`.
        """
        with self._changed:
            self._part = size / self._declared
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or self._ready())
            if self._error:
                raise self._error
            chosen = min((kind for kind in self._kinds.values() if self._has(kind)), key=lambda kind: kind.since)
            taken = chosen.take(self._part)
            self._changed.notify_all()
            return taken

    @property
    def added(self) -> int:
        """Batches that ever came in."""
        return self._number

    @property
    def left(self) -> int:
        """Of those, how many came in since the oldest that is not used up, with it."""
        with self._changed:
            oldest = [kind.since for kind in self._kinds.values() if kind.rows]
            return self._number - min(oldest) + 1 if oldest else 0

    def _has(self, kind: _Kind) -> bool:
        return kind.rows >= kind.wanted(self._part)

    def _ready(self) -> int:
        return sum(kind.rows // kind.wanted(self._part) for kind in self._kinds.values())


def _rows(batch: Batch) -> int:
    return next(len(array) for array in batch.values() if numpy.ndim(array))


def _cut(batch: Batch, first: int, last: int) -> Batch:
    return {name: array[first:last] if numpy.ndim(array) else array for name, array in batch.items()}


def _joined(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: _padded([part[name] for part in parts]) for name in parts[0]}


def _padded(arrays: Sequence[Any]) -> Any:
    """The rows of all arrays below each other, as long as the longest."""
    if not numpy.ndim(arrays[0]):
        return arrays[0]
    longest = numpy.max([array.shape[1:] for array in arrays], axis=0, initial=0)
    filled = [
        numpy.pad(
            array, [(0, 0), *((0, int(most) - here) for most, here in zip(longest, array.shape[1:], strict=True))]
        )
        for array in arrays
    ]
    return numpy.concatenate(filled)
