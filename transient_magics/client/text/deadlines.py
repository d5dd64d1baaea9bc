"""What is said of a run that has to be done in time."""

from __future__ import annotations

import time

from ...deadlines.simulation import FAR
from ...journal import Event, RunState, events
from ...protocol.run import RunSpec
from ...spec import render_duration, render_money, render_small_money, render_workers

_DAY = 86400.0


def declared_words(spec: RunSpec, now: float) -> str:
    """What is promised of it, under which conditions, and which limit wins; nothing without a
    deadline.
    """
    if not spec.finish_by:
        return ""
    said = [
        f"It is to be done by {moment(spec.finish_by, now)}, in {render_duration(max(spec.finish_by - now, 0.0))}."
    ]
    said += {
        "auto": [
            "That holds where its workers stay as fast as they are measured, and its VMs can be had on demand: "
            "capacity and quota for them are not promised to anybody."
        ],
        "ask": ["Changes of its workers are proposed, and nothing is changed before you agree."],
        "off": ["Nothing is changed for that; it is only told how it stands."],
    }[spec.adapt]
    if spec.max_cost is not None:
        said.append(
            f"Where {render_money(spec.max_cost)} are not enough for that, the money wins and it is late."
        )
    return " ".join(said)


def outlook_facts(run: RunState, now: float) -> list[tuple[str, str]]:
    """How it stands, as names and values: the chance, the band, the machines planned, the price of
    a step.

    What is proposed is decided upon as if it were agreed to: so are the chance and the band, and
    named so.
    """
    known = run.deadline
    if known is None or run.over:
        return []
    facts = [("done by", moment(run.spec.finish_by, now))]
    if known.outlook:
        told = known.outlook
        sure = "about " if told.chance >= 0.99 else ""
        if known.proposed and now <= known.proposed.until:
            agreed = " if agreed"
        else:
            agreed = ""
        facts.append((f"chance{agreed}", "late" if known.late else f"{sure}{told.chance:.0%}"))
        facts.append((f"ends{agreed}", _band(run, told, now)))
    if known.acted:
        facts.append(("planned", render_workers(known.acted.machines)))
    if known.outlook:
        worth = render_small_money(known.outlook.worth)
        price = render_small_money(known.outlook.price)
        facts.append(
            ("a step", f"worth {worth}, a Spot {known.outlook.gpu.upper()} makes one for {price}")
        )
    return facts


def _band(run: RunState, told: events.DeadlineOutlook, now: float) -> str:
    """When it ends: later than what is simulated, where too few courses end within that."""
    if told.high < FAR:
        return f"{moment(told.low, now)} to {moment(told.high, now)}"
    return f"later than {moment(told.low if told.low < FAR else max(run.spec.finish_by, told.at), now)}"


def deadline_event_words(event: Event) -> str:
    """What happened, as a clause; nothing for other events."""
    match event:
        case events.DeadlineActed():
            if event.agreed:
                return f"{event.run} has {event.reason}"
            return f"{event.run}: {event.reason}"
        case events.DeadlineProposed(until=0):
            return f"what was proposed for {event.run} is not proposed any more"
        case events.DeadlineProposed():
            return f"proposed for {event.run}: {event.reason}"
        case events.DeadlineLate(again=True):
            return f"{event.run} can be in time again"
        case events.DeadlineLate():
            if event.ends:
                ends = f", about {moment(event.ends, event.at)}"
            else:
                ends = ""
            return f"{event.run} will be late{ends}: {event.reason}"
        case _:
            return ""


def moment(at: float, now: float) -> str:
    """A time of this machine's clock; with its day where that is another one, with seconds where it
    is soon.
    """
    local = time.localtime(at)
    today = time.localtime(now)
    clock = time.strftime("%H:%M:%S" if abs(at - now) < 600 else "%H:%M", local)
    if local[:3] == today[:3]:
        return clock
    return f"{clock} on {local.tm_mday} {time.strftime('%b', local)}"
