"""A worker's VM that is stopped, made another machine and started again: who may be, and which step
is next. Pure.

The next step follows from the journal and from what Compute Engine says the VM is, so that a
controller that was killed between any two of them is followed by one that goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ...catalog import DISK_GB, disk_hourly, smaller_machine
from ...cloud import STOPPED, Vm
from ...errors import ClusterError, DeclarationError, unknown
from ...journal import ClusterState, RunState, VmState, events
from ...protocol.machines import LEAST
from ...spec import PARAMETER_SERVER, WORKER
from ...spec.cluster import lines_of, places
from ...spec.image import least_boot_seconds

MOST_REFUSED = 5
"""Starts that are refused, before the VM is given up."""
MOST_TRIES = 3
"""How often its end is set again, and it runs without being what it should be, before it is given
up.
"""
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 60.0
"""Seconds until a start that was refused is tried again; twice as long each time."""
_BY_USER = "asked by the user"

Act = Literal[
    "stop", "set machine type", "set end", "start", "wait", "done", "stop again", "give up", "gone"
]


def asked(
    state: ClusterState, name: str, machine_type: str, now: float
) -> events.VmMachineAsked | None:
    """What is written down of the user's wish that this VM becomes such a machine (empty: the one
    that it was rented as); None where it is just becoming one, for a command that lost its answer
    on the way comes twice.

    Raises ClusterError, and DeclarationError for a machine that it cannot be.
    """
    vm = state.vms.get(name)
    spec = state.spec
    assert spec
    workers = [each.name for each in state.serving if each.role == WORKER and each.state == "ready"]
    if workers:
        there = f"Take a worker: {', '.join(workers)}."
    else:
        there = "Wait until one is ready."
    if vm is None or not vm.living:
        raise unknown(
            "VM", name, workers, where=spec.name, otherwise=there, numbered=True, error=ClusterError
        )
    if vm.role == PARAMETER_SERVER:
        what = f"{name} keeps the variables that every worker needs, and is not stopped"
        raise ClusterError(what, fix=there)
    if vm.role != WORKER:
        raise ClusterError(f"{name} is no worker, and is not stopped", fix=there)
    wanted = machine_type.strip().lower() or vm.rented_as
    if vm.change and vm.change.machine_type == wanted:
        return None
    if vm.state != "ready" or vm not in state.serving:
        raise ClusterError(
            f"{name} is {vm.state} now, and is not stopped for another machine", fix=there
        )
    if other := next(
        (
            state.leases[place]
            for place in places(vm.slot)
            if state.leases.get(place) not in _runs(state)
        ),
        "",
    ):
        raise ClusterError(
            f"{name} works for {other}, which would be interrupted",
            fix=f"Wait until {other} is over.",
        )
    if state.seconds_left(now) < least_boot_seconds(spec, vm.accelerator):
        raise ClusterError(f"{name} would not answer again before the end of {spec.name}")
    kind = vm.accelerator or "cpu"
    entry, part = smaller_machine(kind, vm.rented_as, wanted)
    if entry.machine_type == vm.machine_type:
        raise DeclarationError(f"{name} is {vm.machine_type} already", where="--machine-type")
    first = vm.stretches[0]
    back = entry.machine_type == first.machine_type
    if back:
        hourly = first.hourly
        on_demand = first.on_demand_hourly
    else:
        hourly, on_demand = _price(state, vm, entry.machine_type)
    return events.VmMachineAsked(
        vm=name,
        machine_type=entry.machine_type,
        hourly=hourly,
        on_demand_hourly=on_demand,
        disk_hourly=disk_hourly(vm.zone, spec.disk_gb or DISK_GB, spec.disk_type),
        part=max(part, LEAST),
        reason=_BY_USER,
    )


def next_act(vm: VmState, seen: Vm | None, ends_at: float, now: float) -> Act:
    """What is next for a VM that is to change; `seen`: what Compute Engine says of it, `ends_at`:
    when it is to end it, in seconds since 1970.
    """
    change = vm.change
    assert change
    if seen is None:
        return "gone"
    # The legacy model has no end of its own: Compute Engine ends such VMs after a day.
    bounded = vm.provisioning_model == "preemptible" or (
        seen.ends and seen.ends.timestamp() <= ends_at + 1
    )
    as_wanted = seen.machine_type == change.machine_type
    if seen.status == "RUNNING":
        if vm.state == "stopping":
            return "stop"
        return "done" if as_wanted and bounded else "stop again"
    if seen.status not in STOPPED or vm.state != "stopped":
        return "wait"
    if change.refused >= MOST_REFUSED or change.tries >= MOST_TRIES:
        return "give up"
    if not as_wanted:
        return "set machine type"
    if not bounded:
        return "set end"
    if change.refused:
        pause = min(_FIRST_PAUSE * 2 ** (change.refused - 1), _LONGEST_PAUSE)
    else:
        pause = 0.0
    return "start" if now - change.refused_at >= pause else "wait"


def _runs(state: ClusterState) -> set[str | None]:
    """Those that may have a place on a VM that is stopped; None stands for nobody."""
    return {None, *state.of(RunState)}


def _price(state: ClusterState, vm: VmState, machine_type: str) -> tuple[float, float]:
    """US dollars per hour of such a VM, as it is rented and on demand, with its disk and its
    address.
    """
    assert state.spec
    kind = vm.accelerator or "cpu"
    spec = replace(state.spec, worker_machines={**state.spec.worker_machines, kind: machine_type})
    price = lines_of(spec, [kind]).worker_price(kind, vm.zone)
    return (
        price.on_demand if vm.provisioning_model == "standard" else price.transient,
        price.on_demand,
    )
