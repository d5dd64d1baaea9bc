"""Decide how a worker's VM is stopped, given another machine type, and started again. Pure.

The next step follows from the journal and from the VM's state at Compute Engine. If a controller is
killed between two steps, its successor can therefore continue.
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
"""Refused starts before the VM is given up."""
MOST_TRIES = 3
"""Times that its end is set again while it runs without the required properties.

After these it is given up.
"""
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 60.0
"""Longest pause in seconds between refused starts; the pause doubles each time."""
_BY_USER = "asked by the user"

Act = Literal[
    "stop", "set machine type", "set end", "start", "wait", "done", "stop again", "give up", "gone"
]


def asked(
    state: ClusterState, name: str, machine_type: str, now: float
) -> events.VmMachineAsked | None:
    """Return the event of a user's request to change a VM's machine type.

    An empty type means the one it was rented as. None if the same change is in progress: a command
    is repeated if its answer was lost.

    Raises
    ------
    ClusterError
        The VM cannot change now.
    DeclarationError
        The VM cannot have this machine type.
    """
    vm = state.vms.get(name)
    spec = state.spec
    assert spec
    workers = [
        worker.name for worker in state.serving if worker.role == WORKER and worker.state == "ready"
    ]
    if workers:
        there = f"Name a worker: {', '.join(workers)}."
    else:
        there = "Wait until a worker is ready."
    if vm is None or not vm.living:
        raise unknown(
            "VM", name, workers, where=spec.name, otherwise=there, numbered=True, error=ClusterError
        )
    if vm.role == PARAMETER_SERVER:
        what = (
            f"{name} has the variables that every worker needs, so its machine type cannot be "
            "changed"
        )
        raise ClusterError(what, fix=there)
    if vm.role != WORKER:
        raise ClusterError(
            f"{name} is not a worker, so its machine type cannot be changed", fix=there
        )
    requested_type = machine_type.strip().lower() or vm.rented_as
    if vm.change and vm.change.machine_type == requested_type:
        return None
    if vm.state != "ready" or vm not in state.serving:
        raise ClusterError(
            f"{name} is {vm.state}, so its machine type cannot be changed now", fix=there
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
            f"A change of {name} would interrupt {other}",
            fix=f"Wait until {other} has ended.",
        )
    if state.seconds_left(now) < least_boot_seconds(spec, vm.accelerator):
        raise ClusterError(
            f"{spec.name} ends before {name} could restart with another machine type"
        )
    kind = vm.accelerator or "cpu"
    entry, part = smaller_machine(kind, vm.rented_as, requested_type)
    if entry.machine_type == vm.machine_type:
        raise DeclarationError(
            f"{name} already has the machine type {vm.machine_type}",
            where="--machine-type",
            fix="Name another machine type.",
        )
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
    """Return the next step of a VM that changes.

    `seen` is the VM at Compute Engine, and `ends_at` the time at which it should end, in seconds
    since 1970.
    """
    change = vm.change
    assert change
    if seen is None:
        return "gone"
    # Compute Engine ends VMs of the legacy model after a day, so they need no end of their own.
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
    """Return the work that may have a place on a stopped VM; None stands for an empty place."""
    return {None, *state.of(RunState)}


def _price(state: ClusterState, vm: VmState, machine_type: str) -> tuple[float, float]:
    """Return the US dollars per hour of such a VM, as rented and on demand.

    Disk and address are included.
    """
    assert state.spec
    kind = vm.accelerator or "cpu"
    spec = replace(state.spec, worker_machines={**state.spec.worker_machines, kind: machine_type})
    price = lines_of(spec, [kind]).worker_price(kind, vm.zone)
    return (
        price.on_demand if vm.provisioning_model == "standard" else price.transient,
        price.on_demand,
    )
