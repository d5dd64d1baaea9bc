"""What the events that all kinds of work have in common do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .. import events as e
from ..state import ClusterState
from ..work import Work
from . import bags, dasks, jobs, runs, studies
from .rules import Rules, declare

rules = Rules()

_BEGIN: dict[str, Callable[[str, Mapping[str, object], float], Work[object]]] = {
    "run": runs.begin,
    "study": studies.begin,
    "job": jobs.begin,
    "bag": bags.begin,
    "dask": dasks.begin,
}
"""By kind: the function that makes the first state of work from its name, declaration and time."""


@rules.of(e.WorkDeclared)
def _(state: ClusterState, event: e.WorkDeclared) -> ClusterState:
    return declare(state, _BEGIN[event.of](event.work, event.spec, event.at))
