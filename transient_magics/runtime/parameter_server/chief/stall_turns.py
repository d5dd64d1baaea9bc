"""The order in which workers take measures of stalls. Pure: the chief sends the requests.

All measures are taken once, then all of them again, every second time in reverse order. So slow
changes affect all measures alike. Measures of a single worker are taken by one after the other. A
worker that is lost or does not answer is missing in that measure, and a worker that joins takes
part from the next measure on.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....protocol.chief_messages import Take, Took
from ....protocol.run import RunSpec
from ....protocol.step_parts import ALONE, MEASURES, Measure
from ....protocol.vm_events import TrainMeasured

WAIT_FOR_ALL = 90.0
"""Time in seconds that the first ready worker waits for the others."""
_TIMES = 20.0
_AT_LEAST = 180.0
"""Time limit of an answer: this many times the measure's seconds, and these seconds more.

A step may be long.
"""
_MAX_FAILURES = 5
_NUMBERS_APART = 1000
"""Distance between the turns of two chiefs of a run, so that no late answer fits the wrong one."""


@dataclass(frozen=True)
class _Answer:
    name: str
    result: Took


class Turns:
    """The turns of a run that measures stalls.

    `events` are the run's events so far: measures that another chief of this run has reported are
    not taken again.
    """

    def __init__(self, spec: RunSpec, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._run = spec.name
        self._seconds = spec.stall_seconds
        self._workers = spec.workers
        done = {
            (event["repeat"], event["measure"])
            for event in events
            if event["kind"] == TrainMeasured.kind
        }
        self._left = [measure for measure in planned(spec.stalls) if measure not in done]
        self._total = len(self._left) + len(done)
        self._turn = _NUMBERS_APART * len(done)
        self._in_progress = False
        self._waiting: list[int] = []
        """Workers that have yet to take the current measure, one after the other."""
        self._awaited: set[int] = set()
        """Workers whose answers are awaited."""
        self._answers: list[_Answer] = []
        self._failures = 0
        """Successive attempts at the current measure without an answer."""
        self._until = 0.0
        self._first_ready: float | None = None

    @property
    def failing(self) -> str:
        """Measure that no worker could take in several attempts; "" if there is none."""
        if self._failures >= _MAX_FAILURES:
            return self._left[0][1]
        return ""

    @property
    def count(self) -> int:
        """Number of completed measures."""
        return self._total - len(self._left)

    @property
    def done(self) -> bool:
        """Whether all measures are complete."""
        return not self._left

    def add_result(self, number: int, name: str, result: Took) -> None:
        """Add the answer of worker `number`; ignore it if it belongs to an earlier turn."""
        if result.turn == self._turn and number in self._awaited:
            self._awaited.discard(number)
            self._answers.append(_Answer(name, result))

    def advance(
        self, able: Collection[int], now: float
    ) -> tuple[Mapping[int, Take], TrainMeasured | None]:
        """Return the requests to send now, by worker, and the measure that has been completed.

        `able` are the workers that can take a measure.
        """
        if self.done or not self._may_start(able, now):
            return {}, None
        if now < self._until:
            self._awaited &= set(able)
        else:
            self._awaited = set()
        self._waiting = [number for number in self._waiting if number in able]
        if self._awaited:
            return {}, None
        if self._in_progress and self._waiting:
            return self._request({self._waiting.pop(0)}, now), None
        measured = None
        if self._in_progress:
            measured = self._complete()
        if self.done or self.failing or not able:
            return {}, measured
        self._in_progress = True
        self._answers = []
        numbers = sorted(able)
        if self._left[0][1] in ALONE:
            self._waiting = numbers[1:]
            return self._request({numbers[0]}, now), measured
        self._waiting = []
        return self._request(set(numbers), now), measured

    def _may_start(self, able: Collection[int], now: float) -> bool:
        """Return whether all workers are ready, or have been waited for long enough."""
        if self._first_ready is None and able:
            self._first_ready = now
        if self._first_ready is None:
            return False
        return len(able) >= self._workers or now - self._first_ready >= WAIT_FOR_ALL

    def _request(self, numbers: set[int], now: float) -> Mapping[int, Take]:
        """Begin a turn of the current measure with these workers."""
        self._turn += 1
        self._awaited = set(numbers)
        self._until = now + _TIMES * self._seconds + _AT_LEAST
        take = Take(turn=self._turn, measure=self._left[0][1], seconds=self._seconds)
        return dict.fromkeys(numbers, take)

    def _complete(self) -> TrainMeasured | None:
        """End the current measure; return its event, or None if it has to be tried again."""
        self._in_progress = False
        measured = self._measured()
        if measured is None:
            self._failures += 1
        else:
            self._failures = 0
            self._left.pop(0)
        return measured

    def _measured(self) -> TrainMeasured | None:
        """Return the event of the current measure from its answers; None without any steps."""
        results = {answer.name: answer.result for answer in self._answers if answer.result.seconds}
        if not results:
            return None
        repeat, measure = self._left[0]
        late = 0.0
        if measure not in ALONE:
            late = straggler([result.seconds for result in results.values()])
        return TrainMeasured(
            run=self._run,
            measure=measure,
            repeat=repeat,
            seconds={
                name: round(statistics.fmean(result.seconds), 7) for name, result in results.items()
            },
            steps={name: len(result.seconds) for name, result in results.items()},
            straggler=round(late, 7),
            examples=max(result.examples for result in results.values()),
            bytes=max(result.bytes for result in results.values()),
        )


def planned(repeats: int) -> Iterable[tuple[int, Measure]]:
    """Yield each repeat (from 1) with each measure, in the order in which they are requested."""
    for repeat in range(1, repeats + 1):
        for measure in MEASURES if repeat % 2 else reversed(MEASURES):
            yield repeat, measure


def straggler(steps: Sequence[Sequence[float]]) -> float:
    """Return how much later than the mean worker the slowest one is, in seconds per step.

    `steps` has the seconds of each worker's steps. Only as many steps are compared as the worker
    with the fewest has.
    """
    together = list(zip(*steps, strict=False))
    if len(steps) < 2 or not together:
        return 0.0
    return statistics.fmean(max(step) - statistics.fmean(step) for step in together)
