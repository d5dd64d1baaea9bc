"""The states of clusters and their VMs in words."""

from __future__ import annotations

from ...catalog import worker_entry
from ...errors import DeclarationError
from ...journal import Bill, ClusterState, RunState, VmState
from ...kinds import load
from ...protocol.checks import plain
from ...spec import ClusterSpec, render_duration
from ...spec import render_money as money
from .words import clock, count, share_words

_NEAR_END_SECONDS = 3600.0
_MOST_NAMED_RUNS = 2

RENTED = {"spot": "Spot", "preemptible": "preemptible", "standard": "on demand"}
"""The names of provisioning models."""
_PHASES = {"unknown": "starting", "provisioning": "being provisioned", "deleting": "being deleted"}


def machine(state: ClusterState, vm: VmState) -> str:
    """Return the GPU of a VM; of a VM without one the number of its vCPUs or its machine type."""
    if vm.role == "controller":
        return vm.machine_type
    if vm.role == "ps" and state.spec:
        return state.spec.parameter_server_machine or f"{state.spec.parameter_server_cores} vCPU"
    if vm.accelerator != "cpu":
        return vm.accelerator.upper() or vm.machine_type
    try:
        return f"{worker_entry(vm.accelerator, vm.machine_type).vcpus} vCPU"
    except DeclarationError:
        # The journal may be of a version with more machine types.
        return vm.machine_type


def leaves_at(vm: VmState) -> float:
    """Return when a VM under notice is revoked, in seconds since 1970; 0 without a notice."""
    if vm.state == "leaving" and vm.noticed_at:
        return vm.noticed_at + vm.notice_seconds
    return 0.0


def replacements(state: ClusterState) -> dict[str, VmState]:
    """Return by the name of a VM the first VM that replaced it or will replace it."""
    return {vm.replaces: vm for vm in reversed([*state.vms.values()]) if vm.replaces}


def vm_words(state: ClusterState, vm: VmState, now: float) -> str:
    """Return the state of a VM, such as `training, leaving in 23 s` or `runs job-1`.

    Parameters
    ----------
    state, vm
        The cluster and its VM.
    now
        Seconds since 1970.
    """
    if vm.left and vm.living:
        return "left, being deleted"
    if vm.change and not (vm.state == "ready" and _differs(vm)):
        stopped = "stopped" if vm.state == "stopped" else "being stopped"
        return f"{stopped}, to become {vm.change.machine_type}"
    match vm.state:
        case "ready":
            return _ready_words(state, vm)
        case "leaving":
            return _leaving_words(state, vm, now)
        case "booting" if vm.failure:
            return f"did not boot, {vm.failure}"
        case "booting" if vm.step:
            return f"booting, {vm.step}"
        case "revoked" | "deleted" | "refused":
            return _gone_words(state, vm)
    return vm.state


def _differs(vm: VmState) -> bool:
    return vm.coming or not vm.share.whole or vm.machine_type != vm.rented_as


def _ready_words(state: ClusterState, vm: VmState) -> str:
    if vm.coming:
        return "ready, but its cluster has not moved yet"
    task = _task_words(state, vm)
    if not vm.share.whole:
        return f"{task or 'ready'}, with {share_words(vm.share)}"
    if vm.machine_type != vm.rented_as:
        return f"{task or 'ready'}, as {vm.machine_type} instead of {vm.rented_as}"
    if task:
        return task
    if vm.role == "ps" and any(run.phase == "running" for run in state.of(RunState).values()):
        return "serving"
    if vm.role == "prep":
        if vm.slot in state.preparers:
            return f"prepares for {state.preparers[vm.slot]}"
        return "ready"
    if vm.role == "controller" and vm.name == state.seat:
        return "in charge"
    if vm.failure:
        return f"unusable: {vm.failure}"
    return "ready"


def _leaving_words(state: ClusterState, vm: VmState, now: float) -> str:
    left = leaves_at(vm) - now
    leaving = f"leaving in {left:.0f} s" if left > 0 else "leaving"
    task = _task_words(state, vm)
    return f"{task}, {leaving}" if task else leaving


def _gone_words(state: ClusterState, vm: VmState) -> str:
    after = replacements(state).get(vm.name)
    if after:
        return f"{vm.state}, replaced by {after.name}"
    if vm.state == "refused" and vm.reason:
        return f"refused: {plain(vm.reason)}"
    return vm.state


def _task_words(state: ClusterState, vm: VmState) -> str:
    """Return what a VM does for work, such as `training` or `runs job-1`; empty for nothing."""
    if user := _user(state, vm):
        return f"runs {user}"
    runs = state.runs_of(vm)
    if not runs:
        return ""
    running = [run for run in state.of(RunState).values() if run.phase == "running"]
    if len(running) <= 1:
        return "training"
    if len(runs) > _MOST_NAMED_RUNS:
        return f"training {len(runs)} trials of {runs[0].spec.study}"
    return f"training {' and '.join(run.name for run in runs)}"


def _user(state: ClusterState, vm: VmState) -> str:
    """Return the name of the work without training that uses a worker's VM; empty without."""
    if vm.role != "worker":
        return ""
    work = state.works.get(state.leases.get(vm.slot, ""))
    if work is None or work.trains:
        return ""
    return load(work.kind, "words").user_of(work, vm)


def destination(spec: ClusterSpec) -> str:
    """Return what a cluster becomes and where, as in `k80x2 with 1 parameter server in ZONE`."""
    servers = count(spec.parameter_servers, "parameter server")
    return f"{spec.spec} with {servers} in {spec.home_zone}"


def transfer_price(dollars: float) -> str:
    """Return the price of the data that a moved cluster transferred, usually below a cent."""
    if dollars >= 0.005:
        return money(dollars)
    return "less than a cent"


def phase_words(state: ClusterState) -> str:
    """Return the phase of a cluster, with the reason where it ends."""
    words = _PHASES.get(state.phase, state.phase)
    if state.phase in ("deleting", "deleted"):
        return f"{words}: {plain(state.reason)}" if state.reason else words
    if not state.relocation:
        return words
    coming = [vm for vm in state.living if vm.coming]
    ready = sum(vm.state == "ready" for vm in coming)
    there = f"{ready} of {count(len(coming), 'VM')} ready there"
    return f"{words}, moving to {destination(state.relocation.spec)}: {there}"


def ending_words(state: ClusterState, now: float) -> str:
    """Return when idle workers or the cluster will be deleted; empty if that is far away."""
    spec = state.spec
    if spec is None or state.phase in ("deleting", "deleted"):
        return ""
    clauses = []
    if state.unused_since:
        lacking = "without a parameter server" if state.current_or_next_run else "without a run"
        workers = state.unused_since + spec.idle_seconds - now
        everything = state.unused_since + spec.idle_end_seconds - now
        if workers > 0:
            clauses.append(f"{lacking}, the workers are deleted in {render_duration(workers)}")
        elif everything > 0:
            clauses.append(f"{lacking}, everything is deleted in {render_duration(everything)}")
    left = state.seconds_left(now)
    if left < _NEAR_END_SECONDS:
        clauses.append(f"its limits end it in {render_duration(max(0.0, left))}")
    text = "; ".join(clauses)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def given_up_words(state: ClusterState, now: float) -> str:
    """Return which workers will be given up to a provider that wants VMs back; empty for none."""
    if state.over or not state.reclaim:
        return ""
    proposed = state.reclaim.proposed
    names = state.proposed_to_go
    if proposed is None or not names or now > proposed.until:
        return ""
    go = "goes" if len(names) == 1 else "go"
    plan = f"{', '.join(names)} {go} at {clock(proposed.until)} ({proposed.reason})"
    vms = count(state.still_wanted, "VM")
    return f"The provider wants {vms} back: {plan}. Agree, or revoke others before."


def to_agree_words(cluster: str, run: str = "") -> str:
    """Return the line that agrees to a proposal in a cell."""
    return f"To agree: %transient_cluster agree {cluster} {run}".rstrip()


NOTHING_TO_DELETE = "There is no cluster to delete."


def deleted_words(state: ClusterState, bill: Bill) -> str:
    """Return what a deleted cluster cost, and where its results are."""
    results = ""
    if state.spec and state.spec.bucket and state.of(RunState):
        results = f" Its results are in gs://{state.spec.bucket}; run.fetch(folder) downloads them."
    gone = f"{state.name} is deleted, no VM is left"
    if state.spec and state.spec.emulated:
        cost = f"{money(bill.total)} is what its VMs would have cost"
        return f"{gone}; it was emulated, so nothing was billed: {cost}.{results}"
    return f"{gone} and none is billed any more; it cost {money(bill.total)}.{results}"
