"""States and events of bags in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...client.text.bills import work_cost
from ...client.text.words import count, number, params_words, value_words
from ...journal import ClusterState, Cost, Event
from ...protocol.checks import plain
from ...protocol.space import Dimension
from ...spec import render_duration
from . import events as b
from . import events as e
from .state import DeclaredBag

if TYPE_CHECKING:
    from .surrogate.section import Section


QUIET = ("bag.proposed",)
TONES = {b.BagLost: "warn"}
"""Colours of events on a panel."""


def work_words(bag: DeclaredBag, cluster: ClusterState | None) -> str:
    """Return what a bag does, or how it ended."""
    return bag_words(bag)


def status_lines(
    bag: DeclaredBag, cluster: ClusterState, cost: Cost, now: float, forecast: str
) -> list[str]:
    """Return the lines of a bag in the status of its cluster."""
    lines = [f"{bag.name}  {bag_words(bag)}{work_cost(cost)}"]
    if quality := quality_words(bag):
        lines.append(f"{' ' * len(bag.name)}  {tried_words(bag)}; {quality}")
    return lines


def bag_words(bag: DeclaredBag) -> str:
    """Return `12 of 40 results, 4 under way, after 2 interruptions`, or how it ended."""
    state = bag.state
    made = f"{len(state.counted)} of {count(bag.spec.jobs, 'result')}"
    if state.interruptions:
        lost = f", after {count(state.interruptions, 'interruption')}"
    else:
        lost = ""
    failed = sum(job.phase == "failed" for job in state.jobs.values())
    if failed and bag.phase != "failed":  # else its reason states that
        lost += f", {count(failed, 'job')} failed"
    if bag.over:
        # The reason of a complete bag states its results.
        whole = bag.phase == "finished" and len(state.counted) >= bag.spec.jobs
        return f"{bag.phase}: {plain(bag.reason)}{'' if whole else f', {made}'}{lost}"
    if bag.stop:
        return f"ends: {plain(bag.stop.reason)}, {made}"
    if bag.phase == "declared" or not state.jobs:
        return "waits for workers"
    return f"{made}, {len(state.running)} under way{lost}"


def tried_words(bag: DeclaredBag) -> str:
    """Return the number of results behind the surrogate, and of batches that tested it."""
    if bag.spec.surrogate == "none":
        return ""
    learnt = bag.state.learnt
    if not learnt:
        return "nothing is learnt yet"
    tried = sum(batch.judged > 0 for batch in learnt)
    if tried == 1:
        many = "one batch"
    else:
        many = f"{tried} batches"
    return (
        f"learnt from {count(learnt[-1].results, 'result')}, "
        f"{f'tried on {many}' if tried else 'not tried yet'}"
    )


def quality_words(bag: DeclaredBag) -> str:
    """Return the quality of the surrogate on the last batch; empty before there is one.

    For example `pressure: 90% intervals held 92%, largest sd 0.014 (until 0.01)`.
    """
    learnt = bag.state.learnt
    judged = next((batch for batch in reversed(learnt) if batch.judged), None)
    parts = []
    for name, largest in learnt[-1].largest.items() if learnt else ():
        if judged and name in judged.coverage:
            coverage = f"90% intervals held {judged.coverage[name]:.0%}, "
        else:
            coverage = ""
        goal = bag.spec.until.get(name) or bag.spec.until.get("")
        if goal:
            until = f" (until {number(goal)})"
        else:
            until = ""
        parts.append(f"{plain(name)}: {coverage}largest sd {number(largest)}{until}")
    return "; ".join(parts)


def section_words(section: Section) -> str:
    """Return a section in words.

    For example `pressure over density 0.3 to 0.9, at salt 0.2: 0.21 to 0.84, sd at most 0.014 (from
    the surrogate)`.
    """
    over = " and ".join(map(_range_words, section.over))
    if section.fixed:
        at = f", at {params_words(section.fixed)}"
    else:
        at = ""
    means, sds = (
        [value for row in rows for value in row if value is not None]
        for rows in (section.means, section.sds)
    )
    if means:
        values = f"{number(min(means))} to {number(max(means))}, sd at most {number(max(sds))}"
    else:
        values = "outside of the results"
    return f"{plain(section.output)} over {over}{at}: {values} (from the surrogate)"


def _range_words(dimension: Dimension) -> str:
    values = dimension.choices or (dimension.low, dimension.high)
    return f"{dimension.name} {value_words(values[0])} to {value_words(values[-1])}"


def event_words(event: Event) -> str:
    """Return what happened to a bag; an empty text for other events."""
    match event:
        case e.BagBegan():
            return f"{event.bag} begins, with the Dask cluster {event.dask}"
        case b.BagGaveUp():
            return f"{event.bag} gives up {event.vm}: by its age it is worth no job any more"
        case b.BagStarted():
            if event.attempt > 1:
                again = f", for the {event.attempt}. time"
            else:
                again = ""
            return f"job {event.job} of {event.bag} begins on {event.vm}{again}"
        case b.BagSaved():
            return f"job {event.job} of {event.bag} is saved {render_duration(event.done)} into it"
        case b.BagResult():
            return (
                f"job {event.job} of {event.bag} has a result, after "
                f"{render_duration(event.seconds)}"
            )
        case b.BagLost():
            return f"job {event.job} of {event.bag} gave no result: {event.reason or event.why}"
        case b.BagLearnt():
            judged = ""
            if event.coverage:
                inside = ", ".join(f"{name} {share:.0%}" for name, share in event.coverage.items())
                judged = f"; of {event.judged} new ones the 90% intervals held {inside}"
            return f"{event.bag}: learnt from {count(event.results, 'result')}{judged}"
        case b.BagStopped():
            return f"{event.bag} begins no further job: {event.reason or event.why}"
    return ""
