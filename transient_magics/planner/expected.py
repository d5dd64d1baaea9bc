"""Whether a run is as fast as earlier runs of its model lead to expect on its machines, and if not, what holds it up.

The alarm beside the chief compares a run with its own past, so that it does not see what was slow from the first step
on. Here it is compared with what the planner predicts for the same workers and parameter servers from runs that were
measured. A prediction whose error is a guess says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..journal.metrics import SERVER_SHARE
from ..protocol.measures.step_parts import StepParts, step_parts
from .choices import Choice
from .speeds.workloads import Workload

_NORMAL = 1.645
"""Standard deviations to either end of the middle 90 %."""
_WELL_BELOW = 0.5
"""Of what servers are said to take: up to there it does not matter how far off that is."""
_BUSY = 0.85
"""The share of its cores from which on a parameter server counts as the cause."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Steps per second of a cluster as measured runs tell, with the ends of the 90 % interval."""

    speed: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Behind:
    """A run makes `speed` steps per second where more were `expected`; `why` is a clause."""

    speed: float
    expected: Expected
    why: str

    def __str__(self) -> str:
        low, high = self.expected.low, self.expected.high
        return (
            f"it makes {self.speed:.3g} steps/s where earlier runs lead to expect {self.expected.speed:.3g} "
            f"({low:.3g} to {high:.3g}): {self.why}"
        )


def expected(workload: Workload, choice: Choice) -> Expected | None:
    """What the workers of `choice` reach together; None where how far off that may be was not measured."""
    known = all((step := workload.compute.get(choice.kind(group))) and step.measured for group in choice.groups)
    if workload.synchronous or workload.guess or choice.far() or not known:
        return None
    if not workload.limit_measured and choice.load(workload) > _WELL_BELOW:
        return None
    speed = choice.steps_per_second(workload)
    of_steps = max(choice.step(workload, group).error for group in choice.placed)
    wide = math.exp(_NORMAL * math.hypot(workload.speed_error, of_steps, choice.speed_error(workload)))
    return Expected(speed, speed / wide, speed * wide)


def behind(
    workload: Workload, choice: Choice, speed: float, below: float, rows: Iterable[Mapping[str, Any]] = ()
) -> Behind | None:
    """Where `speed` (steps per second) is outside of the interval and `below` that share of what is expected.

    `rows`: the run's metrics in that time, which tell why.
    """
    wanted = expected(workload, choice)
    if wanted is None or speed >= min(wanted.low, below * wanted.speed):
        return None
    return Behind(speed, wanted, _why(choice, speed / (below * wanted.speed), list(rows)))


def _why(choice: Choice, share: float, rows: list[Mapping[str, Any]]) -> str:
    """What takes so much of a step that without it the speed, now that `share` of the least, would do."""
    parts = StepParts()
    for row in rows:
        parts = parts.plus(step_parts(row.get("split")) or StepParts())
    whole = parts.step or 1.0
    if share >= 1 - parts.input / whole:
        return f"workers wait for their examples for {parts.input / whole:.0%} of their time"
    shares = [float(row[SERVER_SHARE]) for row in rows if row.get(SERVER_SHARE) is not None]
    if shares and sum(shares) / len(shares) >= _BUSY:
        return f"the parameter server has no CPU to spare; --ps {max(choice.servers, 1) + 1} would help"
    if share >= 1 - (parts.pull + parts.push) / whole:
        return f"variables and gradients are on their way for {(parts.pull + parts.push) / whole:.0%} of a step"
    return "its workers compute slower than those did"
