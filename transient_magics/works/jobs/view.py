"""A job in a cell: one line of how it does, and the last of what it says, drawn anew while it goes
on.
"""

from __future__ import annotations

import threading
from typing import Any

from ...client import text
from ...journal import ClusterState, JobState
from ...panels.show import current_shell, has_front_end, shown_in_this_cell
from ...panels.static.markup import COLOURS, FAINT, FONT, escape
from . import words
from .handle import Job

LINES = 24
_EACH_SECONDS = 0.5


def more_words(job: JobState, state: ClusterState) -> str:
    """Return when the folder of a job was brought here last, for its line on a panel."""
    if job.kept:
        return f" (at {text.clock(job.kept.at)})"
    return ""


class Drawn:
    """A job as it is at one moment."""

    def __init__(self, job: Job) -> None:
        known = job.cluster.state.of(JobState).get(job.name)
        self._name = job.name
        self._cluster = job.cluster.name
        if known:
            self._words = words.job_words(known)
        else:
            self._words = "declared"
        self._failed = known is not None and known.phase == "failed"
        self._cost = job.cost()
        self._said = [text.plain(line) for line in job.output(LINES).splitlines()]

    def __repr__(self) -> str:
        return "\n".join(
            [f"{self._name} on {self._cluster}: {self._words}, {self._cost.words}", *self._said]
        )

    def _repr_html_(self) -> str:
        if self._failed:
            colour = COLOURS["bad"]
        else:
            colour = "inherit"
        head = (
            f"<b>{escape(self._name)}</b> on {escape(self._cluster)}: <span style='color:{colour}'>"
            f"{escape(self._words)}</span><span style='{FAINT}'>, {escape(self._cost.words)}</span>"
        )
        said = "\n".join(map(escape, self._said))
        if said:
            body = f"<pre style='margin:4px 0 0;max-height:26em;overflow:auto'>{said}</pre>"
        else:
            body = ""
        return f"<div style='{FONT};max-width:1040px'>{head}{body}</div>"


def show(job: Job) -> None:
    """Show the job in the cell that runs now, once per cell; where there is a front end, it follows
    until the job is over.
    """
    shell = current_shell()
    if shown_in_this_cell(shell, job.cluster.identity, job.name):
        return
    drawn = Drawn(job)
    if not has_front_end(shell):
        print(drawn)
        return
    from IPython.display import display

    handle = display(drawn, display_id=True)
    known = job.cluster.state.of(JobState).get(job.name)
    if handle is not None and not (known and known.over):
        threading.Thread(
            target=_follow, args=(job, handle), name=f"{job.name} in its cell", daemon=True
        ).start()


def _follow(job: Job, handle: Any) -> None:
    for _ in job.stream(every=_EACH_SECONDS, quiet=True):
        handle.update(Drawn(job))
    handle.update(Drawn(job))
