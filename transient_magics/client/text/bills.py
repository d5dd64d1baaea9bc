"""What a cluster costs, in words."""

from __future__ import annotations

from ...journal import Bill, ClusterState, Cost
from ...journal.cost import CORRECTIONS, FORGOTTEN, IDLE, MOVED, NOTICED, START_UP
from ...spec import render_money as money

_MOST_WORK = 8
"""Pieces of work that the lines of a bill name, the dearest ones."""
STARTING = ("unknown", "provisioning")
_OTHERS = (START_UP, IDLE, NOTICED, CORRECTIONS, MOVED, FORGOTTEN)


def bill_words(state: ClusterState, bill: Bill) -> str:
    """Return a bill in some lines: so far, per hour, on demand, saved, by work, data transfer,
    prices.
    """
    if bill.over:
        spent = [spent_words(bill)]
    else:
        spent = [spent_words(bill), hourly_words(state, bill)]
    text = f"{', '.join(spent)}; on demand {money(bill.on_demand)}"
    if bill.source:
        notes = [f"Prices: {bill.source}."]
    else:
        notes = []
    if state.spec and state.spec.emulated:
        notes.insert(0, "Emulated, nothing is billed.")
    lines = [text, saved_words(bill), lines_words(bill), transfer_words(bill), " ".join(notes)]
    return "\n".join(line for line in lines if line)


def work_cost(cost: Cost) -> str:
    """`, $0.05 so far`, appended to the line of a piece of work; empty before it costs anything."""
    if cost.total:
        return f", {cost.words}"
    return ""


def spent_words(bill: Bill) -> str:
    """`cluster so far $1.23`, or what it cost in all."""
    if bill.over:
        return f"cluster in all {money(bill.total)}"
    return f"cluster so far {money(bill.total)}"


def hourly_words(state: ClusterState, bill: Bill) -> str:
    """`cluster now $0.65 per hour`; while it is being provisioned, `cluster $0.65 per hour once it
    is up`.
    """
    when = "" if state.phase in STARTING else " now"
    return f"cluster{when} {rate_words(state, bill)}"


def rate_words(state: ClusterState, bill: Bill) -> str:
    """`$0.65 per hour`; while it is being provisioned, what it will cost."""
    if state.spec and state.phase in STARTING:
        return f"{money(state.spec.hourly)} per hour once it is up"
    return f"{money(bill.hourly)} per hour"


def saved_words(bill: Bill) -> str:
    """`59% saved against Google's on-demand price.`; nothing where nothing was saved."""
    if bill.on_demand <= 0 or bill.saved < 0.005:
        return ""
    return f"{bill.saved:.0%} saved against Google's on-demand price."


def lines_words(bill: Bill) -> str:
    """`Of it: run-1 $0.420, start-up $0.021, idle $0.210.`; nothing where there is one line at
    most.
    """
    work = {name: dollars for name, dollars in bill.lines.items() if name not in _OTHERS}
    named = sorted(work, key=lambda name: -work[name])[:_MOST_WORK]
    shown = {name: dollars for name, dollars in work.items() if name in named}
    if len(work) > len(named):
        shown[f"{len(work) - len(named)} others"] = sum(work.values()) - sum(shown.values())
    shown |= {name: bill.lines[name] for name in _OTHERS if name in bill.lines}
    if work:
        return f"Of it: {', '.join(f'{name} {money(dollars)}' for name, dollars in shown.items())}."
    return ""


def transfer_words(bill: Bill) -> str:
    """What data transfer between zones costs, with a warning where it rivals the VMs; nothing where
    there is none.
    """
    if bill.transfer <= 0:
        return ""
    said = f"{money(bill.transfer)} of it for data transfer between zones, {money(bill.transfer_hourly)} per hour now"
    if bill.transfer_hourly > 0.5 * (bill.hourly - bill.transfer_hourly):
        return f"{said}: it rivals the VMs. Workers in the zone of the parameter servers pay nothing for it."
    return f"{said}."
