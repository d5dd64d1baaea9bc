"""How a worker's steps meet those of others: its turn in a synchronous step, and the variables of a
lone worker.

The chief ends the rounds (parameter_server/variables.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...protocol.measures.step_parts import StepParts
from ...protocol.run import RunSpec
from ..role import log
from ..tf.graph_mode import tensorflow
from ..training.graph.worker import WorkerGraph
from ..training.step_rules import PollSchedule
from .meter import moments, parts

_LEAST_SECONDS = 1.0
_SHARE = 0.05
"""Of the worker's time, at most, that goes into handing over."""


@dataclass(frozen=True)
class Made:
    """What a step came to, and what its computing and pushing took. `waited` are the seconds at the
    barrier; `counted`: the gradient is part of the step.
    """

    loss: float
    before: int
    after: int
    examples: int
    waited: float
    counted: bool
    parts: StepParts


class Turn:
    """A worker's part in the rounds: push once in each, then wait for the next."""

    def __init__(
        self, built: WorkerGraph, stop: threading.Event, alive: Callable[[], None]
    ) -> None:
        self._built = built
        self._stop = stop
        self._alive = alive
        self._session: Any = None
        self._look: Any = None
        self._position = 0, 0
        self._looks = PollSchedule()
        self._computing = 0.0

    def take(
        self, session: Any, feeds: Mapping[Any, Any], pace: float = 0.0, **tracing: Any
    ) -> Made:
        """Compute and push one gradient in `pace` seconds at least, and wait until its round is
        over or `stop` is set.

        An emulated accelerator pushes at the end of its step, so what its step takes longer than
        ours comes first; otherwise nobody would ever be seen waiting for the slow ones. `tracing`:
        with what TensorFlow runs the step.
        """
        built = self._built
        if session is not self._session:
            self._session = session
            self._look = session.make_callable([built.current_round, built.current_step])
            self._position = self._look()
        number, before = self._position
        fetches = [built.loss, built.examples, built.seen, moments(built), built.step]
        self._stop.wait(max(0.0, pace - self._computing))
        began = time.monotonic()
        clock = time.time()
        loss, examples, seen, moved, _ = session.run(
            fetches, {**feeds, built.round: number}, **tracing
        )
        pushed = time.monotonic()
        split = parts(clock, moved, time.time())
        if tracing:
            self._computing = self._computing
        else:
            self._computing = pushed - began
        waited = 0.0
        while self._position[0] == number and not self._stop.wait(self._looks.pause(waited)):
            self._position = self._look()
            self._alive()
            waited = time.monotonic() - pushed
        self._looks.happened(waited)
        after = self._position[1]
        # A round that ended without a step was lost with a parameter server.
        return Made(loss, before, after, examples, waited, seen == number and after > before, split)


# A worker that trains alone hands its variables over: after a second, at an evaluation, and before
# it leaves.
#
# What it made since is lost with it where it goes without a notice. Handing over takes a twentieth
# of its time at most, so that large variables over a slow link are handed over more rarely.


class LocalVariables:
    """The copies of one worker, in its session."""

    def __init__(self, built: WorkerGraph, spec: RunSpec, number: int) -> None:
        self._built = built
        self._spec = spec
        self._feeds = {built.number: number}
        self._step = 0
        self._due = 0.0

    def pull(self, session: Any) -> None:
        """Take the place, and the variables as they are at home."""
        session.run(self._built.pull, self._feeds)
        self._step = int(session.run(self._built.before))
        self._due = time.monotonic() + _LEAST_SECONDS

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
        self._step = step
        self._due = ended + max(_LEAST_SECONDS, (ended - began) / _SHARE)
        return True
