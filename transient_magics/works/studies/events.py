"""The events of studies, which the controller records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from ...protocol.checks import Count, Name, NameOrNone, at_least
from ...protocol.events import FACT, INTENTION, Event, event
from ...protocol.literals import CheckedValue, all_as_json


@event("study.asked", INTENTION)
class StudyAsked(Event):
    """The study's next trial: its number, from 0 on, the values of its parameters, and the runs
    that train it.
    """

    study: Name
    trial: Count
    params: Mapping[str, CheckedValue]
    runs: tuple[Name, ...]

    @property
    def values(self) -> Mapping[str, object]:
        return {**super().values, "params": all_as_json(self.params)}


@event("study.told", FACT)
class StudyTold(Event):
    """How a trial ended. `value` is that of the study's objective, of several runs their mean;
    None: there is none.

    A trial whose runs were stopped by the user is `stopped`, one that the pruner ended `pruned`.
    `reason`: why it has no value, a clause.
    """

    study: Name
    trial: Count
    state: Literal["complete", "pruned", "failed", "stopped"]
    value: float | None = None
    reason: str = ""


@event("study.extended", INTENTION)
class StudyExtended(Event):
    """The user wants so many `trials` more, also of a study that had ended; asked for by `request`."""

    study: Name
    trials: Annotated[int, at_least(1)]
    request: NameOrNone = ""
