"""Typed events: every decision and fact about one cluster.

What an event is, and how it is checked when it is read, `protocol.events` says. What runs and VMs
tell is defined beside it (`protocol.vm_events`): VMs make their lines of the same classes. Here are
those of the controller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from ..errors import JournalError
from ..protocol import events as known
from ..protocol.checks import Amount, Count, KindOfWork, Name, NameOrNone, at_least, clipped, within
from ..protocol.events import FACT, INTENTION, Event
from ..protocol.events import event as _event
from ..protocol.machines import LEAST
from ..protocol.objective import objective_or_none, patience_or_none

MOST_RUNS = 100
"""At once on one cluster: each has ports of its own."""
_Part = Annotated[float, within(LEAST, 1)]
_Rate = Annotated[float, within(1e-6, 1e7)]  # of the emulated clock, in seconds per second


def _begun(anchors: tuple[object, ...]) -> tuple[object, ...]:
    if not anchors:
        raise ValueError("no anchor of a clock")
    return anchors


Anchors = Annotated[tuple[tuple[float, float, _Rate], ...], _begun]
"""Those of `Clock`, all of them."""


@_event("cluster.declared", INTENTION)
class ClusterDeclared(Event):
    """The user asked for this cluster. `spec` is ClusterSpec.to_dict()."""

    spec: Mapping[str, object]


@_event("cluster.ready", FACT)
class ClusterReady(Event):
    """Every declared VM answers; `seconds` since the declaration."""

    workers: int
    seconds: float


@_event("cluster.resized", INTENTION)
class ClusterResized(Event):
    """The user asked for other workers. `spec` is the whole new ClusterSpec.to_dict().

    `gives_up`: the workers that go, where the user said which are to; else who has no place in
    `spec` goes.
    """

    spec: Mapping[str, object]
    gives_up: tuple[str, ...] = ()


@_event("cluster.relocating", INTENTION)
class ClusterRelocating(Event):
    """The user asked for the cluster elsewhere, or with other parameter servers: its VMs are rented
    there, beside those that go on. `spec` is the whole ClusterSpec.to_dict() that it is to have.
    """

    spec: Mapping[str, object]


@_event("cluster.relocated", INTENTION)
class ClusterRelocated(Event):
    """The cluster is there from now on, its runs go on from what was saved; the VMs that it
    `leaves` are deleted.

    `transferred`: bytes of checkpoints and data that followed it, for which `dollars` (US) are
    paid.
    """

    leaves: tuple[Name, ...]
    transferred: Count = 0
    dollars: Amount = 0.0


@_event("cluster.stayed", INTENTION)
class ClusterStayed(Event):
    """The cluster stays as it was, for this `reason` (a clause); what was rented elsewhere is
    deleted.
    """

    reason: str


@_event("cluster.clock", FACT)
class ClusterClock(Event):
    """The emulated clock runs at another rate."""

    anchors: Anchors


@_event("cluster.advised", FACT)
class ClusterAdvised(Event):
    """What Compute Engine advises about Spot VMs with this GPU: by zone, how likely there is one (0
    to 1) and for how many seconds most run (0: unknown).

    `preempted`: of the Spot VMs that ended there within a week, the share that was preempted, where
    that is known. `measured`: not Compute Engine says so, VMs were asked for and given back from
    this machine, of late.
    """

    accelerator: str
    zones: Mapping[str, tuple[float, float]]
    preempted: Mapping[str, float] = field(default_factory=dict[str, float])
    measured: bool = False


@_event("cluster.zones_found", INTENTION)
class ClusterZonesFound(Event):
    """Compute Engine has the GPUs in other zones than the catalog says: by GPU, those in which
    workers may be, best first. `spec`: the declaration with them.
    """

    zones: Mapping[str, tuple[str, ...]]
    spec: Mapping[str, object]


@_event("cluster.priced", INTENTION)
class ClusterPriced(Event):
    """Google's prices are others than those the cluster was declared with; `spec`: the declaration
    with them.

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
    """Compute Engine lists no VM of this cluster any more."""


@_event("cluster.image_chosen", INTENTION)
class ClusterImageChosen(Event):
    """Which image the VMs boot from where none was named (`image`, empty for plain Debian 12);
    `why` is a clause.

    `gpu`: whether it carries a driver, so that VMs with GPUs can boot from it.
    """

    image: str
    why: str
    gpu: bool = True


@_event("vm.requested", FACT)
class VmRequested(Event):
    """A VM was asked for. Prices are US dollars per hour; `replaces` names the VM whose place it
    takes.

    `slot` is the place in the cluster that it fills: the parameter server's number, or the
    how-many-th declared worker. `ends`: the moment at which Compute Engine is to end it, in seconds
    since 1970; 0 where that was not told.
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
    """Compute Engine did not give the VM. `reason` is one sentence.

    `cause`: stockout, quota, quota everywhere (that of all regions), access (a right or a policy),
    or other; `hints`: zones that Compute Engine named as having capacity.
    """

    vm: Name
    reason: str
    cause: str = "other"
    hints: tuple[str, ...] = ()


@_event("vm.running", FACT)
class VmRunning(Event):
    """Compute Engine reports the VM as RUNNING: it costs money from here on.

    `started`: since when, as Compute Engine says, in ns since 1970; 0 where it was not told.
    """

    vm: Name
    address: str
    external_address: str = ""
    vm_id: str = ""
    started: Count = 0


@_event("vm.boot_step", FACT)
class VmBootStep(Event):
    """The VM's start-up script began something; `what` is a clause."""

    vm: Name
    what: str


@_event("vm.boot_failed", FACT)
class VmBootFailed(Event):
    """The VM will not become one that answers. `reason` is a clause; `lines`: the end of what it
    wrote, where known.
    """

    vm: Name
    reason: str
    lines: str = ""


@_event("vm.ready", FACT)
class VmReady(Event):
    """The VM answers over SSH and its agent runs."""

    vm: Name


@_event("vm.unfit", FACT)
class VmUnfit(Event):
    """The VM answers, but cannot do what it was rented for, as train on its GPU. `reason` is a
    clause.
    """

    vm: Name
    reason: str


@_event("vm.preemption_asked", FACT)
class VmPreemptionAsked(Event):
    """The user asked Compute Engine to take the VM back, in `seconds`: what follows is no
    revocation of its own.
    """

    vm: Name
    seconds: float = 0.0


@_event("vm.preemption_notice", FACT)
class VmPreemptionNotice(Event):
    """Compute Engine announced that it takes the VM back.

    It documents how long that takes at most, which are `seconds`; a VM does not learn when exactly,
    nor that `--notice` of the weather makes its end sooner. `noticed` is the VM's own clock, ns.
    """

    vm: Name
    noticed: int = 0
    seconds: Amount = 30.0


@_event("vm.traffic", FACT)
class VmTraffic(Event):
    """What a VM has `sent` and `received` since it started, in bytes. Told of VMs away from the
    parameter servers.
    """

    vm: Name
    sent: Count
    received: Count


@_event("vm.deflated", FACT)
class VmDeflated(Event):
    """The provider took a part of the VM's processors or network, and left it the rest; it runs on.

    `cpu`, `network`: which part of each it has from now on; `cpu_before`, `network_before`: which
    it had.
    """

    vm: Name
    cpu: _Part
    network: _Part
    cpu_before: _Part = 1.0
    network_before: _Part = 1.0


@_event("vm.inflated", FACT)
class VmInflated(Event):
    """The provider gave back some of it, or all. As `vm.deflated`."""

    vm: Name
    cpu: _Part
    network: _Part
    cpu_before: _Part = 1.0
    network_before: _Part = 1.0


@_event("vm.machine_asked", INTENTION)
class VmMachineAsked(Event):
    """The VM is to be stopped, made a `machine_type` and started again; `reason`, a clause, says
    why.

    Prices are US dollars per hour, of the VM as it will be, and of its disk alone (`disk_hourly`);
    `part` is what it will have of the vCPUs that it was rented with.
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
    """We stopped the VM for this `reason`, a clause, and are about to start it again: until then
    its disk alone costs.

    `stopping`: when it was told to stop, as of VmRevoked.
    """

    vm: Name
    reason: str
    stopping: Count = 0


@_event("vm.machine_changed", FACT)
class VmMachineChanged(Event):
    """The VM, which is stopped, is a `machine_type` from now on, and was a `machine_before`."""

    vm: Name
    machine_type: str
    machine_before: str


@_event("vm.machine_refused", FACT)
class VmMachineRefused(Event):
    """Compute Engine does not change the VM, which stays what it was. `reason` is one sentence."""

    vm: Name
    reason: str


@_event("vm.end_set", FACT)
class VmEndSet(Event):
    """The VM, which is stopped, had lost its end: Compute Engine was told it again, `ends` in
    seconds since 1970.
    """

    vm: Name
    ends: Amount


@_event("vm.start_refused", FACT)
class VmStartRefused(Event):
    """Compute Engine did not start the VM, which is stopped. `reason` and `cause` as of VmRefused."""

    vm: Name
    reason: str
    cause: str = "other"


@_event("vm.started", FACT)
class VmStarted(Event):
    """The VM, which was stopped, runs again, `started` as of VmRunning; without an `address` it is
    not as it should be, and is stopped again.
    """

    vm: Name
    address: str
    external_address: str = ""
    started: Count = 0


@_event("reclaim.wanted", INTENTION)
class ReclaimWanted(Event):
    """The provider wants `number` of these `vms` back until then, in seconds since 1970, whichever;
    what is missing then it takes by itself. 0: it wants none any more.
    """

    number: Count
    vms: tuple[Name, ...] = ()
    until: Amount = 0.0


@_event("reclaim.proposed", INTENTION)
class ReclaimProposed(Event):
    """These VMs are to go for this `reason`, a clause; it is asked whether others are to, `until`
    then (seconds since 1970).
    """

    vms: tuple[Name, ...]
    reason: str
    until: Amount


@_event("reclaim.answered", INTENTION)
class ReclaimAnswered(Event):
    """These VMs go, of those that the provider wants back, for this `reason`, a clause.

    `agreed`: it was proposed, and somebody agreed to it.
    """

    vms: tuple[Name, ...]
    reason: str
    agreed: bool = False


@_event("vm.revoked", FACT)
class VmRevoked(Event):
    """The VM is gone without our asking. `signal`: what told us first (`notice`, `ssh`, `api`), or
    `start`: it was stopped and cannot be started again.

    `stopping`: when it was told to stop, as Compute Engine says, in ns since 1970; 0 where that is
    not known.
    """

    vm: Name
    signal: str
    stopping: Count = 0


@_event("vm.deleted", FACT)
class VmDeleted(Event):
    """We ended the VM and it is gone. `stopping`: when it was told to stop, as of VmRevoked."""

    vm: Name
    reason: str
    stopping: Count = 0


@_event("worker.replaced", FACT)
class WorkerReplaced(Event):
    """VM `by` was asked for in the place of `worker`."""

    worker: Name
    by: Name


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _WorkEvent(Event):
    """An event that work of every kind has.

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
    """The work begins nothing more, and is over once what still runs has ended.

    `state` is its state from then on. `reason` is a clause; it is empty for a study whose trials
    are all done.
    """

    reason: str = ""
    state: Literal["finished", "failed", "stopped"] = "stopped"


@_event("work.ended", FACT)
class WorkEnded(_WorkEvent):
    """The work is over, and its VMs are free.

    `reason`, a clause, says why it failed or ended before it was done.
    """

    state: Literal["finished", "failed", "stopped"]
    reason: str = ""


@_event("train.checked", FACT)
class TrainChecked(Event):
    """The run passed its check: a step of it can be built.

    Counted then: the `parameters` of its model, and the `variable_bytes` that parameter servers
    keep for it, the optimizer's among them (0: not known).
    """

    run: Name
    parameters: Count = 0
    variable_bytes: Count = 0
    steps: Count = 0
    """With the next three, what the cell's `model.fit` declares (protocol.run.FitDeclaration), if
    the run's declaration leaves it to the cell.
    """
    epoch_steps: Count = 0
    keep_best: Annotated[str, objective_or_none] = ""
    stop_when: Annotated[str, patience_or_none] = ""


@_event("train.traced", FACT)
class TrainTraced(Event):
    """A step of the worker was traced, and the trace is here; with a `reason`, why not."""

    run: Name
    worker: Name
    reason: str = ""


@_event("train.moved", INTENTION)
class TrainMoved(Event):
    """The user wants this run, which waits, to begin before that one; `before` is empty: before all
    that wait.
    """

    run: Name
    before: NameOrNone = ""


Machines = tuple[tuple[str, Literal["spot", "standard"], Annotated[int, at_least(1)]], ...]
"""Workers: of each GPU (`cpu`: none), transient (spot) or on demand (standard), so many."""


@_event("preparation.scaled", INTENTION)
class PreparationScaled(Event):
    """The VMs in these `slots`, which are nobody else's before or after, prepare the run's
    mini-batches from now on.

    `waiting`: the share of its time that a worker's step waited for its mini-batch (0: not known
    yet).
    """

    run: Name
    slots: tuple[Count, ...]
    waiting: Annotated[float, within(0, 1)] = 0.0


@_event("deadline.acted", INTENTION)
class DeadlineActed(Event):
    """The workers of a run with a deadline are these from now on, for this `reason`, a clause.

    `agreed`: it was proposed, and somebody agreed to it.
    """

    run: Name
    machines: Machines
    reason: str
    agreed: bool = False


@_event("deadline.proposed", INTENTION)
class DeadlineProposed(Event):
    """The same as a proposal, which can be agreed to `until` then, in seconds since 1970; 0: it is
    withdrawn.
    """

    run: Name
    machines: Machines
    reason: str
    until: float


@_event("deadline.outlook", FACT)
class DeadlineOutlook(Event):
    """How a run with a deadline stands.

    `chance` that it is in time; it ends about between `low` and `high`, in seconds since 1970 (0:
    not known yet). US dollars: a step is `worth` so much now, and a Spot worker with that `gpu`
    makes one for `price`.
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
    """It is known that a run ends after its deadline, about at `ends` (seconds since 1970; 0: not
    known), or, where `again` is true, that it can be in time after all. `reason` is a clause.
    """

    run: Name
    ends: Amount
    reason: str
    again: bool = False


@_event("cluster.leased", FACT)
class ClusterLeased(Event):
    """Which runs have begun, each with the number of its ports on the parameter servers, and which
    run, job or Dask cluster has the worker in each place: that of a slot, or a further one on its
    VM (spec/cluster.py).

    `held`: runs that would have enough workers and wait all the same, with what for (check, memory,
    link) and why, a clause. `ahead`: which run makes ready in a slot, to have its worker next.
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

    `unreadable` lines of the journal, torn or damaged, do not count.
    """

    pid: int
    vms: int
    unreadable: int = 0


@_event("controller.moved", INTENTION)
class ControllerMoved(Event):
    """The cluster is from here on in the charge of the controller on `vm`; empty: on the machine
    that declared it.

    The last line of the one that was in charge, and the first fact that the next one knows.
    """

    vm: NameOrNone


@_event("cluster.forgotten", INTENTION)
class ClusterForgotten(Event):
    """The journal of the cluster was removed. It counts with these US `dollars`, the most that it
    can have cost.
    """

    dollars: Amount


@_event("cluster.taken_back", INTENTION)
class ClusterTakenBack(Event):
    """This machine is in charge again, after a controller on a VM was. `left_out`: by kind, how
    many lines of that controller do not count.
    """

    left_out: Mapping[str, Count] = field(default_factory=dict[str, int])


@_event("controller.trouble", FACT)
class ControllerTrouble(Event):
    """Something that the controller goes on trying. `what` is one sentence; empty when it is over."""

    what: str


@_event("image.step", FACT)
class ImageStep(Event):
    """In the journal of an image's build: something begins; `what` is a clause."""

    what: str


@_event("image.built", FACT)
class ImageBuilt(Event):
    """The image is there and its VM is gone, `seconds` after the declaration. `image_id` is Compute
    Engine's number.
    """

    image: str
    seconds: float
    image_id: str = ""


@_event("image.failed", FACT)
class ImageFailed(Event):
    """There is no image; `reason` is one sentence, behind it perhaps the last lines of the start-up
    script.
    """

    reason: str


def encode(event: Event) -> bytes:
    """The event's line, with its newline; of a text no more than is read again."""
    values = event.to_dict()
    values = {
        name: clipped(value) if isinstance(value, str) else value for name, value in values.items()
    }
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def kinds() -> list[str]:
    """All kinds of events, and their families, in order."""
    found = known.kinds()
    return sorted({*found, *(kind.partition(".")[0] for kind in found)})


def decode(line: bytes) -> Event:
    """The event of one line. Raises JournalError for a line that is none (as a torn one)."""
    try:
        return known.decode(line)
    except ValueError as error:
        raise JournalError(
            f"A journal line cannot be read: {error}", where=repr(line[:80])
        ) from error


def from_dict(kind: str, values: Mapping[str, object]) -> Event:
    """An event from plain values. Unknown kinds become `Unknown`; unknown fields are passed over.

    Raises JournalError where a field is not as it should be.
    """
    try:
        return known.from_values({**values, "kind": kind})
    except ValueError as error:
        raise JournalError(f"An event cannot be read: {error}") from error
