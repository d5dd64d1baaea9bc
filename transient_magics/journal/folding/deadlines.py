"""What events of runs with deadlines do: which workers such a run has, and what is known of its
end.
"""

from __future__ import annotations

from dataclasses import replace

from .. import events as e
from ..state import ClusterState, RunState
from .rules import Rules
from .runs import with_run

rules = Rules()


@rules.of(e.DeadlineActed)
def _(state: ClusterState, event: e.DeadlineActed) -> ClusterState:
    return _known(state, event.run, acted=event, proposed=None)


@rules.of(e.DeadlineProposed)
def _(state: ClusterState, event: e.DeadlineProposed) -> ClusterState:
    return _known(state, event.run, proposed=event if event.until else None)


@rules.of(e.DeadlineOutlook)
def _(state: ClusterState, event: e.DeadlineOutlook) -> ClusterState:
    return _known(state, event.run, outlook=event)


@rules.of(e.DeadlineLate)
def _(state: ClusterState, event: e.DeadlineLate) -> ClusterState:
    return _known(state, event.run, late=None if event.again else event)


def _known(state: ClusterState, name: str, **changes: object) -> ClusterState:
    run = state.of(RunState)[name]
    if run.deadline is None:
        raise ValueError(f"{name} has no deadline")
    return with_run(state, name, deadline=replace(run.deadline, **changes))
