"""What fills a terminal: all about one cluster, and the list of all clusters."""

from __future__ import annotations

from collections.abc import Iterable

from ...journal import Bill, ClusterState, VmState
from ...protocol.checks import all_plain
from ...spec import render_money as money
from ...spec import render_table as table
from .. import focus
from .bills import bill_words, rate_words, work_cost
from .deadlines import outlook_facts
from .events import why_slow
from .records import data_words
from .states import (
    counted_words,
    ending_words,
    given_up_words,
    machine,
    phase_words,
    run_words,
    to_agree_words,
    vm_words,
)
from .words import count, evaluated_words, scores_words
from .work import short_words, status_lines


def status(state: ClusterState, bill: Bill, now: float, forecast: str = "") -> str:
    """All about one cluster on one screen. `forecast`: when its run ends, in words."""
    spec = state.spec
    if spec is None:
        return "Declared a moment ago; its controller is starting."
    where = ", ".join(spec.zones)
    lines = [
        f"{state.name}  {phase_words(state)}  ({spec.spec}, {spec.provisioning_model}, {where})"
    ]
    if state.trouble:
        lines.append(f"Trouble: {state.trouble}")
    if proposed := given_up_words(state, now):
        lines.append(f"{proposed} {to_agree_words(state.name)}")
    by_name = bill.work
    for work in focus.trained(state):
        lines += status_lines(work, state, by_name[work.name])
    if run := focus.run(state):
        lines.append(f"{run.name}  {run_words(run)}")
        lines.append(f"{' ' * len(run.name)}  this run {by_name[run.name].words}")
        if facts := outlook_facts(run, now):
            lines.append(
                f"{' ' * len(run.name)}  {'; '.join(f'{name} {value}' for name, value in facts)}"
            )
        if run.deadline and run.deadline.proposed and now < run.deadline.proposed.until:
            how = to_agree_words(state.name, run.name)
            lines.append(f"{' ' * len(run.name)}  proposed: {run.deadline.proposed.reason}. {how}")
        if forecast:
            lines.append(forecast)
        if run.checkpoint_step is not None:
            lines.append(f"{' ' * len(run.name)}  last checkpoint at step {run.checkpoint_step:,}")
        if run.unsaved:
            lines.append(
                f"{' ' * len(run.name)}  not saved since step {run.unsaved[1]:,}: {run.unsaved[2]}"
            )
        if run.shipped:
            lines.append(f"{' ' * len(run.name)}  in the bucket: {run.shipped}")
        if run.metrics:
            scores = scores_words(run.metrics) + evaluated_words(*run.evaluated)
            lines.append(f"{' ' * len(run.name)}  evaluation: {scores}")
        if run.unevaluated:
            _, step, reason = run.unevaluated
            lines.append(
                f"{' ' * len(run.name)}  could not be evaluated at step {step:,}: {reason}"
            )
        if run.preparation.slots and not run.over:
            vms = count(len(run.preparation.slots), "VM")
            waited = run.preparation.waited
            if waited:
                waits = (
                    f"; steps wait for mini-batches for {100 * waited[-1][1]:.0f}% of their time"
                )
            else:
                waits = ""
            lines.append(f"{' ' * len(run.name)}  prepared on {vms} of {run.spec.preparers}{waits}")
        if run.data:
            lines.append(f"{' ' * len(run.name)}  data: {data_words(run.data)}")
        if run.order and not run.over:
            lines.append(f"{' ' * len(run.name)}  {run.order}")
        if run.slow:
            lines.append(f"{' ' * len(run.name)}  slow: {why_slow(run.slow)}")
    for run in focus.beside(state):
        lines.append(f"{run.name}  {run_words(run, state)}{work_cost(by_name[run.name])}")
    for work in focus.others(state):
        lines += status_lines(work, state, by_name[work.name])
    shown = [vm for vm in state.vms.values() if vm.living] or list(state.vms.values())
    if shown:
        lines += [
            "",
            *table(("VM", "MACHINE", "ZONE", "STATE"), [_vm_row(state, vm, now) for vm in shown]),
        ]
    if state.revocations:
        lines.append(f"{count(state.revocations, 'revocation')} so far")
    ending = ending_words(state, now)
    return all_plain(
        "\n".join([*lines, "", bill_words(state, bill), *([ending] if ending else [])])
    )


def listing(clusters: Iterable[tuple[str, ClusterState, Bill]]) -> str:
    """One line per cluster: its name, its state, its bill."""
    rows = [listing_row(name, state, bill) for name, state, bill in clusters]
    if not rows:
        return "No cluster."
    return "\n".join(
        table(tuple(name.upper() for name in rows[0]), [tuple(row.values()) for row in rows])
    )


def listing_row(name: str, state: ClusterState, bill: Bill) -> dict[str, str]:
    """A cluster in a list, by column."""
    spec = state.spec
    run = focus.run(state)
    if run:
        working = [f"{run.name} {counted_words(run).replace(' of ', '/')}"]
    else:
        working = []
    working += [short_words(work) for work in (*focus.trained(state), *focus.others(state))]
    ready = sum(vm.state == "ready" for vm in state.vms.values())
    return {
        "name": name,
        "phase": "starting" if state.phase == "unknown" else state.phase,
        "workers": spec.spec if spec else "",
        "VMs": f"{ready}/{len(state.living)}",
        "run": ", ".join(working),
        "cost so far": money(bill.total),
        "now": rate_words(state, bill),
        "where": ("emulated" if spec.emulated else str(spec.project)) if spec else "",
    }


def _vm_row(state: ClusterState, vm: VmState, now: float) -> tuple[str, str, str, str]:
    return vm.name, machine(state, vm), vm.zone, vm_words(state, vm, now)
