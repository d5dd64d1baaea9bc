"""A job in a cell: one line about its state and the end of its output, updated while it runs."""

from __future__ import annotations

import threading
from typing import Any

from ...client import text
from ...journal import ClusterState
from ...panels.show import current_shell, has_front_end, shown_in_this_cell
from ...panels.static.markup import COLOURS, FAINT, FONT, escape
from . import words
from .handle import Job
from .state import JobState

LINES = 24
_UPDATE_SECONDS = 0.5


def more_words(job: JobState, state: ClusterState) -> str:
    """Return when the last archive of a job arrived, for its line on a panel."""
    if job.kept:
        return f" (at {text.clock(job.kept.at)})"
    return ""


class JobView:
    """The state and the output of a job at one moment."""

    def __init__(self, job: Job) -> None:
        state = job.cluster.state.of(JobState).get(job.name)
        self._name = job.name
        self._cluster = job.cluster.name
        self._words = words.job_words(state) if state else "declared"
        self._failed = state is not None and state.phase == "failed"
        self._cost = job.cost()
        self._output = [text.plain(line) for line in job.output(LINES).splitlines()]

    def __repr__(self) -> str:
        first = f"{self._name} on {self._cluster}: {self._words}, {self._cost.words}"
        return "\n".join([first, *self._output])

    def _repr_html_(self) -> str:
        colour = COLOURS["bad"] if self._failed else "inherit"
        head = (
            f"<b>{escape(self._name)}</b> on {escape(self._cluster)}: <span style='color:{colour}'>"
            f"{escape(self._words)}</span><span style='{FAINT}'>, {escape(self._cost.words)}</span>"
        )
        body = ""
        if self._output:
            lines = "\n".join(map(escape, self._output))
            body = f"<pre style='margin:4px 0 0;max-height:26em;overflow:auto'>{lines}</pre>"
        return f"<div style='{FONT};max-width:1040px'>{head}{body}</div>"


def show(job: Job) -> None:
    """Show the job in the running cell, once per cell; a front end follows it until it is over."""
    shell = current_shell()
    if shown_in_this_cell(shell, job.cluster.identity, job.name):
        return
    view = JobView(job)
    if not has_front_end(shell):
        print(view)
        return
    from IPython.display import display

    handle = display(view, display_id=True)
    state = job.cluster.state.of(JobState).get(job.name)
    is_over = state is not None and state.over
    if handle is not None and not is_over:
        threading.Thread(
            target=_follow, args=(job, handle), name=f"{job.name} in its cell", daemon=True
        ).start()


def _follow(job: Job, handle: Any) -> None:
    for _ in job.stream(every=_UPDATE_SECONDS, quiet=True):
        handle.update(JobView(job))
    handle.update(JobView(job))
