"""The state of a cluster, of its VMs and of its runs, as the result of its journal's events.

The rules by which events change it are in `folding`. Nothing here changes: a rule makes a new
state. Times are in seconds since 1970. They are 0 if something has not happened or is unknown,
unless a field says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from ..clock import Clock
from ..errors import NameTakenError, UnknownWorkError, unknown
from ..kinds import KINDS
from ..protocol.machines import WHOLE, Share
from ..protocol.objective import Objective
from ..protocol.run import RunSpec
from ..protocol.vm_events import TrainBest, TrainData, TrainMeasured, TrainSlow
from ..spec import PARAMETER_SERVER, PREPARATION, WORKER, ClusterSpec
from ..spec.cluster import places, slot_of
from ..spec.namespace import possible_studies, refusal
from . import events as e
from .deadlines import DeadlineState
from .events import Event
from .power import MachineChange, Stretch
from .work import Work, Works

_State = TypeVar("_State", bound=Work[object])

MOST_FAILED_BOOTS = 2
"""How many VMs of one kind may fail in a row, before no further one is requested.

A VM fails if it does not boot or cannot do its work. Further ones would cost money for nothing.
"""


_STALE_SECONDS = 30.0
"""The age at which a reported speed no longer counts: one is reported every ten seconds."""


@dataclass(frozen=True, slots=True)
class VmState:
    """One VM. Times in seconds since 1970 (0: not yet); prices in US dollars per hour.

    `state`: requested, booting, ready, leaving (preemption notice), revoked, deleted, refused;
    stopping and stopped, to be started again as another machine.
    """

    name: str
    role: str
    slot: int
    zone: str
    accelerator: str
    machine_type: str
    provisioning_model: str
    hourly: float
    on_demand_hourly: float
    state: str = "requested"
    address: str = ""
    external_address: str = ""
    vm_id: str = ""
    replaces: str | None = None
    reason: str = ""
    cause: str = ""
    hints: tuple[str, ...] = ()
    requested_at: float = 0.0
    ends: float = 0.0
    """When Compute Engine will end it, as the request asked; 0 if unknown."""
    running_at: float = 0.0
    """When the controller recorded that it runs."""
    ready_at: float = 0.0
    """The moment of its first answer."""
    step: str = ""
    """The present step of its start-up script, until it answers."""
    failure: str = ""
    """Why it will not answer or cannot do its work, a clause."""
    noticed_at: float = 0.0
    notice_seconds: float = 30.0
    """Seconds from the preemption notice until the VM ends.

    Until its shutdown begins, for a VM with a longer notice.
    """
    ended_at: float = 0.0
    started_at: float = 0.0
    """When it started, as reported by Compute Engine."""
    stopping_at: float = 0.0
    """When it began to stop, as reported by Compute Engine."""
    traffic_bytes: int = 0
    """Bytes sent and received, of a VM whose traffic costs money."""
    traffic_rate: float = 0.0
    """The latest rate of its traffic, in bytes per second."""
    traffic_at: float = 0.0
    coming: bool = False
    """Whether it was rented for a move that is not complete yet: no work has it."""
    left: bool = False
    """Whether the cluster has left it behind, after a move or a smaller size: it is deleted.

    This is unlike the state `leaving`, which a preemption notice causes.
    """
    left_at: float = 0.0
    """When the cluster left it behind."""
    arrived_at: float = 0.0
    """The end of the move for which it was rented; infinite if that move was cancelled."""
    gib_price: float | None = None
    """US dollars per GiB of its traffic, of a VM that was left (default: as declared)."""
    transfer: Mapping[str, float] = field(default_factory=dict[str, float])
    """The cost of its traffic in US dollars, by the work that had the VM; "" for no work."""
    share: Share = WHOLE
    """The share of its processors and network that its provider leaves it."""
    shares: tuple[tuple[float, Share], ...] = ()
    """The latest shares, each with its first moment."""
    change: MachineChange | None = None
    """The requested change to another machine type, until it is complete."""
    powered: tuple[Stretch, ...] = ()
    """Its stretches as different machines, of a VM that was stopped and started again."""
    restarted_at: float = 0.0
    """When the controller saw that it ran again."""

    @property
    def living(self) -> bool:
        """Whether it was requested and is not gone."""
        return self.state in ("requested", "booting", "ready", "leaving", "stopping", "stopped")

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """Its stretches since its first start: as which machine, at which price."""
        began = self.started_at or self.running_at
        only = Stretch(
            began, self.machine_type, self.hourly, self.on_demand_hourly, ready_at=self.ready_at
        )
        return self.powered or (only,)

    def ran_at(self, moment: float) -> Stretch:
        """Return the last stretch in which it ran that began until `moment`; else its first one."""
        ran = (
            stretch
            for stretch in reversed(self.stretches)
            if stretch.runs and stretch.since <= moment
        )
        return next(ran, self.stretches[0])

    @property
    def ran(self) -> Stretch:
        """The last stretch in which it ran."""
        return self.ran_at(math.inf)

    @property
    def answered_at(self) -> float:
        """The moment of its first answer after its latest start; 0 until then."""
        if self.powered:
            return self.powered[-1].ready_at
        return self.ready_at

    @property
    def rented_as(self) -> str:
        """Its machine type when it was rented."""
        return self.stretches[0].machine_type

    @property
    def part(self) -> float:
        """The share that it has of the vCPUs with which it was rented."""
        return self.ran.part

    @property
    def boots_as(self) -> str:
        """Its `boot_key`."""
        return boot_key(self.role, self.accelerator)


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker process that takes part in a run."""

    name: str
    number: int
    joined_at: float


@dataclass(frozen=True, slots=True)
class Preparation:
    """The VMs that prepare a run's mini-batches.

    They are those in `slots`, from `since` on. The run keeps at least `least` of them, because
    fewer were not enough once. `gave_back`: whether it had more than it needed. `waited`: the
    latest reports, each with its moment and the share of step time that workers waited.
    """

    slots: tuple[int, ...] = ()
    since: float = 0.0
    least: int = 1
    gave_back: bool = False
    waited: tuple[tuple[float, float], ...] = ()


class EvaluatedPart(NamedTuple):
    """The part of its split that an evaluation covered, as in TrainEvaluated."""

    examples: int = 0
    complete: bool = True
    of: int = 0
    """Examples of the whole split; 0 if unknown."""
    endless: bool = False


@dataclass(frozen=True, slots=True)
class RunState(Work[RunSpec]):
    """One run. If it was stopped, its phase is `finished`, unlike other work, and `stopped` is set.

    `series`: (time, step, loss, steps per second); `checkpoints`: (time, step); `evaluations`:
    (time, step, metrics); `epochs`: (time, step, metrics), training metrics among them. Each has a
    limited number of points.
    """

    kind = "run"
    trains = True

    started_at: float = 0.0
    step: int = 0
    loss: float | None = None
    steps_per_second: float = 0.0
    workers: Mapping[str, WorkerState] = field(default_factory=dict[str, WorkerState])
    checked: bool = False
    parameters: int = 0
    """Parameters of its model; 0 if they were not counted."""
    variable_bytes: int = 0
    """Bytes of its variables on parameter servers, with the optimizer's; 0 if unknown."""
    server_bytes: int = 0
    """Peak memory of its process on the first parameter server's VM, in bytes; 0 if unknown."""
    checkpoint_step: int | None = None
    checkpoint: str = ""
    shipped_step: int | None = None
    shipped: str = ""
    """The `gs://` path of the checkpoint of `shipped_step`."""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Metrics of the latest evaluation; NaN if a value is not a number."""
    evaluated: EvaluatedPart = field(default_factory=EvaluatedPart)
    """The part of the split on which `metrics` were computed."""
    unevaluated: tuple[float, int, str] | None = None
    """Time, step and reason, if the latest evaluation failed."""
    unsaved: tuple[float, int, str] | None = None
    """Time, step and reason, while checkpoints cannot be written."""
    slow: TrainSlow | None = None
    """The present bottleneck of a run that is slow."""
    order: str = ""
    """Why its workers cannot start at any of their examples; empty if they can."""
    data: TrainData | None = None
    """Statistics of its records, if they come in blocks."""
    preparation: Preparation = Preparation()
    traced: e.TrainTraced | None = None
    """The latest requested trace."""
    stopped: bool = False
    best: TrainBest | None = None
    """The best evaluation, of a run that keeps its checkpoint."""
    deadline: DeadlineState | None = None
    """The state of its deadline, if it has one."""
    measured: tuple[TrainMeasured, ...] = ()
    """The measures of a run that measures stalls, in their order."""
    made: bool = False
    """Whether its steps are made and saved: only its evaluation may still run."""
    series: tuple[tuple[float, int, float | None, float], ...] = ()
    checkpoints: tuple[tuple[float, int], ...] = ()
    evaluations: tuple[tuple[float, int, Mapping[str, float]], ...] = ()
    epochs: tuple[tuple[float, int, Mapping[str, float]], ...] = ()

    @property
    def owner(self) -> str:
        """The study of which it is a trial; else empty."""
        return self.spec.study

    @property
    def train_steps(self) -> int:
        """The declared number of steps, over all workers; 0 while unknown here."""
        return self.spec.train_steps

    def seconds_left(self, now: float) -> float:
        """Return the seconds to its last step at the latest speed; infinity if not recent."""
        if not self.series or not self.workers:
            return math.inf
        reported_at, step, _, speed = self.series[-1]
        age = now - reported_at
        if speed <= 0 or age > _STALE_SECONDS:
            return math.inf
        return max(0.0, (self.train_steps - step) / speed - age)

    def value_of(self, goal: Objective) -> float | None:
        """Return its value by `goal` so far.

        This is the best finite value if the run has an objective, else the latest one. None if it
        was not measured, NaN if the latest one is not a number.
        """
        values = [found[goal.metric] for _, _, found in self.evaluations if goal.metric in found]
        finite = [value for value in values if math.isfinite(value)]
        if finite and self.spec.objective is not None:
            if goal.direction == "max":
                return max(finite)
            return min(finite)
        return self.metrics.get(goal.metric)


Claim = Work[object]
"""Any work that may have workers."""


def unknown_run(name: str, **fields: object) -> RunState:
    """Return a run whose declaration has only these fields, which were checked."""
    spec = cast("Callable[..., RunSpec]", RunSpec)
    return RunState(name, spec(**{"name": name, "train_steps": 0, **fields}))


@dataclass(frozen=True, slots=True)
class Relocation:
    """A move under way: the declaration of the cluster after it, and when it began."""

    spec: ClusterSpec
    began_at: float


@dataclass(frozen=True, slots=True)
class Reclaim:
    """VMs that the provider wants back: its request, the proposal, and the answer."""

    request: e.ReclaimWanted
    proposed: e.ReclaimProposed | None = None
    answered: e.ReclaimAnswered | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One cluster. `phase`: unknown, provisioning, ready, deleting, deleted."""

    name: str = ""
    phase: str = "unknown"
    spec: ClusterSpec | None = None
    declared_at: float = 0.0
    ready_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""
    vms: Mapping[str, VmState] = field(default_factory=dict[str, VmState])
    works: Works = field(default_factory=Works)
    """All work that was ever declared on the cluster, by name: one name space for all kinds."""
    failed_boots: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of VMs in a row that did not boot, by `boot_key`."""
    unfit: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of VMs in a row that responded but could not do their work, by `boot_key`."""
    revocations: int = 0
    seat: str = ""
    """The VM with the controller; empty if it runs on the machine that declared the cluster."""
    trouble: str = ""
    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    """Port numbers of runs that have begun, on the parameter servers."""
    leases: Mapping[int, str] = field(default_factory=dict[int, str])
    """The work that has the worker in a place (`spec/cluster.py`), whichever VM is there."""
    leased_at: Mapping[int, float] = field(default_factory=dict[int, float])
    """Start of each lease in `leases`."""
    tenures: Mapping[str, tuple[tuple[int, float, float], ...]] = field(
        default_factory=dict[str, tuple[tuple[int, float, float], ...]]
    )
    """Earlier places of each work, each with begin and end."""
    held_back: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Runs that wait although they have enough workers.

    For each: what it waits for (check, memory, link), and why, a clause.
    """
    ahead: Mapping[int, str] = field(default_factory=dict[int, str])
    """The run that prepares in a slot, to have the worker there next."""
    order: tuple[str, ...] = ()
    """The order of the runs at the time of the user's last change of it."""
    clock: Clock = field(default_factory=Clock)
    advice: Mapping[str, e.ClusterAdvised] = field(default_factory=dict[str, e.ClusterAdvised])
    """The latest advice, by GPU."""
    preparers: Mapping[int, str] = field(default_factory=dict[int, str])
    """The run for which the VM in a slot prepares mini-batches, or did."""
    relocation: Relocation | None = None
    reclaim: Reclaim | None = None
    """VMs that the provider wants back, while it does."""
    transferred_dollars: float = 0.0
    """Transfer cost of checkpoints and data that moved with the cluster."""
    forgotten_dollars: float = 0.0
    """The maximum cost of the cluster before its journal was removed."""
    recent: tuple[Event, ...] = ()
    """The latest events, without frequent ones (`folding.RECENT`), the oldest first."""
    seq: int = 0
    passed_over: int = 0
    """Number of events that did not fit the state."""

    @property
    def over(self) -> bool:
        """Whether the cluster is deleted."""
        return self.phase == "deleted"

    @property
    def living(self) -> list[VmState]:
        """The VMs that were requested and are not gone."""
        return [vm for vm in self.vms.values() if vm.living]

    @property
    def serving(self) -> list[VmState]:
        """The living VMs that work may have: all of them, except during a move."""
        return [vm for vm in self.vms.values() if vm.living and not vm.coming and not vm.left]

    @property
    def wanted_back(self) -> list[str]:
        """The living VMs without a notice among those of which the provider wants some back."""
        names = self.reclaim.request.vms if self.reclaim else ()
        return [
            name
            for name in names
            if (vm := self.vms.get(name)) and vm.living and vm.state != "leaving"
        ]

    @property
    def still_wanted(self) -> int:
        """The number of VMs in `wanted_back` that have to go."""
        if self.reclaim is None:
            return 0
        request = self.reclaim.request
        gone = len(request.vms) - len(self.wanted_back)
        return max(request.number - gone, 0)

    @property
    def proposed_to_go(self) -> tuple[str, ...]:
        """The proposed VMs that still have to go."""
        proposed = self.reclaim.proposed if self.reclaim else None
        if proposed:
            there = [name for name in proposed.vms if name in self.wanted_back]
        else:
            there = []
        return tuple(there[: self.still_wanted])

    @property
    def given_up(self) -> frozenset[str]:
        """The `boot_key`s of VMs that are no longer requested: too many failed in a row."""
        counted = (*self.failed_boots.items(), *self.unfit.items())
        return frozenset(key for key, times in counted if times >= MOST_FAILED_BOOTS)

    @property
    def idle_since(self) -> float:
        """When the cluster became ready and idle; 0 if it is not."""
        if not self.ready_at or any(not work.over for work in self.works.values()):
            return 0.0
        return max([self.ready_at, *(work.ended_at for work in self.works.values())])

    @property
    def stranded(self) -> bool:
        """Whether no run can continue: a parameter server is lost and no longer requested."""
        return boot_key(PARAMETER_SERVER, "") in self.given_up and any(map(_is_lost, self._servers))

    @property
    def stranded_since(self) -> float:
        """When it became stranded; 0 if it is not, or while no lost server has ended."""
        if self.stranded:
            return max((vm.ended_at for vm in self._servers if _is_lost(vm)), default=0.0)
        return 0.0

    @property
    def unused_since(self) -> float:
        """When it became idle or stranded; 0 if it is neither, or has work without servers."""
        if self.has_work_without_servers:
            return 0.0
        return min(filter(None, (self.idle_since, self.stranded_since)), default=0.0)

    @property
    def _servers(self) -> Iterable[VmState]:
        """The latest VM in each slot of a parameter server."""
        servers = (
            vm
            for vm in self.vms.values()
            if vm.role == PARAMETER_SERVER and not vm.coming and not vm.left
        )
        # Later VMs replace earlier ones of their slot.
        return {vm.slot: vm for vm in servers}.values()

    def seconds_left(self, now: float) -> float:
        """Return the seconds on this machine's clock until time or cost limits end the cluster."""
        if self.spec is None:
            return 0.0
        passed = self.clock.between(self.spec.declared_at, now)
        return (self.spec.ends_at - self.spec.declared_at - passed) / self.clock.rate

    def of(self, state: type[_State]) -> Mapping[str, _State]:
        """Return all work of one kind by name, as in `of(JobState)`."""
        return self.works.of(state)

    def of_kind(self, kind: str) -> Mapping[str, Work[object]]:
        """Return all work of one kind by name, as in `of_kind("job")`."""
        return self.works.of_kind(kind)

    @property
    def kind_by_name(self) -> dict[str, str]:
        """The kind of all work that was ever declared on the cluster, by name."""
        return {name: kind for kind in KINDS for name in self.of_kind(kind)}

    def refuse_unknown(self, kind: str, name: str) -> None:
        """Raise UnknownWorkError if the cluster never had work of this kind and name."""
        there = self.of_kind(kind)
        if name not in there:
            raise unknown(
                str(KINDS[kind]),
                name,
                there,
                where=self.name,
                numbered=True,
                error=UnknownWorkError,
            )

    def name_conflict(self, kind: str, name: str, *, owner: str | None = None) -> str:
        """Return why new work of this kind cannot have `name`, in one sentence; empty if it can.

        `owner`: the study or bag to which the work belongs (default: the one that requested work of
        this name).
        """
        if owner is None:
            owner = self._owner(name)
        return refusal(self.name, kind, name, self.kind_by_name, owner=owner)

    def refuse_taken(self, kind: str, name: str) -> None:
        """Raise NameTakenError if other work of the cluster has or reserves the name."""
        if why := self.name_conflict(kind, name):
            raise NameTakenError(why, fix="Choose another --name.")

    def _owner(self, name: str) -> str:
        """Return the work that began work with this name; empty if there is none."""
        for work in self.works.values():
            if name in work.members:
                return work.name
        return ""

    def study_of(self, run: str) -> str:
        """Return the study that reserves the name of the run for a trial; empty if none.

        Studies that would reserve the same name cannot both be declared (`spec.namespace`).
        """
        studies = self.of_kind("study")
        return next((study for study in possible_studies(run) if study in studies), "")

    @property
    def run(self) -> RunState | None:
        """The latest run."""
        return self.works.latest(RunState)

    @property
    def turns(self) -> list[RunState]:
        """The runs that are not over, in the order in which they start."""
        active = [run for run in self.of(RunState).values() if not run.over]
        places = {name: place for place, name in enumerate(self.order)}
        return sorted(active, key=lambda run: places.get(run.name, len(places)))

    def active(self, state: type[_State]) -> list[_State]:
        """Return the work of one kind that is not over, in the order of its declaration.

        Parameters
        ----------
        state
            The class of its states, as in `active(JobState)`.
        """
        return [work for work in self.of(state).values() if not work.over]

    @property
    def has_work_without_servers(self) -> bool:
        """Whether work is active that needs no parameter servers: a job, Dask cluster or bag."""
        return any(not work.over and not work.trains for work in self.works.values())

    @property
    def claims(self) -> list[Claim]:
        """All work that has workers and is not over, in the order in which it begins."""
        places = {name: place for place, name in enumerate(self.order)}
        works = [work for kind in KINDS for work in self.of_kind(kind).values()]
        found = [work for work in works if work.takes_workers and not work.over]
        return sorted(
            found, key=lambda work: (places.get(work.name, len(places)), work.declared_at)
        )

    @property
    def deadline_run(self) -> RunState | None:
        """The run with a deadline, which has the cluster for itself."""
        return next((run for run in self.turns if run.spec.finish_by), None)

    @property
    def steered(self) -> e.Machines | None:
        """The workers of a run with a deadline, which override the declaration; None: as declared.

        After the end of the run, and until other work has workers, its Spot workers stay and those
        on demand go.
        """
        if run := self.deadline_run:
            if run.deadline and run.deadline.acted:
                return run.deadline.acted.machines
            return None
        run = self.run
        if run is None or not (run.deadline and run.deadline.acted) or self.claims or self.studying:
            return None
        return tuple(machine for machine in run.deadline.acted.machines if machine[1] != "standard")

    @property
    def queue(self) -> list[RunState]:
        """The runs that have not started, in their order."""
        return [run for run in self.turns if not self.has_begun(run)]

    @property
    def current_or_next_run(self) -> RunState | None:
        """The first run that trains; else the next one in the queue."""
        turns = self.turns
        return next((run for run in turns if self.has_begun(run)), next(iter(turns), None))

    @property
    def studying(self) -> bool:
        """Whether a study is active: work that starts runs, and may have none at the moment."""
        return any(
            work.trains and not work.takes_workers and not work.over for work in self.works.values()
        )

    def has_begun(self, run: Claim) -> bool:
        """Return whether a run has or had parameter servers, or other work has or had workers."""
        if not isinstance(run, RunState):
            return run.phase != "declared" or run.name in self.leases.values()
        return run.phase != "declared" or run.name in self.ports

    def has(self, name: str, vm: VmState) -> bool:
        """Return whether work has a worker's place on this VM."""
        return vm.role == WORKER and any(
            self.leases.get(place) == name for place in places(vm.slot)
        )

    def ready_for(self, name: str) -> list[VmState]:
        """Return the ready VMs in the slots that work has, by slot."""
        ready = [vm for vm in self.serving if vm.state == "ready" and not vm.failure]
        by_slot = {vm.slot: vm for vm in ready if self.has(name, vm)}
        return [by_slot[slot] for slot in sorted(by_slot)]

    def lives(self, vm: str) -> bool:
        """Return whether the cluster has a VM of this name that is not gone."""
        found = self.vms.get(vm)
        return found is not None and found.living

    def loss_of(self, vm: str) -> str:
        """Return how work lost a VM, a clause such as `worker-1 was revoked`."""
        found = self.vms.get(vm)
        if found is None or found.state in ("revoked", "leaving"):
            return f"{vm} was revoked"
        if found.reason:
            return f"{vm} was deleted: {found.reason}"
        return f"{vm} was lost"

    def slots_of(self, name: str) -> set[int]:
        """Return the slots in which work has places."""
        return {slot_of(place) for place, owner in self.leases.items() if owner == name}

    def holders(self, vm: VmState) -> list[str]:
        """Return the work that uses the VM now: several if trials share it."""
        if vm.role == PREPARATION:
            names = [self.preparers.get(vm.slot, "")]
        else:
            if vm.role == WORKER:
                names = [self.leases.get(place, "") for place in places(vm.slot)]
            else:
                names = []
        return [name for name in dict.fromkeys(names) if name and not self.ended_of(name)]

    def had(self, name: str, vm: VmState, moment: float) -> bool:
        """Return whether work had a worker's place on the VM at a moment (seconds since 1970)."""
        if vm.role != WORKER or moment > (self.ended_of(name) or moment):
            return False
        begins = [
            self.leased_at.get(place, 0.0)
            for place, owner in self.leases.items()
            if owner == name and slot_of(place) == vm.slot
        ]
        spans = [
            (begin, end)
            for place, begin, end in self.tenures.get(name, ())
            if slot_of(place) == vm.slot
        ]
        return any(begin <= moment for begin in begins) or any(
            begin <= moment <= end for begin, end in spans
        )

    def ended_of(self, name: str) -> float:
        """Return when work ended; 0 while it runs, and for unknown work."""
        work = self.works.get(name)
        return work.ended_at if work and work.over else 0.0

    def byte_price(self, vm: VmState) -> float:
        """Return the price in US dollars of a byte between the VM and parameter servers."""
        price = vm.gib_price
        if price is None:
            if self.spec:
                price = self.spec.transfer_prices.get(vm.zone, 0.0)
            else:
                price = 0.0
        return price / 2**30

    def runs_of(self, vm: VmState) -> list[RunState]:
        """Return the runs in which the VM trains: one, or trials that share it."""
        return [
            run for run in self.of(RunState).values() if not run.over and vm.name in run.workers
        ]


def _is_lost(vm: VmState) -> bool:
    return not vm.living or bool(vm.failure)


def boot_key(role: str, accelerator: str) -> str:
    """Return the kind of a VM for counts of failures, such as `worker (t4)`."""
    if accelerator:
        return f"{role} ({accelerator})"
    return role
