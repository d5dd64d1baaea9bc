"""Any kind of work in words: its phase, what it does, its events, its lines in a status.

The texts are in the part `words` of each kind:

| name | returns | without it |
|---|---|---|
| `work_words(work, cluster)` | what the work does, or how it ended; the cluster's state may be unknown | required |
| `event_words(event)` | what happened to it; empty for other events | required |
| `QUIET` | the kinds of events that panels and `events` leave out | required |
| `TONES` | the tone of events in a panel, by their class | none has a tone |
| `user_of(work, vm)` | the name of the work if it uses the VM | required, unless the work trains |
| `work_phase(work)` | its phase, where it is not that of the state | the phase of the state |
| `short_words(work)` | the work in a list of clusters | its name and phase |
| `status_lines(work, cluster, cost, now, forecast)` | its lines in the status of its cluster | one line |
| `declared_words(spec, now)` | what to say when it is declared | nothing |
| `alike(event)`, `group_words(events)` | which events are shown as one, and their words | each separately |
"""

from __future__ import annotations

import time
from typing import Any

from ...journal import ClusterState, Cost, Work
from ...journal.work import Facts, show_as
from ...kinds import find, load
from ...spec import render_duration
from .bills import work_cost
from .words import clock

AnyWork = Work[Any]


def work_phase(work: AnyWork, cluster: ClusterState | None = None) -> str:
    """Return `declared`, `running`, `finished`, `failed` or `stopped`.

    Parameters
    ----------
    work
        The work.
    cluster
        The state of its cluster. Work that was not over when its cluster ended counts as stopped.
    """
    if cluster and cluster.over and not work.over:
        return "stopped"
    own = getattr(load(work.kind, "words"), "work_phase", None)
    if own:
        return own(work)
    return work.phase


def work_words(work: AnyWork, cluster: ClusterState) -> str:
    """Return what work does, or how it ended, such as `waits for 2 workers`."""
    if cluster.over and not work.over and not work.trains:
        return "ended with its cluster"
    return load(work.kind, "words").work_words(work, cluster)


def work_facts(work: Work[object]) -> Facts:
    """Return what a notebook shows of the state of work: its words, and its times."""
    words = load(work.kind, "words").work_words(work, None)
    facts = {"declared": _date_words(work.declared_at)}
    if work.over:
        facts["ended"] = _date_words(work.ended_at)
        facts["time"] = render_duration(work.ended_at - work.declared_at)
    return f"{work.name}: {words}", facts


show_as(work_facts)


def short_words(work: AnyWork) -> str:
    """Return work in a few words for a list of clusters, such as `job-1 running`."""
    own = getattr(load(work.kind, "words"), "short_words", None)
    if own:
        return own(work)
    return f"{work.name} {work.phase}"


def work_line(work: AnyWork, cluster: ClusterState, cost: Cost) -> str:
    """Return work in one line: its name, what it does, and its cost so far."""
    return f"{work.name}  {work_words(work, cluster)}{work_cost(cost)}"


def status_lines(
    work: AnyWork, cluster: ClusterState, cost: Cost, now: float, forecast: str = ""
) -> list[str]:
    """Return the lines of work in the status of its cluster.

    Parameters
    ----------
    work, cluster, cost
        The work, the state of its cluster, and its cost.
    now
        Seconds since 1970.
    forecast
        When the work ends, in words; most kinds have none.
    """
    own = getattr(load(work.kind, "words"), "status_lines", None)
    if own:
        return own(work, cluster, cost, now, forecast)
    return [work_line(work, cluster, cost)]


def declared_words(kind: str, spec: Any, now: float) -> str:
    """Return what to say when work with a declaration is declared; empty for most kinds."""
    own = getattr(find(kind, "words"), "declared_words", None)
    if own:
        return own(spec, now)
    return ""


def _date_words(at: float) -> str:
    return f"{time.strftime('%Y-%m-%d', time.localtime(at))} {clock(at)}"
