"""The jobs of a panel: what each does and on which VMs, since when what is kept of it, and what it has cost. And its
Dask clusters, which are told of likewise."""

from __future__ import annotations

from collections.abc import Mapping

from ...client import foreground, text
from ...journal import ClusterState, Cost, DaskState, JobState
from .contract import JobLine

MOST_JOBS = 12


def job_lines(state: ClusterState, by_name: Mapping[str, Cost]) -> list[JobLine]:
    """A line for each job that runs, and the latest one; of many for the first ones, and a last line that counts.

    `by_name`: the costs of the cluster's work.
    """
    jobs = sorted(foreground.jobs(state), key=lambda job: not job.vms)
    lines = [_line(job, by_name[job.name], over=state.over) for job in jobs[:MOST_JOBS]]
    if len(jobs) > MOST_JOBS:
        more = text.count(len(jobs) - MOST_JOBS, "more job")
        lines.append({"name": "", "phase": "declared", "words": f"and {more}"})
    return lines


def dask_lines(state: ClusterState, by_name: Mapping[str, Cost]) -> list[JobLine]:
    """A line for each Dask cluster that goes on, and the latest one: its workers, its cost, where its dashboard is."""
    return [_dask_line(state, dask, by_name[dask.name]) for dask in foreground.dasks(state)]


def _dask_line(state: ClusterState, dask: DaskState, cost: Cost) -> JobLine:
    there = sum(vm.state == "ready" and state.has(dask.name, vm) for vm in state.living)
    words = "ended with its cluster" if state.over and not dask.over else text.dask_words(dask, there)
    seen = dask.phase == "running" and dask.serving and dask.serving.dashboard and not state.over
    dashboard = "; its dashboard: dask.client.dashboard_link" if seen else ""
    return {"name": dask.name, "phase": dask.phase, "words": f"{words}{text.work_cost(cost)}{dashboard}"}


def _line(job: JobState, cost: Cost, *, over: bool) -> JobLine:
    when = f" (at {text.clock(job.kept.at)})" if job.kept else ""
    words = "ended with its cluster" if over and not job.over else text.job_words(job)
    return {"name": job.name, "phase": job.phase, "words": f"{words}{when}{text.work_cost(cost)}"}
