"""Screens of the terminal: the status of one cluster, and the list of all clusters."""

from __future__ import annotations

from collections.abc import Iterable

from ...journal import Bill, ClusterState, VmState
from ...protocol.checks import all_plain
from ...spec import render_money as money
from ...spec import render_table as table
from .. import focus
from .bills import bill_words, rate_words
from .states import (
    ending_words,
    given_up_words,
    machine,
    phase_words,
    to_agree_words,
    vm_words,
)
from .words import count
from .work import short_words, status_lines, work_line


def status(state: ClusterState, bill: Bill, now: float, forecast: str = "") -> str:
    """Return the status of a cluster on one screen.

    Parameters
    ----------
    state, bill
        The state of the cluster and its bill.
    now
        Seconds since 1970.
    forecast
        When its run ends, in words.
    """
    spec = state.spec
    if spec is None:
        return "Declared a moment ago; its controller is starting."
    about = ", ".join((spec.spec, spec.provisioning_model, *spec.zones))
    lines = [f"{state.name}  {phase_words(state)}  ({about})"]
    if state.trouble:
        lines.append(f"Trouble: {state.trouble}")
    if proposed := given_up_words(state, now):
        lines.append(f"{proposed} {to_agree_words(state.name)}")
    for work in focus.trained(state):
        lines += status_lines(work, state, bill.work[work.name], now)
    if run := focus.run(state):
        lines += status_lines(run, state, bill.work[run.name], now, forecast)
    for run in focus.beside(state):
        lines.append(work_line(run, state, bill.work[run.name]))
    for work in focus.others(state):
        lines += status_lines(work, state, bill.work[work.name], now)
    lines += _vm_lines(state, now)
    if state.revocations:
        lines.append(f"{count(state.revocations, 'revocation')} so far")
    lines += ["", bill_words(state, bill)]
    if ending := ending_words(state, now):
        lines.append(ending)
    return all_plain("\n".join(lines))


def listing(clusters: Iterable[tuple[str, ClusterState, Bill]]) -> str:
    """Return a table with one row for each cluster: its name, state and bill."""
    rows = [listing_row(name, state, bill) for name, state, bill in clusters]
    if not rows:
        return "No cluster."
    header = tuple(name.upper() for name in rows[0])
    return "\n".join(table(header, [tuple(row.values()) for row in rows]))


def listing_row(name: str, state: ClusterState, bill: Bill) -> dict[str, str]:
    """Return the row of a cluster in a list, by the names of the columns."""
    spec = state.spec
    run = focus.run(state)
    work = [*([run] if run else []), *focus.trained(state), *focus.others(state)]
    ready = sum(vm.state == "ready" for vm in state.vms.values())
    where = ""
    if spec:
        where = "emulated" if spec.emulated else str(spec.project)
    return {
        "name": name,
        "phase": "starting" if state.phase == "unknown" else state.phase,
        "workers": spec.spec if spec else "",
        "VMs": f"{ready}/{len(state.living)}",
        "run": ", ".join(map(short_words, work)),
        "cost so far": money(bill.total),
        "now": rate_words(state, bill),
        "where": where,
    }


def _vm_lines(state: ClusterState, now: float) -> list[str]:
    shown = [vm for vm in state.vms.values() if vm.living] or list(state.vms.values())
    if not shown:
        return []
    rows = [_vm_row(state, vm, now) for vm in shown]
    return ["", *table(("VM", "MACHINE", "ZONE", "STATE"), rows)]


def _vm_row(state: ClusterState, vm: VmState, now: float) -> tuple[str, str, str, str]:
    return vm.name, machine(state, vm), vm.zone, vm_words(state, vm, now)
