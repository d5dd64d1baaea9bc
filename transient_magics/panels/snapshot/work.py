"""The lines of a panel for runs beside the one whose curves are shown, for jobs and for Dask clusters."""

from __future__ import annotations

from collections.abc import Mapping

from ...client import foreground, text
from ...journal import ClusterState, Cost, DaskState, JobState, RunState
from .contract import WorkLine

MOST_JOBS = 12


def run_lines(state: ClusterState, by_name: Mapping[str, Cost]) -> list[WorkLine]:
    """Return a line for each run that is not over but for those of studies, which are in the table of their study.

    `by_name`: the costs of the cluster's work.
    """
    lines: list[WorkLine] = []
    for run in foreground.beside(state):
        line = _line(state, run, by_name)
        line["phase"] = run_phase(state, run)
        if run.phase != "declared":
            line["step"] = run.step
            line["steps"] = run.train_steps
        lines.append(line)
    return lines


def job_lines(state: ClusterState, by_name: Mapping[str, Cost]) -> list[WorkLine]:
    """Return a line for each job that is not over, and the latest one; of many, a last line counts the others."""
    jobs = sorted(foreground.jobs(state), key=lambda job: not job.vms)
    lines = [_line(state, job, by_name, _kept_words(job)) for job in jobs[:MOST_JOBS]]
    if len(jobs) > MOST_JOBS:
        words = f"and {text.count(len(jobs) - MOST_JOBS, 'more job')}"
        lines.append({"name": "", "phase": "declared", "words": words, "step": 0, "steps": 0, "stoppable": False})
    return lines


def dask_lines(state: ClusterState, by_name: Mapping[str, Cost]) -> list[WorkLine]:
    """Return a line for each Dask cluster that is not over, and the latest one, with the way to its dashboard."""
    lines: list[WorkLine] = []
    for dask in foreground.dasks(state):
        line = _line(state, dask, by_name)
        has_dashboard = dask.serving is not None and bool(dask.serving.dashboard)
        if dask.phase == "running" and has_dashboard and not state.over:
            line["words"] += "; its dashboard: dask.client.dashboard_link"
        lines.append(line)
    return lines


def run_phase(state: ClusterState, run: RunState) -> str:
    """Return the phase of a run, or what it does in it: waiting, starting, evaluating."""
    if text.is_evaluated(run):
        return "evaluating"
    if run.phase != "declared":
        return "stopped" if text.was_stopped(run) else run.phase
    return "waiting" if text.waits_for(run, state) else "starting"


def _line(
    state: ClusterState, work: RunState | JobState | DaskState, by_name: Mapping[str, Cost], more: str = ""
) -> WorkLine:
    stopping = work.stopped if isinstance(work, RunState) else work.stop is not None
    return {
        "name": work.name,
        "phase": work.phase,
        "words": f"{text.work_words(work, state)}{more}{text.work_cost(by_name[work.name])}",
        "step": 0,
        "steps": 0,
        "stoppable": not (stopping or work.over or state.over),
    }


def _kept_words(job: JobState) -> str:
    return f" (at {text.clock(job.kept.at)})" if job.kept else ""
