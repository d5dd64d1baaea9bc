"""Where clusters, VMs, runs and studies stand, in words."""

from __future__ import annotations

from ...catalog import worker_entry
from ...errors import DeclarationError
from ...journal import Bill, ClusterState, RunState, VmState
from ...kinds import load
from ...protocol.checks import plain
from ...spec import ClusterSpec, render_duration
from ...spec import render_money as money
from .words import clock, count, number, share_words

_NEAR_END_SECONDS = 3600.0


RENTED = {"spot": "Spot", "preemptible": "preemptible", "standard": "on demand"}
"""Words for provisioning models."""


_PHASES = {"unknown": "starting", "provisioning": "being provisioned", "deleting": "being deleted"}


def machine(state: ClusterState, vm: VmState) -> str:
    """What the VM is: its GPU, or how many vCPUs it has where it has none."""
    if vm.role == "controller":
        return vm.machine_type
    if vm.role == "ps" and state.spec:
        return state.spec.parameter_server_machine or f"{state.spec.parameter_server_cores} vCPU"
    if vm.accelerator != "cpu":
        return vm.accelerator.upper() or vm.machine_type
    try:
        return f"{worker_entry(vm.accelerator, vm.machine_type).vcpus} vCPU"
    except DeclarationError:  # a journal may be of a version that knew of more machines
        return vm.machine_type


def leaves_at(vm: VmState) -> float:
    """When a VM under notice is taken (0: it is not under notice)."""
    if vm.state == "leaving" and vm.noticed_at:
        return vm.noticed_at + vm.notice_seconds
    return 0.0


def replacements(state: ClusterState) -> dict[str, VmState]:
    """By the name of a VM, the first one that took, or is to take, its place."""
    return {vm.replaces: vm for vm in reversed(state.vms.values()) if vm.replaces}


def vm_words(state: ClusterState, vm: VmState, now: float) -> str:
    """The VM's state in words: `ready`, `training`, `training, leaving in 23 s`, `runs job-1`,
    `revoked, replaced by worker-4`.
    """
    runs = state.runs_of(vm)
    going = [run for run in state.of(RunState).values() if run.phase == "running"]
    if len(runs) < 3:
        names = " and ".join(run.name for run in runs)
    else:
        names = f"{len(runs)} trials of {runs[0].spec.study}"
    if runs and len(going) > 1:
        training = f"training {names}"
    else:
        training = "training" if runs else ""
    if user := _user(state, vm):
        training = f"runs {user}"
    if vm.state == "ready" and vm.coming:
        return "ready, its cluster is still to come"
    if vm.left and vm.living:
        return "left, being deleted"
    if vm.state == "ready" and not vm.share.whole:
        return f"{training or 'ready'}, with {share_words(vm.share)}"
    if vm.state == "ready" and vm.machine_type != vm.rented_as:
        return f"{training or 'ready'}, as {vm.machine_type} in the place of {vm.rented_as}"
    if vm.change:
        return f"{'stopped' if vm.state == 'stopped' else 'being stopped'}, to become {vm.change.machine_type}"
    if vm.state == "ready" and training:
        return training
    if vm.state == "ready" and vm.role == "ps" and going:
        return "serving"
    if vm.state == "ready" and vm.role == "prep":
        if vm.slot in state.preparers:
            return f"prepares for {state.preparers[vm.slot]}"
        return "ready"
    if vm.name == state.seat and vm.state == "ready" and vm.role == "controller":
        return "in charge"
    if vm.state == "leaving":
        left = leaves_at(vm) - now
        if left > 0:
            leaving = f"leaving in {left:.0f} s"
        else:
            leaving = "leaving"
        if training:
            return f"{training}, {leaving}"
        return leaving
    if vm.state == "ready" and vm.failure:
        return f"of no use: {vm.failure}"
    if vm.state == "booting" and (vm.failure or vm.step):
        if vm.failure:
            return f"did not boot, {vm.failure}"
        return f"booting, {vm.step}"
    if vm.state in ("revoked", "deleted", "refused"):
        after = replacements(state).get(vm.name)
        if vm.state == "refused" and vm.reason:
            reason = f": {plain(vm.reason)}"
        else:
            reason = ""
        if after:
            return f"{vm.state}, replaced by {after.name}"
        return f"{vm.state}{reason}"
    return vm.state


def _user(state: ClusterState, vm: VmState) -> str:
    """Return the name of the work without training that uses a worker's VM now; empty where none
    does.
    """
    if vm.role == "worker":
        work = state.works.get(state.leases.get(vm.slot, ""))
    else:
        work = None
    if work is None or work.trains:
        return ""
    return load(work.kind, "words").user_of(work, vm)


def destination(spec: ClusterSpec) -> str:
    """What a cluster is to be, and where: `k80x2 with 1 parameter server in us-east1-c`."""
    return (
        f"{spec.spec} with {count(spec.parameter_servers, 'parameter server')} in {spec.home_zone}"
    )


def transfer_price(dollars: float) -> str:
    """What is paid for data that follow a cluster, most often next to nothing."""
    if dollars >= 0.005:
        return money(dollars)
    return "less than a cent"


def phase_words(state: ClusterState) -> str:
    """The phase of a cluster in words, with the reason where it ends."""
    words = _PHASES.get(state.phase, state.phase)
    if state.relocation and state.phase not in ("deleting", "deleted"):
        coming = [vm for vm in state.living if vm.coming]
        there = (
            f"{sum(vm.state == 'ready' for vm in coming)} of {count(len(coming), 'VM')} ready there"
        )
        return f"{words}, moving to {destination(state.relocation.spec)}: {there}"
    if state.reason and state.phase in ("deleting", "deleted"):
        return f"{words}: {plain(state.reason)}"
    return words


def is_evaluated(run: RunState) -> bool:
    """Whether all steps are made, and what goes on is its last checkpoint and evaluation."""
    return run.phase == "running" and (run.made or 0 < run.train_steps <= run.step)


def last_words(run: RunState) -> str:
    """What goes on once all steps are made."""
    if run.made:
        return "being evaluated"
    return "its last checkpoint is being written"


def was_stopped(run: RunState) -> bool:
    """Whether it was ended before its last step, as by deleting its cluster."""
    return run.phase == "finished" and run.stopped and run.step < run.train_steps


def waits_for(run: RunState, state: ClusterState) -> str:
    """What a run waits for, and why; nothing if it has begun, or is the next to."""
    if run.over or state.has_begun(run):
        return ""
    kind, why = state.held.get(run.name, ("", ""))
    if kind == "check":
        return why
    *before, _ = [each.name for each in state.queue[: state.queue.index(run) + 1]]
    if before:
        return f"waits behind {before[-1]}"
    begun = [turn.name for turn in state.turns if state.has_begun(turn)]
    if begun:
        end = f"waits for the end of {' or '.join(begun)}"
    else:
        end = ""
    if end and why:
        return f"{end}: {why}"
    return end


def counted_words(run: RunState) -> str:
    """`120 of 300`. A run may have made more than it was to, because each worker finishes the step
    that it is in.
    """
    return f"{min(run.step, run.train_steps):,} of {run.train_steps:,}"


def run_words(run: RunState, state: ClusterState | None = None) -> str:
    """Where a run stands, in one sentence without its name; `state` of its cluster tells whether
    another goes first.
    """
    of = f"{'measure' if run.spec.stalls else 'step'} {counted_words(run)}"
    if run.phase == "declared":
        return (waits_for(run, state) if state else "") or "waits for its first step"
    if run.phase == "failed":
        return f"failed at step {run.step:,}: {plain(run.reason)}"
    if run.loss is not None:
        loss = f", loss {number(run.loss)}"
    else:
        loss = ""
    if run.phase == "finished":
        if run.started_at:
            took = render_duration(run.ended_at - run.started_at)
        else:
            took = ""
        # With its last checkpoint written, what a stop ends is the evaluation.
        cut = run.stopped and run.made
        done = "stopped" if run.stopped and not cut else "finished"
        if run.reason:
            why = f": {plain(run.reason)}"
        else:
            why = ""
        more = run.step - run.train_steps
        of += f" ({more:,} more {'was' if more == 1 else 'were'} under way)" if more > 0 else ""
        why += ", stopped before it was evaluated" if cut else ""
        return f"{done} at {of}{f' after {took}' if took else ''}{loss}{why}"
    if is_evaluated(run):
        return f"{of} made{loss}, {last_words(run)}"
    if run.spec.stalls:
        return f"{of} taken, {count(len(run.workers), 'worker')}"
    return (
        f"{of}, {number(run.steps_per_second)} steps/s{loss}, {count(len(run.workers), 'worker')}"
    )


def ending_words(state: ClusterState, now: float) -> str:
    """When the cluster, or part of it, ends by itself if nothing else happens; nothing if that is
    far away.
    """
    spec = state.spec
    if spec is None or state.phase in ("deleting", "deleted"):
        return ""
    said = []
    if since := state.unused_since:
        if state.active_run:
            lacking = "without a parameter server"
        else:
            lacking = "without a run"
        workers = since + spec.idle_seconds - now
        all_of_it = since + spec.idle_end_seconds - now
        if workers > 0:
            said.append(f"{lacking}, the workers are deleted in {render_duration(workers)}")
        elif all_of_it > 0:
            said.append(f"{lacking}, everything is deleted in {render_duration(all_of_it)}")
    if (left := state.seconds_left(now)) < _NEAR_END_SECONDS:
        said.append(f"its limits end it in {render_duration(max(0.0, left))}")
    text = "; ".join(said)
    if text:
        return f"{text[0].upper()}{text[1:]}."
    return ""


def given_up_words(state: ClusterState, now: float) -> str:
    """Which workers are proposed where the provider wants some back, and what can be done; empty
    where none are.
    """
    if state.reclaim and not state.over:
        proposed = state.reclaim.proposed
    else:
        proposed = None
    going = state.proposed_to_go
    if proposed is None or not going or now > proposed.until:
        return ""
    names = ", ".join(going)
    go = "goes" if len(going) == 1 else "go"
    wanted = f"The provider wants {count(state.still_wanted, 'VM')} back"
    return f"{wanted}: {names} {go} at {clock(proposed.until)} ({proposed.reason}). Agree, or revoke others before."


def to_agree_words(cluster: str, run: str = "") -> str:
    """How to agree to what is proposed, in a cell."""
    return f"To agree: %transient_cluster agree {cluster} {run}".rstrip()


NOTHING_TO_DELETE = "There is no cluster to delete."


def deleted_words(state: ClusterState, bill: Bill) -> str:
    """What is said when a cluster is gone: what it cost, and where its results are."""
    if state.spec and state.of(RunState):
        kept = state.spec.bucket
    else:
        kept = None
    if kept:
        where = f" Its results are in gs://{kept}; run.fetch(folder) brings them."
    else:
        where = ""
    gone = f"{state.name} is deleted, no VM is left"
    if state.spec and state.spec.emulated:
        would = f"{money(bill.total)} is what its VMs would have cost"
        return f"{gone}; it was emulated, so nothing was billed: {would}.{where}"
    return f"{gone} and none is billed any more; it cost {money(bill.total)}.{where}"
