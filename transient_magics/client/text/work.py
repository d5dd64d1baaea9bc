"""Any kind of work in words: its phase, and what it does."""

from __future__ import annotations

from ...journal import ClusterState, DaskState, JobState, RunState, StudyState, Work
from ...journal.bags.state import DeclaredBag
from ...works.bags.words import bag_words
from ...works.dask.words import dask_words
from ...works.jobs.words import job_words
from .states import run_words, study_words, was_stopped


def work_phase(work: Work[object], cluster: ClusterState) -> str:
    """Return `declared`, `running`, `finished`, `failed` or `stopped` for work of a cluster in this state."""
    if cluster.over and not work.over:
        return "stopped"
    if isinstance(work, RunState) and was_stopped(work):
        return "stopped"
    return work.phase


def work_words(work: Work[object], cluster: ClusterState) -> str:
    """Return what work of a cluster in this state does, or how it ended, such as `waits for 2 workers`."""
    if isinstance(work, StudyState):
        return study_words(work, deleted=cluster.over)
    if isinstance(work, RunState):
        return run_words(work, cluster)
    if cluster.over and not work.over:
        return "ended with its cluster"
    match work:
        case JobState():
            return job_words(work)
        case DaskState():
            ready = sum(vm.state == "ready" and cluster.has(work.name, vm) for vm in cluster.living)
            return dask_words(work, ready)
        case DeclaredBag():
            return bag_words(work)
        case _:
            return work.phase
