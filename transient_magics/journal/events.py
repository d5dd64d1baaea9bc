"""Typed events: every decision and fact about one cluster.

`protocol.events` defines the format of events and their checks. `protocol.vm_events` defines the
events that runs and VMs report, because VMs write their lines with the same classes. This module
defines the events of the controller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ..errors import JournalError
from ..protocol import events as protocol_events
from ..protocol.checks import Amount, Count, KindOfWork, Name, NameOrNone, at_least, clipped, within
from ..protocol.events import FACT, INTENTION, Event
from ..protocol.events import event as _event
from ..protocol.machines import LEAST
from ..protocol.objective import objective_or_none

MOST_RUNS = 100
"""Maximum number of simultaneous runs on one cluster: each has its own ports."""
_Part = Annotated[float, within(LEAST, 1)]
_Rate = Annotated[float, within(1e-6, 1e7)]  # of the emulated clock, in seconds per second


def _begun(anchors: tuple[object, ...]) -> tuple[object, ...]:
    if not anchors:
        raise ValueError("the clock has no anchor")
    return anchors


Anchors = Annotated[tuple[tuple[float, float, _Rate], ...], _begun]
"""All anchors of the emulated clock (`Clock`)."""


@_event("cluster.declared", INTENTION)
class ClusterDeclared(Event):
    """The user declared this cluster. `spec` is ClusterSpec.to_dict()."""

    spec: Mapping[str, object]


@_event("cluster.ready", FACT)
class ClusterReady(Event):
    """Every declared VM responds, `seconds` after the declaration."""

    workers: int
    seconds: float


@_event("cluster.resized", INTENTION)
class ClusterResized(Event):
    """The user requested other workers. `spec` is the whole new ClusterSpec.to_dict().

    `gives_up`: the workers to delete, if the user selected them; else those without a slot in
    `spec`.
    """

    spec: Mapping[str, object]
    gives_up: tuple[str, ...] = ()


@_event("cluster.relocating", INTENTION)
class ClusterRelocating(Event):
    """The user requested a move of the cluster, or other parameter servers.

    The new VMs are rented while the old ones keep running. `spec` is the whole planned
    ClusterSpec.to_dict().
    """

    spec: Mapping[str, object]


@_event("cluster.relocated", INTENTION)
class ClusterRelocated(Event):
    """The move of the cluster is complete; its runs resume from what was saved.

    The VMs in `leaves` are deleted. `transferred`: bytes of checkpoints and data that moved with
    it, at a cost of `dollars` (US).
    """

    leaves: tuple[Name, ...]
    transferred: Count = 0
    dollars: Amount = 0.0


@_event("cluster.stayed", INTENTION)
class ClusterStayed(Event):
    """The move of the cluster was cancelled for `reason` (a clause).

    The VMs that were rented for it are deleted.
    """

    reason: str


@_event("cluster.clock", FACT)
class ClusterClock(Event):
    """The rate of the emulated clock changed."""

    anchors: Anchors


@_event("cluster.advised", FACT)
class ClusterAdvised(Event):
    """Compute Engine's advice about Spot VMs with this GPU.

    `zones`: by zone, the probability that one is available (0 to 1) and the seconds for which most
    run (0: unknown). `preempted`: by zone, the share of the Spot VMs that ended within a week
    because of preemption, if it is available. `measured`: the values come from recent requests of this
    machine, which rented VMs and deleted them, and not from Compute Engine.
    """

    accelerator: str
    zones: Mapping[str, tuple[float, float]]
    preempted: Mapping[str, float] = field(default_factory=dict[str, float])
    measured: bool = False


@_event("cluster.zones_found", INTENTION)
class ClusterZonesFound(Event):
    """Compute Engine has the GPUs in zones other than those of the catalog.

    `zones`: by GPU, the zones for workers, best first. `spec`: the declaration with these zones.
    """

    zones: Mapping[str, tuple[str, ...]]
    spec: Mapping[str, object]


@_event("cluster.priced", INTENTION)
class ClusterPriced(Event):
    """Google's prices differ from those of the declaration; `spec` is the declaration with them.

    `hourly` and `on_demand_hourly` are US dollars for the whole cluster.
    """

    hourly: float
    on_demand_hourly: float
    spec: Mapping[str, object]


@_event("cluster.deleting", FACT)
class ClusterDeleting(Event):
    """Teardown began; `reason` is a clause (`asked by the user`, `the time limit of 24 h`)."""

    reason: str


@_event("cluster.deleted", INTENTION)
class ClusterDeleted(Event):
    """All VMs of this cluster are gone: Compute Engine lists none."""


@_event("cluster.image_chosen", INTENTION)
class ClusterImageChosen(Event):
    """The image from which the VMs boot if the user named none; empty: plain Debian 12.

    `why` is a clause. `gpu`: whether it contains a driver, so that VMs with GPUs can boot from it.
    """

    image: str
    why: str
    gpu: bool = True


@_event("vm.requested", FACT)
class VmRequested(Event):
    """A VM was requested. Prices are US dollars per hour; `replaces` names the VM that it replaces.

    `slot` is the index in the cluster of the parameter server or the declared worker. `ends`: when
    Compute Engine is scheduled to end it, in seconds since 1970; 0 if not reported.
    """

    vm: Name
    role: Name
    slot: Count
    zone: str
    accelerator: str
    machine_type: str
    provisioning_model: Literal["spot", "preemptible", "standard"]
    hourly: Amount
    on_demand_hourly: Amount
    replaces: Name | None = None
    ends: Amount = 0.0


@_event("vm.refused", FACT)
class VmRefused(Event):
    """Compute Engine refused the VM. `reason` is one sentence.

    `cause`: stockout, quota, quota everywhere (the quota of all regions), access (a permission or a
    policy), or other. `hints`: zones that Compute Engine named as having capacity.
    """

    vm: Name
    reason: str
    cause: str = "other"
    hints: tuple[str, ...] = ()


@_event("vm.running", FACT)
class VmRunning(Event):
    """Compute Engine reports the VM as RUNNING: it costs money from now on.

    `started`: its start as reported by Compute Engine, in ns since 1970; 0 if not reported.
    """

    vm: Name
    address: str
    external_address: str = ""
    vm_id: str = ""
    started: Count = 0


@_event("vm.boot_step", FACT)
class VmBootStep(Event):
    """The VM's start-up script began a step; `what` is a clause."""

    vm: Name
    what: str


@_event("vm.boot_failed", FACT)
class VmBootFailed(Event):
    """The VM failed to boot. `reason` is a clause.

    `lines`: the end of its output, if it was read.
    """

    vm: Name
    reason: str
    lines: str = ""


@_event("vm.ready", FACT)
class VmReady(Event):
    """The VM responds over SSH, and its agent runs."""

    vm: Name


@_event("vm.unfit", FACT)
class VmUnfit(Event):
    """The VM responds but cannot do what it was rented for, such as training on its GPU.

    `reason` is a clause.
    """

    vm: Name
    reason: str


@_event("vm.preemption_asked", FACT)
class VmPreemptionAsked(Event):
    """The user asked Compute Engine to preempt the VM in `seconds`.

    The preemption that follows does not count as one of Compute Engine's own.
    """

    vm: Name
    seconds: float = 0.0


@_event("vm.preemption_notice", FACT)
class VmPreemptionNotice(Event):
    """Compute Engine announced the preemption of the VM.

    `seconds` is the documented maximum until its end. A VM knows neither the exact time, nor
    whether `--notice` of the weather shortens it. `noticed` is from the VM's own clock, in ns.
    """

    vm: Name
    noticed: int = 0
    seconds: Amount = 30.0


@_event("vm.traffic", FACT)
class VmTraffic(Event):
    """Bytes that a VM has `sent` and `received` since its start.

    Reported for VMs in zones whose traffic with the parameter servers costs money.
    """

    vm: Name
    sent: Count
    received: Count


@_event("vm.deflated", FACT)
class VmDeflated(Event):
    """The provider took a part of the VM's processors or network; the VM keeps running.

    `cpu`, `network`: the shares from now on; `cpu_before`, `network_before`: the shares before.
    """

    vm: Name
    cpu: _Part
    network: _Part
    cpu_before: _Part = 1.0
    network_before: _Part = 1.0


@_event("vm.inflated", FACT)
class VmInflated(Event):
    """The provider returned a part of the VM's processors or network, or all. As `vm.deflated`."""

    vm: Name
    cpu: _Part
    network: _Part
    cpu_before: _Part = 1.0
    network_before: _Part = 1.0


@_event("vm.machine_asked", INTENTION)
class VmMachineAsked(Event):
    """The controller plans to stop the VM, change it to `machine_type` and start it again.

    `reason` is a clause. Prices are US dollars per hour: of the changed VM, and of its disk alone
    (`disk_hourly`). `part` is its future share of the vCPUs with which it was rented.
    """

    vm: Name
    machine_type: str
    hourly: Amount
    on_demand_hourly: Amount
    disk_hourly: Amount
    part: _Part
    reason: str


@_event("vm.stopped", FACT)
class VmStopped(Event):
    """The controller stopped the VM for `reason` (a clause) in order to start it again.

    Until then it costs only its disk. `stopping`: when it started to stop, as in VmRevoked.
    """

    vm: Name
    reason: str
    stopping: Count = 0


@_event("vm.machine_changed", FACT)
class VmMachineChanged(Event):
    """The stopped VM is a `machine_type` from now on; it was a `machine_before`."""

    vm: Name
    machine_type: str
    machine_before: str


@_event("vm.machine_refused", FACT)
class VmMachineRefused(Event):
    """Compute Engine refused to change the VM, which keeps its type. `reason` is one sentence."""

    vm: Name
    reason: str


@_event("vm.end_set", FACT)
class VmEndSet(Event):
    """The stopped VM had lost its end, and Compute Engine received it again.

    `ends` is in seconds since 1970.
    """

    vm: Name
    ends: Amount


@_event("vm.start_refused", FACT)
class VmStartRefused(Event):
    """Compute Engine refused to start the stopped VM. `reason` and `cause`: as in VmRefused."""

    vm: Name
    reason: str
    cause: str = "other"


@_event("vm.started", FACT)
class VmStarted(Event):
    """The stopped VM runs again. `started`: as in VmRunning.

    Without an `address` it is not configured as requested, and is stopped again.
    """

    vm: Name
    address: str
    external_address: str = ""
    started: Count = 0


@_event("reclaim.wanted", INTENTION)
class ReclaimWanted(Event):
    """The provider reclaims `number` of these `vms` by `until`, in seconds since 1970.

    The cluster can choose the VMs. At `until`, the provider preempts the number that is missing.
    `number` is 0 if the request was withdrawn.
    """

    number: Count
    vms: tuple[Name, ...] = ()
    until: Amount = 0.0


@_event("reclaim.proposed", INTENTION)
class ReclaimProposed(Event):
    """These VMs are proposed for deletion for `reason` (a clause).

    The user may choose others until `until` (seconds since 1970).
    """

    vms: tuple[Name, ...]
    reason: str
    until: Amount


@_event("reclaim.answered", INTENTION)
class ReclaimAnswered(Event):
    """These VMs of the provider's request will be deleted, for `reason` (a clause).

    `agreed`: a user accepted the proposal.
    """

    vms: tuple[Name, ...]
    reason: str
    agreed: bool = False


@_event("vm.revoked", FACT)
class VmRevoked(Event):
    """The VM is gone without a request of the controller.

    `signal`: the first sign (`notice`, `ssh`, `api`), or `start`: the VM was stopped and cannot be
    started again. `stopping`: when it started to stop, as reported by Compute Engine, in ns since
    1970; 0 if unknown.
    """

    vm: Name
    signal: str
    stopping: Count = 0


@_event("vm.deleted", FACT)
class VmDeleted(Event):
    """The controller deleted the VM, and it is gone. `stopping`: as in VmRevoked."""

    vm: Name
    reason: str
    stopping: Count = 0


@_event("worker.replaced", FACT)
class WorkerReplaced(Event):
    """VM `by` was requested to replace `worker`."""

    worker: Name
    by: Name


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _WorkEvent(Event):
    """An event of work of any kind.

    `work` is its name and `of` its kind.
    """

    work: Name
    of: KindOfWork

    def work_of(self, kind: str) -> str:
        """Return the name of the work if it is of this kind; else empty."""
        if self.of == kind:
            return self.work
        return ""


@_event("work.declared", INTENTION)
class WorkDeclared(_WorkEvent):
    """The user declared a run, study, job, bag or Dask cluster.

    `spec` is its declaration as a dictionary; that of a run has no token.
    """

    spec: Mapping[str, object]


@_event("work.stopping", FACT)
class WorkStopping(_WorkEvent):
    """The work starts nothing more, and ends when its running parts have ended.

    `state` is its state from then on. `reason` is a clause; it is empty for a study whose trials
    are all done.
    """

    reason: str = ""
    state: Literal["finished", "failed", "stopped"] = "stopped"


@_event("work.ended", FACT)
class WorkEnded(_WorkEvent):
    """The work is over, and its VMs are free.

    `reason`, a clause: why it failed, or ended before it was done.
    """

    state: Literal["finished", "failed", "stopped"]
    reason: str = ""


@_event("train.checked", FACT)
class TrainChecked(Event):
    """The run passed its check: a step of it can be built.

    The check counted the `parameters` of its model, and the `variable_bytes` that parameter servers
    keep for it, including the optimizer's (0: unknown).
    """

    run: Name
    parameters: Count = 0
    variable_bytes: Count = 0
    steps: Count = 0
    """With the next six fields: what the cell's `model.fit` declares.

    Set if the run's declaration leaves it to the cell (protocol.run.FitDeclaration).
    """
    epoch_steps: Count = 0
    first_epoch: Count = 0
    eval_steps: Count = 0
    keep_best: Annotated[str, objective_or_none] = ""
    callbacks: bool = False
    phase_steps: Count = 0


@_event("train.traced", FACT)
class TrainTraced(Event):
    """A trace of a step of the worker has arrived; with a `reason`, why it failed."""

    run: Name
    worker: Name
    reason: str = ""


@_event("train.moved", INTENTION)
class TrainMoved(Event):
    """The user moved this waiting run before the run `before`; empty: before all that wait."""

    run: Name
    before: NameOrNone = ""


Machines = tuple[tuple[str, Literal["spot", "standard"], Annotated[int, at_least(1)]], ...]
"""Workers: GPU (`cpu`: none), transient (spot) or on demand (standard), and number."""


@_event("preparation.scaled", INTENTION)
class PreparationScaled(Event):
    """The VMs in `slots` prepare the run's mini-batches from now on.

    These slots never belong to another run. `waiting`: the share of its time for which a worker's
    step waited for its mini-batch (0: unknown).
    """

    run: Name
    slots: tuple[Count, ...]
    waiting: Annotated[float, within(0, 1)] = 0.0


@_event("deadline.acted", INTENTION)
class DeadlineActed(Event):
    """The workers of a run with a deadline change to `machines`, for `reason` (a clause).

    `agreed`: a user accepted the proposal.
    """

    run: Name
    machines: Machines
    reason: str
    agreed: bool = False


@_event("deadline.proposed", INTENTION)
class DeadlineProposed(Event):
    """A proposal to change the workers of a run with a deadline, as in DeadlineActed.

    A user can accept it until `until`, in seconds since 1970; 0: it is withdrawn.
    """

    run: Name
    machines: Machines
    reason: str
    until: float


@_event("deadline.outlook", FACT)
class DeadlineOutlook(Event):
    """The outlook of a run with a deadline.

    `chance`: the probability that it ends in time. It ends between about `low` and `high`, in
    seconds since 1970 (0: unknown). In US dollars: `worth` is the present value of a step, and
    `price` the cost of a step on a Spot worker with that `gpu`.
    """

    run: Name
    chance: Annotated[float, within(0, 1)]
    low: Amount
    high: Amount
    worth: Amount
    price: Amount
    gpu: str


@_event("deadline.late", FACT)
class DeadlineLate(Event):
    """The run with a deadline will probably end late, at about `ends`.

    `ends` is in seconds since 1970 (0: unknown). `reason` is a clause. With `again`, the run is
    expected to end in time again.
    """

    run: Name
    ends: Amount
    reason: str
    again: bool = False


@_event("cluster.leased", FACT)
class ClusterLeased(Event):
    """The assignment of ports and workers to work.

    `ports`: the runs that have begun, each with the number of its ports on the parameter servers.
    `workers`: by place, the run, job or Dask cluster that has the worker. A place is a slot of the
    cluster, or a further place on the slot's VM (spec/cluster.py). `held`: runs that have enough
    workers but wait for a check, memory or the network (`link`), and why, a clause. `ahead`: by
    slot, the run that already prepares there because it gets the worker next.
    """

    ports: Mapping[str, Annotated[int, within(0, MOST_RUNS - 1)]]
    workers: Mapping[str, Name]
    held: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    ahead: Mapping[str, Name] = field(default_factory=dict[str, str])


@_event("controller.started", FACT)
class ControllerStarted(Event):
    """A controller process took charge of the cluster for the first time."""

    pid: int
    version: str = ""


@_event("controller.recovered", FACT)
class ControllerRecovered(Event):
    """A controller took charge after another one ended; it found `vms` living VMs.

    `unreadable`: the number of torn or damaged lines in the journal, which are ignored.
    """

    pid: int
    vms: int
    unreadable: int = 0


@_event("controller.moved", INTENTION)
class ControllerMoved(Event):
    """The controller on `vm` is now in charge; empty: the machine that declared the cluster.

    It is the last line of the previous controller, and the first fact of the next one.
    """

    vm: NameOrNone


@_event("cluster.forgotten", INTENTION)
class ClusterForgotten(Event):
    """The journal of the cluster was removed; `dollars` (US) is its maximum cost before that."""

    dollars: Amount


@_event("cluster.taken_back", INTENTION)
class ClusterTakenBack(Event):
    """The return of control to this machine, after a controller on a VM was in charge.

    `left_out`: by kind, the number of that controller's lines that are ignored.
    """

    left_out: Mapping[str, Count] = field(default_factory=dict[str, int])


@_event("controller.trouble", FACT)
class ControllerTrouble(Event):
    """A problem that the controller retries. `what` is one sentence; empty when it is solved."""

    what: str


@_event("image.step", FACT)
class ImageStep(Event):
    """A step in the journal of an image's build began; `what` is a clause."""

    what: str


@_event("image.built", FACT)
class ImageBuilt(Event):
    """The image is complete and its VM is gone, `seconds` after the declaration.

    `image_id` is Compute Engine's number.
    """

    image: str
    seconds: float
    image_id: str = ""


@_event("image.failed", FACT)
class ImageFailed(Event):
    """The build of the image failed.

    `reason` is one sentence, possibly followed by the last lines of the start-up script.
    """

    reason: str


def encode(event: Event) -> bytes:
    """Encode the event as a line, with its newline and with texts cut to the accepted length."""
    values = event.to_dict()
    values = {
        name: clipped(value) if isinstance(value, str) else value for name, value in values.items()
    }
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def kinds() -> list[str]:
    """Return all kinds of events, and their families, in order."""
    found = protocol_events.kinds()
    return sorted({*found, *(kind.partition(".")[0] for kind in found)})


def decode(line: bytes) -> Event:
    """Read the event of one line. Raises JournalError for an invalid line, such as a torn one."""
    try:
        return protocol_events.decode(line)
    except ValueError as error:
        raise JournalError(
            f"A journal line cannot be read: {error}", where=repr(line[:80])
        ) from error


def from_dict(kind: str, values: Mapping[str, object]) -> Event:
    """Build an event from plain values.

    Unknown kinds become `Unknown`; unknown fields are ignored. Raises JournalError for an invalid
    field.
    """
    try:
        return protocol_events.from_values({**values, "kind": kind})
    except ValueError as error:
        raise JournalError(f"An event cannot be read: {error}") from error
