"""The events of studies, which the controller records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from ...protocol.checks import Count, Name, NameOrNone, at_least
from ...protocol.events import FACT, INTENTION, Event, event
from ...protocol.literals import CheckedValue, all_as_json


@event("study.asked", INTENTION)
class StudyAsked(Event):
    """The study's next trial: its number, its parameters, and its runs.

    The number counts from 0. The parameters have their values, and the runs train the trial.
    """

    study: Name
    trial: Count
    params: Mapping[str, CheckedValue]
    runs: tuple[Name, ...]

    @property
    def values(self) -> Mapping[str, object]:
        """Return the values of the parameters."""
        return {**super().values, "params": all_as_json(self.params)}


@event("study.told", FACT)
class StudyTold(Event):
    """The end of a trial.

    `value` is that of the study's objective, the mean of several runs; None without one. A trial is
    `stopped` if the user stopped its runs, and `pruned` if the pruner ended it. `reason` is a
    clause on why it has no value.
    """

    study: Name
    trial: Count
    state: Literal["complete", "pruned", "failed", "stopped"]
    value: float | None = None
    reason: str = ""


@event("study.extended", INTENTION)
class StudyExtended(Event):
    """The user's request for `trials` more, also in a study that has ended.

    `request` identifies it.
    """

    study: Name
    trials: Annotated[int, at_least(1)]
    request: NameOrNone = ""
