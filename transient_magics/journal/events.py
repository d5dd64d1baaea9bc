"""Typed events: every decision and fact about one cluster.

An event is one line of JSON: `seq` (1, 2, ...), `time` (nanoseconds since 1970, UTC), `kind`, and the kind's fields.
Reading keeps kinds of newer versions as `Unknown` and passes over fields that it does not know, so that an old notebook
can read a new journal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

from ..errors import JournalError


@dataclass(frozen=True, kw_only=True)
class Event:
    """What all events have. `seq` and `time` are set by the journal when the event is appended."""

    kind: ClassVar[str] = ""
    seq: int = 0
    time: int = 0

    @property
    def at(self) -> float:
        """`time` in seconds since 1970."""
        return self.time / 1e9

    def to_dict(self) -> dict[str, Any]:
        """The event as plain JSON values, `seq`, `time` and `kind` first."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("seq", "time")}
        return {"seq": self.seq, "time": self.time, "kind": self.kind, **own}


_Kind = TypeVar("_Kind", bound=type[Event])
_KINDS: dict[str, type[Event]] = {}
_FIELDS: dict[str, frozenset[str]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def _event(kind: str) -> Callable[[_Kind], _Kind]:
    def register(cls: _Kind) -> _Kind:
        cls = dataclass(frozen=True, kw_only=True)(cls)
        cls.kind = kind
        _KINDS[kind] = cls
        _FIELDS[kind] = frozenset(each.name for each in fields(cls))
        return cls

    return register


@dataclass(frozen=True, kw_only=True)
class Unknown(Event):
    """An event of a kind that this version does not know; `values` is the whole line."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.values)


@_event("cluster.declared")
class ClusterDeclared(Event):
    """The user asked for this cluster. `spec` is ClusterSpec.to_dict()."""

    spec: Mapping[str, Any]


@_event("cluster.ready")
class ClusterReady(Event):
    """Every declared VM answers; `seconds` since the declaration."""

    workers: int
    seconds: float


@_event("cluster.resized")
class ClusterResized(Event):
    """The user asked for other workers. `spec` is the whole new ClusterSpec.to_dict()."""

    spec: Mapping[str, Any]


@_event("cluster.clock")
class ClusterClock(Event):
    """The emulated clock runs at another rate. `anchors`: those of `Clock`, all of them."""

    anchors: tuple[tuple[float, float, float], ...]


@_event("cluster.advised")
class ClusterAdvised(Event):
    """What Compute Engine advises about Spot VMs with this GPU: by zone, how likely one is to be had (0 to 1) and for
    how many seconds most run (0: unknown).

    `preempted`: of the Spot VMs that ended there within a week, the share that was preempted, where that is known.
    """

    accelerator: str
    zones: Mapping[str, tuple[float, float]]
    preempted: Mapping[str, float] = field(default_factory=dict)


@_event("cluster.zones_found")
class ClusterZonesFound(Event):
    """Compute Engine has the GPUs in other zones than the catalog says: by GPU, those in which workers may be, best
    first. `spec`: the declaration with them."""

    zones: Mapping[str, tuple[str, ...]]
    spec: Mapping[str, Any]


@_event("cluster.priced")
class ClusterPriced(Event):
    """Google's prices are others than those the cluster was declared with; `spec`: the declaration with them.

    `hourly` and `on_demand_hourly` are US dollars for the whole cluster.
    """

    hourly: float
    on_demand_hourly: float
    spec: Mapping[str, Any]


@_event("cluster.deleting")
class ClusterDeleting(Event):
    """Teardown began; `reason` is a clause (`asked by the user`, `the time limit of 24 h`)."""

    reason: str


@_event("cluster.deleted")
class ClusterDeleted(Event):
    """Compute Engine lists no VM of this cluster any more."""


@_event("cluster.image_chosen")
class ClusterImageChosen(Event):
    """Which image the VMs boot from where none was named (`image`, empty for plain Debian 12); `why` is a clause.

    `gpu`: whether it carries a driver, so that VMs with GPUs can boot from it.
    """

    image: str
    why: str
    gpu: bool = True


@_event("vm.requested")
class VmRequested(Event):
    """A VM was asked for. Prices are US dollars per hour; `replaces` names the VM whose place it takes.

    `slot` is the place in the cluster that it fills: the parameter server's number, or the how-many-th declared worker.
    """

    vm: str
    role: str
    slot: int
    zone: str
    accelerator: str
    machine_type: str
    provisioning_model: str
    hourly: float
    on_demand_hourly: float
    replaces: str | None = None


@_event("vm.refused")
class VmRefused(Event):
    """Compute Engine did not give the VM. `reason` is one sentence.

    `cause`: stockout, quota, or other; `hints`: zones that Compute Engine named as having capacity.
    """

    vm: str
    reason: str
    cause: str = "other"
    hints: tuple[str, ...] = ()


@_event("vm.running")
class VmRunning(Event):
    """Compute Engine reports the VM as RUNNING: it costs money from here on."""

    vm: str
    address: str
    external_address: str = ""
    vm_id: str = ""


@_event("vm.ready")
class VmReady(Event):
    """The VM answers over SSH and its agent runs."""

    vm: str


@_event("vm.preemption_asked")
class VmPreemptionAsked(Event):
    """The user asked Compute Engine to take the VM back, in `seconds`: what follows is no revocation of its own."""

    vm: str
    seconds: float = 0.0


@_event("vm.preemption_notice")
class VmPreemptionNotice(Event):
    """Compute Engine announced that it takes the VM back; some 30 s are left. `noticed` is the VM's own clock, ns."""

    vm: str
    noticed: int = 0


@_event("vm.traffic")
class VmTraffic(Event):
    """What a VM has `sent` and `received` since it started, in bytes. Told of VMs away from the parameter servers."""

    vm: str
    sent: int
    received: int


@_event("vm.revoked")
class VmRevoked(Event):
    """The VM is gone without our asking. `signal`: what told us first (`notice`, `ssh`, `api`)."""

    vm: str
    signal: str


@_event("vm.deleted")
class VmDeleted(Event):
    """We ended the VM and it is gone."""

    vm: str
    reason: str


@_event("worker.joined")
class WorkerJoined(Event):
    """A worker process takes part in a run, under a `number` that is never used twice; `active` workers now."""

    run: str
    worker: str
    number: int
    active: int


@_event("worker.left")
class WorkerLeft(Event):
    """A worker process takes no part any more. `reason`: finished, revoked, lost, or told to leave."""

    run: str
    worker: str
    number: int
    active: int
    reason: str


@_event("worker.batch_resized")
class WorkerBatchResized(Event):
    """A worker takes mini-batches of `new` examples (of text: tokens), not of `old`.

    `reason`: static, dynamic, revocation, join or oom.
    """

    run: str
    worker: str
    old: int
    new: int
    reason: str


@_event("worker.replaced")
class WorkerReplaced(Event):
    """VM `by` was asked for in the place of `worker`."""

    worker: str
    by: str


@_event("train.declared")
class TrainDeclared(Event):
    """The user asked for this run. `spec` is TrainSpec.to_dict() without its token."""

    run: str
    spec: Mapping[str, Any]


@_event("train.started")
class TrainStarted(Event):
    """The chief initialised or restored the model; training goes on from `step`."""

    run: str
    step: int


@_event("train.progress")
class TrainProgress(Event):
    """Where the run stands, over the whole cluster."""

    run: str
    step: int
    loss: float | None = None
    steps_per_second: float = 0.0
    samples_per_second: float = 0.0
    active: int = 0


@_event("train.checkpoint")
class TrainCheckpoint(Event):
    """A checkpoint was written; `seconds` it took, its size in `bytes`, `path` within the run's folder.

    `next_seconds` is when the next is planned, of a run whose interval follows from what its checkpoints cost.
    `worker` wrote it (`--chief worker`); the chief did where it is empty. `asked`: it was begun because somebody asked
    for one, and so has every step that was made before.
    """

    run: str
    step: int
    path: str
    seconds: float = 0.0
    bytes: int = 0
    worker: str = ""
    next_seconds: float | None = None
    asked: bool = False


@_event("train.shipped")
class TrainShipped(Event):
    """The checkpoint of `step` is in the bucket: `path` is what TensorFlow calls it there (`gs://...`)."""

    run: str
    step: int
    path: str
    seconds: float = 0.0
    bytes: int = 0


@_event("train.unshipped")
class TrainUnshipped(Event):
    """A checkpoint could not be brought into the bucket (`reason`); the controller brings it to this machine."""

    run: str
    reason: str


@_event("train.slow")
class TrainSlow(Event):
    """The cluster makes `speed` examples per second where its workers were seen to make `expected`.

    The likely `bottleneck` is `worker` (which one says `worker`), `parameter server` (its CPU; of several, `server`
    says which) or `network`.
    """

    run: str
    speed: float
    expected: float
    bottleneck: str
    worker: str = ""
    server: str = ""


@_event("train.recovered")
class TrainRecovered(Event):
    """The cluster, which was slow, makes `speed` of the `expected` examples per second again."""

    run: str
    speed: float
    expected: float


@_event("train.evaluated")
class TrainEvaluated(Event):
    """The dev split's metrics at `step`, by name."""

    run: str
    step: int
    metrics: Mapping[str, float]


@_event("train.unevaluated")
class TrainUnevaluated(Event):
    """The checkpoint of `step` could not be evaluated (`reason`). Training goes on, and the next one is evaluated."""

    run: str
    step: int
    reason: str


@_event("train.finished")
class TrainFinished(Event):
    """The run reached its steps (or was stopped by the user); its results are on this machine or in its bucket."""

    run: str
    step: int
    loss: float | None = None
    seconds: float = 0.0
    checkpoint: str = ""
    stopped: bool = False


@_event("train.failed")
class TrainFailed(Event):
    """The run ended without reaching its steps. `reason` is one sentence."""

    run: str
    reason: str
    step: int = 0


@_event("controller.started")
class ControllerStarted(Event):
    """A controller process took charge of the cluster for the first time."""

    pid: int
    version: str = ""


@_event("controller.recovered")
class ControllerRecovered(Event):
    """A controller took charge after another one ended; it found `vms` living VMs."""

    pid: int
    vms: int


@_event("controller.moved")
class ControllerMoved(Event):
    """The cluster is from here on in the charge of the controller on `vm`; empty: on the machine that declared it.

    The last line of the one that was in charge, and the first fact that the next one knows.
    """

    vm: str


@_event("controller.trouble")
class ControllerTrouble(Event):
    """Something that the controller goes on trying. `what` is one sentence; empty when it is over."""

    what: str


@_event("image.step")
class ImageStep(Event):
    """In the journal of an image's build: something begins; `what` is a clause."""

    what: str


@_event("image.built")
class ImageBuilt(Event):
    """The image is there and its VM is gone, `seconds` after the declaration. `image_id` is Compute Engine's number."""

    image: str
    seconds: float
    image_id: str = ""


@_event("image.failed")
class ImageFailed(Event):
    """There is no image; `reason` is one sentence, behind it perhaps the last lines of the start-up script."""

    reason: str


def encode(event: Event) -> bytes:
    """The event's line, with its newline."""
    return json.dumps(event.to_dict(), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def kinds() -> list[str]:
    """All kinds of events, and their families, in order."""
    return sorted({*_KINDS, *(kind.partition(".")[0] for kind in _KINDS)})


def decode(line: bytes) -> Event:
    """The event of one line. Raises JournalError for a line that is none (as a torn one)."""
    try:
        values = json.loads(line)
        kind = values["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"A journal line cannot be read: {line[:80]!r}") from error
    return from_dict(kind, values)


def from_dict(kind: str, values: Mapping[str, Any]) -> Event:
    """An event from plain values (as VMs send them). Unknown kinds become `Unknown`; unknown fields are passed over."""
    cls = _KINDS.get(kind)
    if cls is None:
        return Unknown(seq=values.get("seq", 0), time=values.get("time", 0), values=values)
    known = _FIELDS[kind]
    try:
        return cls(**{key: value for key, value in values.items() if key in known})
    except TypeError as error:
        raise JournalError(f"A {kind} event lacks a field: {error}") from error
