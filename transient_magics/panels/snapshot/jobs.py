"""The jobs of a panel: what each does and on which VMs, since when what is kept of it, and what it has cost."""

from __future__ import annotations

from ...client import foreground, text
from ...journal import ClusterState, JobState, run_costs
from .contract import JobLine

MOST_JOBS = 12


def job_lines(state: ClusterState, now: float) -> list[JobLine]:
    """A line for each job that goes on, and the latest one; of many for the first ones, and a last line that counts."""
    jobs = sorted(foreground.jobs(state), key=lambda job: not job.vms)
    if not jobs:
        return []
    costs = run_costs(state, now)
    lines = [_line(job, costs.get(job.name), over=state.over) for job in jobs[:MOST_JOBS]]
    if len(jobs) > MOST_JOBS:
        more = text.count(len(jobs) - MOST_JOBS, "more job")
        lines.append({"name": "", "phase": "declared", "words": f"and {more}"})
    return lines


def _line(job: JobState, dollars: float | None, *, over: bool) -> JobLine:
    when = f" (at {text.clock(job.kept.at)})" if job.kept else ""
    cost = f", {text.money(dollars)}" if dollars is not None else ""
    words = "ended with its cluster" if over and not job.over else text.job_words(job)
    return {"name": job.name, "phase": job.phase, "words": f"{words}{when}{cost}"}
