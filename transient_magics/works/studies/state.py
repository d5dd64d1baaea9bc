"""The state of studies from the events of a journal: trials, their ends, and the best one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...journal.work import Work
from ...protocol.run import Value
from .spec import StudySpec


@dataclass(frozen=True, slots=True)
class TrialState:
    """One trial, with times in seconds since 1970.

    `state` is running (asked, without a result), complete, pruned, failed, or stopped.
    """

    number: int
    params: Mapping[str, Value]
    runs: tuple[str, ...]
    asked_at: float = 0.0
    state: str = "running"
    value: float | None = None
    """The value of the study's objective; for a pruned trial its last one."""
    reason: str = ""
    """Why it has no value, or was ended: a clause."""
    ended_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether the trial has ended."""
        return self.state != "running"


@dataclass(frozen=True, slots=True)
class StudyState(Work[StudySpec]):
    """One study. `planned` is the number of its trials, including extensions.

    A study that ends before all of them is stopped.
    """

    kind = "study"
    trains = True
    takes_workers = False

    planned: int = field(kw_only=True)
    trials: Mapping[int, TrialState] = field(default_factory=dict[int, TrialState])
    requests: frozenset[str] = frozenset()
    """The requests that extended the study."""

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the runs of all trials."""
        return tuple(run for trial in self.trials.values() for run in trial.runs)

    @property
    def owns_cluster(self) -> bool:
        """Whether its cluster was made only for it, and ends with it."""
        return self.spec.alone

    @property
    def stopping(self) -> bool:
        """Whether it starts no further trial; it is over once running trials have ended, too."""
        return self.stopping_at > 0

    @property
    def running(self) -> list[TrialState]:
        """The trials that have not ended."""
        return [trial for trial in self.trials.values() if not trial.ended]

    @property
    def best(self) -> TrialState | None:
        """The first of the best complete trials."""
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
