"""Any kind of work in words: its phase, what it does, and its lines in the status of its cluster.

The texts are in the `words` of each kind:

| name | returns | without it |
|---|---|---|
| `work_words(work, cluster)` | what the work does, or how it ended; the cluster's state may be unknown | required |
| `event_words(event)` | what happened to it; empty for other events | required |
| `QUIET` | the kinds of events that panels and `events` leave out | required |
| `TONES` | the tone of events in a panel, by their class | none has a tone |
| `user_of(work, vm)` | the name of the work if it uses the VM | required, unless the work trains |
| `work_phase(work)` | its phase, where it is not that of the state | the phase of the state |
| `short_words(work)` | the work in a list of clusters | its name and phase |
| `status_lines(work, cluster, cost)` | its lines in the status of its cluster | one line |
"""

from __future__ import annotations

import time

from ...journal import ClusterState, Cost, Work
from ...journal.work import Facts, show_as
from ...kinds import load
from ...spec import render_duration
from .bills import work_cost
from .words import clock


def work_phase(work: Work[object], cluster: ClusterState) -> str:
    """Return `declared`, `running`, `finished`, `failed` or `stopped` for work of a cluster in this
    state.
    """
    if cluster.over and not work.over:
        return "stopped"
    own = getattr(load(work.kind, "words"), "work_phase", None)
    if own:
        return own(work)
    return work.phase


def work_words(work: Work[object], cluster: ClusterState) -> str:
    """Return what work of a cluster in this state does, or how it ended, such as `waits for 2
    workers`.
    """
    if cluster.over and not work.over and not work.trains:
        return "ended with its cluster"
    return load(work.kind, "words").work_words(work, cluster)


def work_facts(work: Work[object]) -> Facts:
    """Return what a notebook shows of the state of work: its words, and when it was declared and
    ended.
    """
    words = load(work.kind, "words").work_words(work, None)
    facts = {"declared": _moment(work.declared_at)}
    if work.over:
        facts["ended"] = _moment(work.ended_at)
        facts["time"] = render_duration(work.ended_at - work.declared_at)
    return f"{work.name}: {words}", facts


show_as(work_facts)


def _moment(at: float) -> str:
    return f"{time.strftime('%Y-%m-%d', time.localtime(at))} {clock(at)}"


def short_words(work: Work[object]) -> str:
    """Return work in a few words for a list of clusters, such as `job-1 running`."""
    own = getattr(load(work.kind, "words"), "short_words", None)
    if own:
        return own(work)
    return f"{work.name} {work.phase}"


def status_lines(work: Work[object], cluster: ClusterState, cost: Cost) -> list[str]:
    """Return the lines of work in the status of its cluster."""
    own = getattr(load(work.kind, "words"), "status_lines", None)
    if own:
        return own(work, cluster, cost)
    return [f"{work.name}  {work_words(work, cluster)}{work_cost(cost)}"]
