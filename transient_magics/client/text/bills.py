"""The bill of a cluster in words."""

from __future__ import annotations

from ...journal import Bill, ClusterState, Cost
from ...journal.cost import CORRECTIONS, FORGOTTEN, IDLE, MOVED, NOTICED, START_UP
from ...spec import render_money as money

_MOST_WORK = 8
"""The number of pieces of work that a bill names, the most expensive ones."""
STARTING = ("unknown", "provisioning")
_OTHERS = (START_UP, IDLE, NOTICED, CORRECTIONS, MOVED, FORGOTTEN)
_LEAST_SAVED = 0.005


def bill_words(state: ClusterState, bill: Bill) -> str:
    """Return a bill in lines: cost, on-demand cost, savings, cost by work, transfer, prices."""
    spent = spent_words(bill)
    if not bill.over:
        spent += f", {hourly_words(state, bill)}"
    notes = []
    if state.spec and state.spec.emulated:
        notes.append("Emulated, nothing is billed.")
    if bill.source:
        notes.append(f"Prices: {bill.source}.")
    lines = [
        f"{spent}; on demand {money(bill.on_demand)}",
        saved_words(bill),
        lines_words(bill),
        transfer_words(bill),
        " ".join(notes),
    ]
    return "\n".join(line for line in lines if line)


def work_cost(cost: Cost) -> str:
    """Return `, $0.05 so far`, to append to the line of work; empty before it costs anything."""
    if cost.total:
        return f", {cost.words}"
    return ""


def spent_words(bill: Bill) -> str:
    """Return `cluster so far $1.23`, or `cluster in all $1.23` for a deleted cluster."""
    if bill.over:
        return f"cluster in all {money(bill.total)}"
    return f"cluster so far {money(bill.total)}"


def hourly_words(state: ClusterState, bill: Bill) -> str:
    """Return `cluster now $0.65 per hour`, or what it will cost while it is provisioned."""
    when = "" if state.phase in STARTING else " now"
    return f"cluster{when} {rate_words(state, bill)}"


def rate_words(state: ClusterState, bill: Bill) -> str:
    """Return `$0.65 per hour`; `$0.65 per hour once it is up` while it is provisioned."""
    if state.spec and state.phase in STARTING:
        return f"{money(state.spec.hourly)} per hour once it is up"
    return f"{money(bill.hourly)} per hour"


def saved_words(bill: Bill) -> str:
    """Return `59% saved against Google's on-demand price.`; empty if nothing was saved."""
    if bill.on_demand <= 0 or bill.saved < _LEAST_SAVED:
        return ""
    return f"{bill.saved:.0%} saved against Google's on-demand price."


def lines_words(bill: Bill) -> str:
    """Return `Of it: run-1 $0.420, start-up $0.021, idle $0.210.`; empty without work."""
    work = {name: dollars for name, dollars in bill.lines.items() if name not in _OTHERS}
    if not work:
        return ""
    named = sorted(work, key=lambda name: -work[name])[:_MOST_WORK]
    shown = {name: dollars for name, dollars in work.items() if name in named}
    if len(work) > len(named):
        shown[f"{len(work) - len(named)} others"] = sum(work.values()) - sum(shown.values())
    shown |= {name: bill.lines[name] for name in _OTHERS if name in bill.lines}
    return f"Of it: {', '.join(f'{name} {money(dollars)}' for name, dollars in shown.items())}."


def transfer_words(bill: Bill) -> str:
    """Return the cost of data transfer between zones; empty without any.

    The sentence warns where the transfer costs more than half as much as the VMs.
    """
    if bill.transfer <= 0:
        return ""
    hourly = f"{money(bill.transfer_hourly)} per hour now"
    words = f"{money(bill.transfer)} of it for data transfer between zones, {hourly}"
    if bill.transfer_hourly <= 0.5 * (bill.hourly - bill.transfer_hourly):
        return f"{words}."
    advice = "Workers in the zone of the parameter servers pay nothing for it."
    return f"{words}: it rivals the VMs. {advice}"
