"""Python generators as data of `model.fit`: read once, and kept for further passes.

Each process of a run executes the cell, so each has a generator of its own, with random numbers of
its own. Workers begin at different places among the first elements (reading.py), and read on from
there as Keras does.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

from ....errors import TrainingError

MOST_BYTES = 1 << 30
"""Size of the elements that one process keeps."""
_END = object()


class Replayed:
    """A function that returns an iterator over the elements of a generator, any number of times.

    Elements are kept as they are read, up to `MOST_BYTES`. Later ones go to the pass that reads
    them first.
    """

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements = elements
        self._kept: list[Any] = []
        self._bytes = 0
        self._ended = False
        self._full = False
        self._lock = threading.Lock()

    def __call__(self) -> Iterator[Any]:
        """Iterate from the first element on.

        Raises TrainingError for a pass over elements that were not kept.
        """
        number = 0
        again = self._ended
        while True:
            with self._lock:
                element = self._element(number)
            if element is _END:
                break
            yield element
            number += 1
        if again and self._full:
            raise TrainingError(
                f"the generator of model.fit has ended, and only its first {number} batches could "
                f"be kept ({MOST_BYTES >> 30} GiB)",
                fix="Make a keras.utils.PyDataset or a tf.data.Dataset of its examples.",
            )

    def count(self) -> int:
        """Return the number of elements; 0 if they are more than can be kept."""
        for _ in self():
            if self._full:
                return 0
        return len(self._kept)

    def _element(self, number: int) -> Any:
        if number < len(self._kept):
            return self._kept[number]
        if self._ended:
            return _END
        element = next(self._elements, _END)
        if element is _END:
            self._ended = True
        elif not self._full:
            self._kept.append(element)
            arrays = importlib.import_module("keras").tree.flatten(element)
            self._bytes += sum(getattr(array, "nbytes", 0) for array in arrays)
            self._full = self._bytes > MOST_BYTES
        return element
