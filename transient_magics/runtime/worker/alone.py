"""A worker that trains alone hands its variables over: after a second, at an evaluation, and before it leaves.

What it made since is lost with it where it goes without a notice. Handing over takes a twentieth of its time at most,
so that large variables over a slow link are handed over more rarely.
"""

from __future__ import annotations

import time
from typing import Any

from ...protocol.run import RunSpec
from ..role import log
from ..tf.graph_mode import tensorflow
from ..training.graph.worker import WorkerGraph

_LEAST_SECONDS = 1.0
_SHARE = 0.05
"""Of the worker's time, at most, that goes into handing over."""


class Copy:
    """The copies of one worker, in its session."""

    def __init__(self, built: WorkerGraph, spec: RunSpec, number: int) -> None:
        self._built, self._spec, self._feeds = built, spec, {built.number: number}
        self._step, self._due = 0, 0.0

    def pull(self, session: Any) -> None:
        """Take the place, and the variables as they are at home."""
        session.run(self._built.pull, self._feeds)
        self._step, self._due = int(session.run(self._built.before)), time.monotonic() + _LEAST_SECONDS

    def is_due(self, step: int) -> bool:
        """Whether what was made up to `step` is to be handed over now."""
        every = self._spec.eval_steps
        marked = bool(every) and step // every > self._step // every
        return marked or step >= self._spec.train_steps or time.monotonic() >= self._due

    def push(self, session: Any, step: int) -> bool:
        """Hand the variables over; False where another worker has taken the place, and nothing was."""
        began = time.monotonic()
        try:
            session.run(self._built.push, self._feeds)
        except tensorflow().errors.InvalidArgumentError:
            log("another worker has the place of this one: what it made since is dropped")
            return False
        ended = time.monotonic()
        self._step, self._due = step, ended + max(_LEAST_SECONDS, (ended - began) / _SHARE)
        return True
