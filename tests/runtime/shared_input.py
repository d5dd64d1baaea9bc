"""A server in this process, and trials that take its mini-batches at their own pace. Prints what each had.

A program of its own, because TensorFlow is not imported into the process of the tests, and listens on every interface.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.preparation import __main__ as preparation
from transient_magics.runtime.role import Role
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.examples import iterator_of, shared
from transient_magics.runtime.training.trainable import Pipeline

STEPS, BATCH = 40, 4


def role(folder: Path) -> Role:
    """What a process on a VM is given."""
    folder.mkdir(exist_ok=True)
    given = SimpleNamespace(address="127.0.0.1", role="input", name="input", run="s-input")
    return cast(Role, SimpleNamespace(folder=RunFolder(folder), assignment=given))


class Trial:
    """One that takes mini-batches of numbers in their order."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        tf = tensorflow()
        graph = tf.Graph()
        with graph.as_default():
            numbers = tf.data.Dataset.range(10**6).map(lambda number: {"number": number})
            pipeline = Pipeline(numbers, {"number": tf.int64}, {"number": ()}, batched=False)
            iterator = iterator_of(
                shared(pipeline, folder.input_address.read_text(encoding="utf-8"), "s", name, BATCH).dataset
            )
            self._next = iterator.get_next()["number"]
        self._session = tf.Session(graph=graph)
        self._session.run(iterator.initializer)
        self.had: list[int] = []

    def take(self, count: int) -> None:
        for _ in range(count):
            batch = self._session.run(self._next)
            assert list(batch) == list(range(batch[0], batch[0] + BATCH))
            self.had.append(int(batch[0]) // BATCH)


def main(folder: Path) -> None:
    given = role(folder)
    servers: list[Any] = preparation.shared(given)
    first, second = Trial(given.folder, "s-0"), Trial(given.folder, "s-1")
    both = [threading.Thread(target=trial.take, args=(STEPS,)) for trial in (first, second)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    first.take(STEPS)  # the second takes none any more
    third = Trial(given.folder, "s-2")
    third.take(STEPS)
    again = Trial(given.folder, "s-0")  # its process was started again
    again.take(2)
    trials = {"first": first, "second": second, "third": third, "again": again}
    print(json.dumps({name: trial.had for name, trial in trials.items()}))
    del servers
    sys.stdout.flush()
    os._exit(0)  # servers wait for their clients


if __name__ == "__main__":
    main(Path(sys.argv[1]))
