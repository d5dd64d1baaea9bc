"""One step of a worker: alone, with a delayed push, or in a synchronous round; and local variables.

The loop that takes these steps is in `session.py`. The chief's process ends the rounds
(`parameter_server/variables.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...protocol.run import RunSpec
from ...protocol.step_parts import StepParts
from ..role import log
from ..tf.graph_mode import tensorflow
from ..training.graph.worker import WorkerGraph
from ..training.step_rules import PollSchedule
from .gpu import DelayedPush
from .meter import fetches, metrics, moments, parts

_LEAST_SECONDS = 1.0
_SHARE = 0.05
"""Largest share of a worker's time that goes into handing its variables over."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The values of one step, and the time that its parts took."""

    loss: float
    before: int
    """Global step that the variables had when the step read them."""
    after: int
    """Global step after the gradient was applied, or after the round."""
    examples: int
    weight: float
    """Examples, or tokens of text, that the loss is a mean over; 0 in synchronous steps."""
    parts: StepParts
    clock: float
    """Start of the computation, in seconds since 1970."""
    waited: float = 0.0
    """Seconds at the barrier."""
    metrics: Any = None
    """Its part of the training metrics, a vector; None without epochs."""
    counted: bool = True
    """False for a gradient that came too late for its round, or was lost with the round."""


class AsynchronousStep:
    """Steps whose gradients are applied as soon as they arrive."""

    def __init__(self, built: WorkerGraph, stop: threading.Event) -> None:
        self._fetches = fetches(built)
        self._delayed = DelayedPush(built, stop)

    def take(
        self, session: Any, feeds: Mapping[Any, Any], pace: float, tracing: Mapping[str, Any]
    ) -> StepResult:
        """Compute and push one gradient.

        An emulated accelerator (`pace` seconds a step, 0 for none) pushes at the end of its step.
        `tracing` has TensorFlow's arguments for a traced step: it is never paced, because
        TensorFlow traces no run in two parts.
        """
        clock = time.time()
        if pace and not tracing:
            values = self._delayed.take(session, feeds, pace)
        else:
            *values, _ = session.run(self._fetches, feeds, **tracing)
        loss, before, after, examples, weight, seen, added = values
        split = parts(clock, seen, time.time())
        return StepResult(
            loss, before, after, examples, weight, split, clock, metrics=_first(added)
        )


class SynchronousStep:
    """Steps in rounds: push one gradient in each, then wait for the next round."""

    def __init__(
        self, built: WorkerGraph, stop: threading.Event, alive: Callable[[], None]
    ) -> None:
        self._built = built
        self._stop = stop
        self._alive = alive
        self._session: Any = None
        self._read_position: Any = None
        self._position = 0, 0
        """Current round and global step, as last read from the first parameter server."""
        self._polls = PollSchedule()
        self._computing = 0.0

    def take(
        self, session: Any, feeds: Mapping[Any, Any], pace: float, tracing: Mapping[str, Any]
    ) -> StepResult:
        """Compute and push one gradient, then wait until its round has ended or `stop` is set.

        A step lasts at least `pace` seconds. An emulated accelerator would push at the end of that
        time, so the rest of its pace is waited for before the computation. Otherwise the other
        workers would never wait for a slow accelerator. `tracing` has TensorFlow's arguments for a
        traced step.
        """
        built = self._built
        if session is not self._session:
            self._session = session
            self._read_position = session.make_callable([built.current_round, built.current_step])
            self._position = self._read_position()
        number, before = self._position
        fetched = [built.loss, built.examples, built.seen, moments(built), metrics(built)]
        self._stop.wait(max(0.0, pace - self._computing))
        began = time.monotonic()
        clock = time.time()
        loss, examples, seen, moved, added, _ = session.run(
            [*fetched, built.step], {**feeds, built.round: number}, **tracing
        )
        pushed = time.monotonic()
        split = parts(clock, moved, time.time())
        if not tracing:
            self._computing = pushed - began
        waited = 0.0
        while self._position[0] == number and not self._stop.wait(self._polls.pause(waited)):
            self._position = self._read_position()
            self._alive()
            waited = time.monotonic() - pushed
        self._polls.happened(waited)
        after = self._position[1]
        # A round that ended without a step was lost with a parameter server.
        counted = seen == number and after > before
        return StepResult(
            loss, before, after, examples, 0.0, split, clock, waited, _first(added), counted
        )


def _first(added: Sequence[Any]) -> Any:
    return added[0] if added else None


class LocalVariables:
    """The variables of a run's only worker, which it keeps in its own process.

    The worker hands them over to the parameter servers after a second, at an evaluation and before
    it leaves. Steps since then are lost if it leaves without a notice. Handing over takes at most a
    twentieth of its time, so large variables over a slow link are handed over less often.
    """

    def __init__(self, built: WorkerGraph, spec: RunSpec, number: int) -> None:
        self._built = built
        self._spec = spec
        self._feeds = {built.number: number}
        self._step = 0
        self._due = 0.0

    def pull(self, session: Any) -> None:
        """Become the worker whose variables count, and copy those of the parameter servers."""
        session.run(self._built.pull, self._feeds)
        self._step = int(session.run(self._built.before))
        self._due = time.monotonic() + _LEAST_SECONDS

    def is_due(self, step: int) -> bool:
        """Return whether the variables of `step` are handed over now."""
        every = self._spec.eval_steps
        begin = self._spec.phase_begin
        before = self._step - begin
        at_evaluation = bool(every) and (step - begin) // every > before // every
        return at_evaluation or step >= self._spec.train_steps or time.monotonic() >= self._due

    def push(self, session: Any, step: int) -> bool:
        """Hand the variables over; return False, and change nothing, if another worker counts."""
        began = time.monotonic()
        try:
            session.run(self._built.push, self._feeds)
        except tensorflow().errors.InvalidArgumentError:
            log("another worker has replaced this one: its steps since the last push are dropped")
            return False
        ended = time.monotonic()
        self._step = step
        self._due = ended + max(_LEAST_SECONDS, (ended - began) / _SHARE)
        return True
