"""What the events of a journal add up to, of studies: their trials, how each ended, and which one
is the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...journal.work import Work
from ...protocol.run import Value
from .spec import StudySpec


@dataclass(frozen=True, slots=True)
class TrialState:
    """One trial. `state`: running (asked, not told), complete, pruned, failed, stopped. Times in
    seconds since 1970.
    """

    number: int
    params: Mapping[str, Value]
    runs: tuple[str, ...]
    asked_at: float = 0.0
    state: str = "running"
    value: float | None = None
    """Of the study's objective; of one that was pruned its last one."""
    reason: str = ""
    """Why it has no value, or was ended, a clause."""
    told_at: float = 0.0

    @property
    def told(self) -> bool:
        """Whether it has ended."""
        return self.state != "running"


@dataclass(frozen=True, slots=True)
class StudyState(Work[StudySpec]):
    """One study. `wanted`: the number of its trials, with those by which it was extended.

    It is stopped where it ended before all of them.
    """

    kind = "study"
    trains = True
    leases = False

    wanted: int = field(kw_only=True)
    trials: Mapping[int, TrialState] = field(default_factory=dict[int, TrialState])
    requests: frozenset[str] = frozenset()
    """By which it was extended."""

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the runs of all trials."""
        return tuple(run for trial in self.trials.values() for run in trial.runs)

    @property
    def has_cluster_alone(self) -> bool:
        """Whether its cluster was made for it alone, and ends with it."""
        return self.spec.alone

    @property
    def stopping(self) -> bool:
        """Whether it asks for no further trial. It is over once its trials have ended, too."""
        return self.stopping_at > 0

    @property
    def running(self) -> list[TrialState]:
        """The trials that have not ended."""
        return [trial for trial in self.trials.values() if not trial.told]

    @property
    def best(self) -> TrialState | None:
        """The first of the complete trials that no other is better than."""
        found = None
        for trial in self.trials.values():
            if trial.state != "complete" or trial.value is None or math.isnan(trial.value):
                continue
            if (
                found is None
                or found.value is None
                or self.spec.goal.better(trial.value, found.value)
            ):
                found = trial
        return found
