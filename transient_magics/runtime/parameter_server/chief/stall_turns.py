"""Which worker takes which measure of the stalls, and when: pure, the chief sends what it says.

All measures are taken once, then all of them again, so that what changes slowly changes each alike;
every second time in reverse order. Measures of one worker alone are taken by one after the other.
Who is lost meanwhile, or does not answer, is missing in that measure; who comes meanwhile takes
part from the next one on.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....protocol.chief_messages import Take, Took
from ....protocol.measures.stalls import ALONE, MEASURES, Measure
from ....protocol.run import RunSpec
from ....protocol.vm_events import TrainMeasured

WAIT_FOR_ALL = 90.0
"""Seconds after the first worker is ready in which the others are waited for."""
_TIMES = 20.0
_AT_LEAST = 180.0
"""An answer is awaited for so many times the measure, and at least for so many seconds more: a step
may be long.
"""
_MOST_IN_VAIN = 5
_NUMBERS_APART = 1000
"""Between the turns of two chiefs of one run: a late answer to the one before is none to this one.
"""


@dataclass(frozen=True)
class _Answer:
    name: str
    told: Took


class Turns:
    """The turns of a run that measures; of `told`, its events so far, are those of a chief before
    this one.
    """

    def __init__(self, spec: RunSpec, told: Iterable[Mapping[str, Any]] = ()) -> None:
        self._run = spec.name
        self._seconds = spec.stall_seconds
        self._workers = spec.workers
        taken = {
            (each["repeat"], each["measure"]) for each in told if each["kind"] == TrainMeasured.kind
        }
        self._left = [each for each in planned(spec.stalls) if each not in taken]
        self._of = len(self._left) + len(taken)
        self._turn = _NUMBERS_APART * len(taken)
        self._waiting: list[int] = []
        """Workers that are still to take the measure by themselves."""
        self._awaited: set[int] = set()
        self._answers: list[_Answer] = []
        self._under_way = False
        self._in_vain = 0
        self._until = 0.0
        self._first: float | None = None

    @property
    def in_vain(self) -> str:
        """The measure that nobody could take, tried again and again; empty while there is none."""
        if self._in_vain >= _MOST_IN_VAIN:
            return self._left[0][1]
        return ""

    @property
    def made(self) -> int:
        """How many measures were taken."""
        return self._of - len(self._left)

    @property
    def over(self) -> bool:
        """Whether all of them were."""
        return not self._left

    def took(self, number: int, name: str, told: Took) -> None:
        """The worker with this number answers; to another turn than the one under way: it comes too
        late.
        """
        if told.turn == self._turn and number in self._awaited:
            self._awaited.discard(number)
            self._answers.append(_Answer(name, told))

    def look(
        self, able: Collection[int], now: float
    ) -> tuple[Mapping[int, Take], TrainMeasured | None]:
        """What is sent to which worker of those that are `able` to take a measure, and which one is
        over.
        """
        if self.over or not self._begun(able, now):
            return {}, None
        self._awaited &= set(able) if now < self._until else set()
        self._waiting = [each for each in self._waiting if each in able]
        if self._awaited:
            return {}, None
        measured = None
        if self._under_way and not self._waiting:
            self._under_way, measured = False, self._measured()
            if measured:
                self._in_vain = 0
            else:
                self._in_vain = self._in_vain + 1
            if measured:
                self._left.pop(0)
        if self._under_way:
            return self._take({self._waiting.pop(0)}, now), None
        if self.over or self.in_vain or not able:
            return {}, measured
        self._under_way = True
        self._answers = []
        everybody = sorted(able)
        alone = self._left[0][1] in ALONE
        if alone:
            self._waiting = everybody[1:]
        else:
            self._waiting = []
        return self._take(set(everybody[:1] if alone else everybody), now), measured

    def _begun(self, able: Collection[int], now: float) -> bool:
        if self._first is None and able:
            self._first = now
        return self._first is not None and (
            len(able) >= self._workers or now - self._first >= WAIT_FOR_ALL
        )

    def _take(self, numbers: set[int], now: float) -> Mapping[int, Take]:
        self._turn += 1
        self._awaited = set(numbers)
        self._until = now + _TIMES * self._seconds + _AT_LEAST
        take = Take(turn=self._turn, measure=self._left[0][1], seconds=self._seconds)
        return dict.fromkeys(numbers, take)

    def _measured(self) -> TrainMeasured | None:
        """The measure under way, from its answers; None where nobody could take it."""
        told = {answer.name: answer.told for answer in self._answers if answer.told.seconds}
        if not told:
            return None
        repeat, measure = self._left[0]
        return TrainMeasured(
            run=self._run,
            measure=measure,
            repeat=repeat,
            seconds={name: round(statistics.fmean(each.seconds), 7) for name, each in told.items()},
            steps={name: len(each.seconds) for name, each in told.items()},
            straggler=0.0
            if measure in ALONE
            else round(straggler([each.seconds for each in told.values()]), 7),
            examples=max(each.examples for each in told.values()),
            bytes=max(each.bytes for each in told.values()),
        )


def planned(repeats: int) -> Iterable[tuple[int, Measure]]:
    """Each repeat (from 1 on) with each measure, in the order in which they are taken."""
    for repeat in range(1, repeats + 1):
        for measure in MEASURES if repeat % 2 else reversed(MEASURES):
            yield repeat, measure


def straggler(steps: Sequence[Sequence[float]]) -> float:
    """The seconds by which the slowest worker of a step is later than the mean one, in the mean
    over the steps.

    `steps` has those of each worker; only as many are compared as the one with the fewest has.
    """
    together = list(zip(*steps, strict=False))
    if len(steps) < 2 or not together:
        return 0.0
    return statistics.fmean(max(each) - statistics.fmean(each) for each in together)
