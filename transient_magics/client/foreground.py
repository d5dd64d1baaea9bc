"""What stands for a cluster where there is room for one run: that run, and its studies.

The runs of a study stand in its table and nowhere else. A panel, the status in a terminal and the forecast go by the
same choice.
"""

from __future__ import annotations

from ..journal import ClusterState, DaskState, JobState, RunState, StudyState
from ..journal.bags.state import DeclaredBag


def jobs(state: ClusterState) -> list[JobState]:
    """The jobs that go on, and the latest one."""
    latest = state.works.latest(JobState)
    return [job for job in state.of(JobState).values() if not job.over or job is latest]


def bags(state: ClusterState) -> list[DeclaredBag]:
    """The bags that go on, and the latest one."""
    latest = state.works.latest(DeclaredBag)
    return [bag for bag in state.of(DeclaredBag).values() if not bag.over or bag is latest]


def dasks(state: ClusterState) -> list[DaskState]:
    """The Dask clusters that go on, and the latest one; without those of bags."""
    own = [dask for dask in state.of(DaskState).values() if not dask.spec.bag]
    return [dask for dask in own if not dask.over or dask is own[-1]]


def studies(state: ClusterState) -> list[StudyState]:
    """The studies that go on; where none does, the latest one, unless a run of no study was declared after it."""
    going = [study for study in state.of(StudyState).values() if not study.over and not state.over]
    if going or not state.of(StudyState):
        return going
    latest = max(state.of(StudyState).values(), key=lambda study: study.declared_at)
    alone = max((run.declared_at for run in _alone(state)), default=0.0)
    return [latest] if latest.declared_at >= alone else []


def run(state: ClusterState) -> RunState | None:
    """The run of no study that goes on, or is the next to; where there is a study to show, none; else the latest."""
    alone = _alone(state)
    names = {each.name for each in alone}
    turns = [each for each in state.turns if each.name in names]
    if turns:
        return next((each for each in turns if state.has_begun(each)), turns[0])
    return alone[-1] if alone and not studies(state) else None


def beside(state: ClusterState) -> list[RunState]:
    """The other runs of no study that go on or wait, in the order in which they begin."""
    first, alone = run(state), {each.name for each in _alone(state)}
    return [each for each in state.turns if each.name in alone and (first is None or each.name != first.name)]


def _alone(state: ClusterState) -> list[RunState]:
    studies = state.of(StudyState)
    return [each for each in state.of(RunState).values() if each.spec.study not in studies]
