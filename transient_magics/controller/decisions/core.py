"""What to do next, as a pure function: the cluster's state and the moment go in, decisions come
out.

Nothing here does I/O or remembers anything, so a controller that was killed decides the same from
the journal as one that was not, and every decision can be replayed from the journal in a test. The
rules, in order:

- a cluster that is being deleted gets rid of every VM, once its runs and jobs are over;
- limits on hours and cost end it, idleness sends the workers home and then everything;
- each declared place (slot) that has no VM, or one that was told to leave, gets a new VM under a
  number never used, the controller's own among them where it is to run on one;
- but none where VMs of its kind failed to boot one after another, or were unfit, or where the limit
  comes before one has booted, and no worker where that is so of a parameter server: they would be
  paid for nothing, and workers that are there idle;
- VMs prepare mini-batches for runs that have them (`preparation`), as transient as workers are;
- VMs in places that are no longer declared are deleted, and those that will never answer, or answer
  no more, or that a bag gave up and that can be replaced;
- while the cluster moves, VMs are asked for where it is to be, and none of the old is replaced
  (`moving`);
- once every declared VM answers, the cluster is ready;
- one that is to have its controller on a VM of its own is given into its charge once that VM
  answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from ...catalog import home_first
from ...deadlines.situation import zones_for
from ...journal import ClusterState, Relocation, VmState, boot_key
from ...journal.cost import total
from ...kinds import KINDS, having
from ...protocol.machines import CPU
from ...spec import CONTROLLER, PARAMETER_SERVER, PREPARATION, WORKER, ClusterSpec, render_duration
from ...spec.image import least_boot_seconds
from . import relocation as moves
from .capacity import Capacity
from .preparation import preparing
from .relocation import Arrive, Stay

SAVE_AHEAD_SECONDS = 600.0
LEAVE_SECONDS = 300.0
"""A VM that is still there so long after the notice of its preemption may have made it up."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision depends on: what is known, and what is seen at this moment.

    `now` in seconds since 1970; `ahead` is how many seconds the clock by which events are dated is
    ahead of it. `answering`: VMs whose agents answer; `silent`: those that answer no more, for good
    (`silence`). `here`: the VM on which this controller runs, empty on the machine of whoever
    declared the cluster; `isolated`: whether VMs have a network of their own. `unprepared`: VMs
    rented where the cluster is to be that have not all ready for its runs.
    """

    now: float
    state: ClusterState
    saved_ahead: bool = False
    ahead: float = 0.0
    answering: Collection[str] = ()
    silent: Collection[str] = ()
    here: str = ""
    isolated: bool = True
    unprepared: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class RequestVm:
    """Ask Compute Engine for a VM."""

    vm: str
    role: str
    slot: int
    accelerator: str
    zone: str
    provisioning_model: str
    replaces: str | None


@dataclass(frozen=True, slots=True)
class DeleteVm:
    """End a VM; `reason` is a clause."""

    vm: str
    reason: str


@dataclass(frozen=True, slots=True)
class BeginDeletion:
    """End the whole cluster; `reason` is a clause."""

    reason: str


@dataclass(frozen=True, slots=True)
class SaveAhead:
    """Have the chief save and ship now, because the end is near."""

    seconds_left: float


@dataclass(frozen=True, slots=True)
class TellReady:
    """Every declared VM answers, so many `workers` among them."""

    workers: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Give the cluster into the charge of a controller on this VM, if that can run one."""

    vm: str


@dataclass(frozen=True, slots=True)
class StayHere:
    """The controller stays on this machine, though it was to have a VM; `why` is a sentence."""

    why: str


Decision = (
    RequestVm
    | DeleteVm
    | BeginDeletion
    | SaveAhead
    | TellReady
    | HandOver
    | StayHere
    | Arrive
    | Stay
)


@dataclass(frozen=True, slots=True)
class Place:
    """One VM that the declaration asks for."""

    role: str
    slot: int
    accelerator: str
    zones: tuple[str, ...]
    """Where it may be, best first."""
    fixed: bool = False
    """Whether the user has said where, so that one elsewhere is not what is wanted."""
    terms: str = ""
    """`spot` or `standard` (on demand), where a deadline decides that; else as the cluster was
    declared.
    """

    def fits(self, vm: VmState) -> bool:
        """Whether this is what was asked for here."""
        terms = not self.terms or (self.terms == "standard") == (
            vm.provisioning_model == "standard"
        )
        return (
            terms
            and vm.accelerator == self.accelerator
            and (not self.fixed or vm.zone in self.zones)
        )


def decide(situation: Situation) -> list[Decision]:
    """The decisions of this moment. Calling it again before they are carried out gives the same
    ones again.
    """
    state = situation.state
    if state.spec is None or state.over:
        return []
    if state.phase == "deleting":
        if any(KINDS[work.kind].saves for work in state.works.values() if not work.over):
            return list(_gone(situation))  # their last checkpoint comes home first
        # The VM on which the controller runs goes last: nobody would delete the others.
        others = [vm for vm in state.living if vm.name != state.seat]
        return [DeleteVm(vm.name, state.reason) for vm in others or state.living]
    if reason := _reason_to_end(situation, state.spec):
        return [BeginDeletion(reason)]
    decisions: list[Decision] = []
    left = state.seconds_left(situation.now)
    if (
        left <= min(SAVE_AHEAD_SECONDS, state.spec.max_seconds / 4)
        and state.active_run
        and not situation.saved_ahead
    ):
        decisions.append(SaveAhead(left))
    if state.relocation:
        return [*decisions, *_move(situation, state.relocation)]
    places = list(wanted(situation))
    decisions += _surplus(state, places, situation)
    decisions += _missing(situation, state.spec, places)
    decisions += _ready(state, state.spec)
    decisions += _elsewhere(situation, state.spec)
    return decisions


def _move(situation: Situation, relocation: Relocation) -> Iterator[Decision]:
    """What is next while the cluster moves: VMs for the places that it is to have, and the step
    that follows.
    """
    state = situation.state
    useless = {each.vm: each for each in _useless(situation)}
    yield from useless.values()
    places = list(_elsewhere_wanted(situation, relocation.spec))
    filled = [(place, _there(state, place, useless)) for place in places]
    missing = list(
        _missing(situation, relocation.spec, [place for place, vm in filled if vm is None])
    )
    asked = {(each.role, each.slot) for each in missing}
    known = [
        moves.Wanted(
            each.role, each.slot, each.accelerator, each.zones, vm, (each.role, each.slot) in asked
        )
        for each, vm in filled
    ]
    if step := moves.step(state, relocation, known, situation.now, situation.unprepared):
        yield step
    if not isinstance(step, Stay):
        yield from missing


def _elsewhere_wanted(situation: Situation, spec: ClusterSpec) -> Iterator[Place]:
    """The places that the cluster is to have when it has moved, in its zones and no others.

    One that is left empty, because who had it was revoked and nobody is to be replaced, is none of
    them.
    """
    state = situation.state
    places = [
        replace(each, fixed=True) for each in wanted(situation, spec) if each.role != PREPARATION
    ]
    workers = [each for each in places if each.role == WORKER]
    present = [
        vm
        for vm in state.living
        if vm.role == WORKER and not vm.left and any(place.fits(vm) for place in workers)
    ]
    for place in (
        *(each for each in places if each.role != WORKER),
        *_kept(state, workers, present),
    ):
        there = [
            vm
            for vm in state.vms.values()
            if (vm.role, vm.slot) == (place.role, place.slot) and place.fits(vm)
        ]
        gone = [vm for vm in there if vm.state == "revoked" and not vm.left and not vm.coming]
        if spec.replace or place.role != WORKER or not gone or any(vm.living for vm in there):
            yield place


def _there(state: ClusterState, place: Place, useless: Collection[str]) -> VmState | None:
    """The VM that is in a place that the cluster is to have, and can stay."""
    mine = (
        vm
        for vm in state.living
        if (vm.role, vm.slot) == (place.role, place.slot) and place.fits(vm)
    )
    return next(
        (vm for vm in mine if not vm.left and vm.state != "leaving" and vm.name not in useless),
        None,
    )


def wanted(situation: Situation, spec: ClusterSpec | None = None) -> Iterator[Place]:
    """The places that should hold a VM now, of the cluster as it is or as `spec` says."""
    spec = spec or situation.state.spec
    assert spec is not None
    near = home_first(spec.all_zones, spec.home_zone)
    if spec.controller_vm:
        yield Place(CONTROLLER, 0, "", near)
    if spec.parameter_server_zone:
        servers = (spec.parameter_server_zone,)
    else:
        servers = near
    for slot in range(spec.parameter_servers):
        yield Place(PARAMETER_SERVER, slot, "", servers)
    if CPU in spec.prices:
        slots = (slot for run in preparing(situation.state) for slot in run.preparation.slots)
        for slot in itertools.islice(
            slots, spec.preparation
        ):  # the limit on money is computed with these
            yield Place(PREPARATION, slot, CPU, (spec.home_zone,))
    if idle_seconds(situation) >= spec.idle_seconds or _sent_home(situation.state):
        return
    yield from _kept(
        situation.state, list(worker_places(situation.state, spec)), _present(situation.state)
    )


def _present(state: ClusterState) -> list[VmState]:
    return [vm for vm in state.serving if vm.role == WORKER]


def worker_places(state: ClusterState, spec: ClusterSpec) -> Iterator[Place]:
    """The places of workers that `spec` has, or those that a deadline asks for."""
    slots = itertools.count()
    if state.steered is not None and (run := state.due or state.run):
        room = dict.fromkeys(
            ("spot", "standard"), spec.max_workers or spec.worker_count
        )  # whatever the journal says
        for gpu, terms, count in state.steered:
            if gpu in spec.prices:
                wanted_ = min(count, room[terms])
            else:
                wanted_ = 0
            room[terms] -= wanted_
            for _ in range(wanted_):
                yield Place(WORKER, next(slots), gpu, zones_for(spec, run.spec, gpu), terms=terms)
        return
    for group in spec.groups:
        if group.zone:
            zones = (group.zone,)
        else:
            zones = spec.zones_for(group.accelerator)
        for _ in range(group.count):
            yield Place(WORKER, next(slots), group.accelerator, zones, fixed=bool(group.zone))


def _kept(state: ClusterState, places: list[Place], present: list[VmState]) -> list[Place]:
    """The same places under the numbers of VMs that fit them: a resize keeps the VMs that are still
    wanted.

    They stay as they are where every VM fits the place of its number, as it does until a mixed
    cluster is resized.
    """
    declared = {place.slot: place for place in places}
    if all(vm.slot in declared and declared[vm.slot].fits(vm) for vm in present):
        return places
    by_slot = {vm.slot: vm for vm in sorted(present, key=lambda vm: vm.state != "leaving")}
    lost = {
        (vm.slot, vm.accelerator)
        for vm in state.vms.values()
        if vm.role == WORKER and vm.state == "revoked"
    }
    kept: dict[int, int] = {}  # by the place's own number
    for place in sorted(places, key=lambda each: not each.fixed):
        fitting = [
            slot for slot, vm in by_slot.items() if slot not in kept.values() and place.fits(vm)
        ]
        if fitting:
            kept[place.slot] = min(fitting, key=lambda slot: (slot != place.slot, slot))
    for place in places:
        if place.slot not in kept:
            free = (slot for slot in itertools.count() if slot not in kept.values())
            some = list(itertools.islice(free, len(places)))
            kept[place.slot] = min(
                some, key=lambda slot: ((slot, place.accelerator) not in lost, slot)
            )
    return [replace(place, slot=kept[place.slot]) for place in places]


def idle_seconds(situation: Situation) -> float:
    """Seconds for which the cluster has been ready without a run, or without a parameter server
    that it could have.
    """
    since = situation.state.unused_since
    if since:
        return situation.now - since
    return 0.0


def _sent_home(state: ClusterState) -> bool:
    run = state.run
    return bool(run and not _is_busy(state) and run.spec.when_done == "workers")


def _is_busy(state: ClusterState) -> bool:
    return bool(state.active_run or state.studying or state.needs_workers_alone)


def _reason_to_end(situation: Situation, spec: ClusterSpec) -> str:
    state = situation.state
    now = situation.now
    if state.clock.between(spec.declared_at, now) >= spec.max_seconds:
        return f"the limit of {render_duration(spec.max_seconds)} is reached"
    if spec.max_cost is not None and (
        state.seconds_left(now) <= 0 or total(state, now) >= spec.max_cost
    ):
        return f"the limit of ${spec.max_cost:.2f} is reached"
    if idle_seconds(situation) >= spec.idle_end_seconds:
        return f"{_unused(state)} for {render_duration(spec.idle_end_seconds)}"
    if _is_busy(state):
        return ""
    if last := next(
        (work.name for work in state.works.values() if work.over and work.has_cluster_alone), ""
    ):
        return f"{last} is over"
    run = state.run
    if run and run.spec.when_done == "cluster":
        return f"{run.name} is over"
    return ""


def _unused(state: ClusterState) -> str:
    return "no parameter server" if state.active_run else "no run"


def _surplus(state: ClusterState, places: list[Place], situation: Situation) -> Iterator[DeleteVm]:
    declared = {(place.role, place.slot): place for place in places}
    spec = state.spec
    assert spec is not None
    useless = {each.vm: each for each in _useless(situation)}
    released: dict[str, str] = {}
    for part in having("released"):
        released.update(part.released_vms(state))
    left = state.seconds_left(situation.now)
    for vm in state.living:
        place = declared.get((vm.role, vm.slot))
        if vm.left:
            yield useless[vm.name]
        elif place is None:
            idle = idle_seconds(situation) >= spec.idle_seconds
            unused = f"{_unused(state)} for {render_duration(spec.idle_seconds)}"
            yield DeleteVm(vm.name, unused if idle else "no longer needed")
        elif vm.role == WORKER and not place.fits(vm):
            yield DeleteVm(vm.name, "no longer declared")
        elif vm.name in useless:
            yield useless[vm.name]
        elif (
            vm.name in released
            and spec.replace
            and left >= least_boot_seconds(spec, vm.accelerator)
        ):
            yield DeleteVm(vm.name, released[vm.name])


def _useless(situation: Situation) -> Iterator[DeleteVm]:
    """VMs that are of no use, wherever the cluster is."""
    gone = {each.vm: each for each in _gone(situation)}
    for vm in situation.state.living:
        if vm.left:
            yield DeleteVm(vm.name, "no longer needed")
        elif vm.failure:
            yield DeleteVm(vm.name, vm.failure)
        elif vm.name in gone:
            yield gone[vm.name]


def _gone(situation: Situation) -> Iterator[DeleteVm]:
    """VMs that are there, and nothing more will come of them."""
    for vm in situation.state.living:
        if (
            vm.state == "leaving"
            and situation.now + situation.ahead - vm.noticed_at > LEAVE_SECONDS
        ):
            yield DeleteVm(vm.name, "it was to be preempted and is still there")
        elif vm.name in situation.silent:
            yield DeleteVm(vm.name, "it does not answer")


def _ready(state: ClusterState, spec: ClusterSpec) -> Iterator[TellReady]:
    ready = [
        vm.role
        for vm in state.living
        if vm.state == "ready" and vm.role not in (CONTROLLER, PREPARATION)
    ]
    if state.steered is None:
        workers = spec.worker_count
    else:
        workers = sum(count for *_, count in state.steered)
    if state.phase == "provisioning" and len(ready) >= workers + spec.parameter_servers:
        yield TellReady(ready.count(WORKER))


def _elsewhere(situation: Situation, spec: ClusterSpec) -> Iterator[HandOver | StayHere]:
    if situation.here or spec.controller != "cluster":
        return
    if not spec.controller_vm:
        yield StayHere("An earlier version declared it: from now on its controller stays here")
    elif not situation.isolated:
        yield StayHere("The emulated VMs have no network of their own: the controller stays here")
    else:
        seat = next((vm for vm in situation.state.living if vm.role == CONTROLLER), None)
        # The journal may not know yet that a VM is gone which was ready.
        if seat and seat.state == "ready" and seat.name in situation.answering:
            yield HandOver(seat.name)


def _missing(situation: Situation, spec: ClusterSpec, places: list[Place]) -> Iterator[RequestVm]:
    state = situation.state
    numbers = {
        role: _next_number(state, role)
        for role in (CONTROLLER, PARAMETER_SERVER, WORKER, PREPARATION)
    }
    left = state.seconds_left(situation.now)
    unneeded: set[int] = set()
    for part in having("released"):
        unneeded.update(part.vacant_slots(state))
    # the deadline decides it
    if state.steered is None:
        alone = spec
    else:
        alone = replace(spec, fallback_seconds=None)
    capacity = Capacity(alone, state.vms.values(), situation.now, state.advice)
    before: dict[tuple[str, int], list[VmState]] = {}
    for vm in state.vms.values():
        if not vm.left:
            before.setdefault((vm.role, vm.slot), []).append(vm)
    for place in places:
        fits = [vm for vm in before.get((place.role, place.slot), ()) if place.fits(vm)]
        if any(vm.living and vm.state != "leaving" for vm in fits):
            continue
        if left < least_boot_seconds(spec, place.accelerator):
            continue
        if boot_key(place.role, place.accelerator) in state.given_up:
            continue
        if place.role in (WORKER, PREPARATION) and state.stranded and not _needs_no_server(state):
            continue
        if place.role == WORKER and place.slot in unneeded:
            continue
        lost = next((vm for vm in reversed(fits) if vm.state in ("revoked", "leaving")), None)
        transient = place.role in (WORKER, PREPARATION)
        if lost and transient and not spec.replace:
            continue
        if transient and place.terms != "standard":
            model = spec.provisioning_model
        else:
            model = "standard"
        offer = capacity.offer(place.role, place.slot, place.accelerator, place.zones, model)
        if offer is None:
            continue
        yield RequestVm(
            vm=f"{place.role}-{numbers[place.role]}",
            role=place.role,
            slot=place.slot,
            accelerator=place.accelerator,
            zone=offer.zone,
            provisioning_model=offer.provisioning_model,
            replaces=lost.name if lost else None,
        )
        numbers[place.role] += 1


def _needs_no_server(state: ClusterState) -> bool:
    """Whether work goes on for which workers alone do."""
    return any(
        work.leases and not KINDS[work.kind].needs_server
        for work in state.works.values()
        if not work.over
    )


def _next_number(state: ClusterState, role: str) -> int:
    numbers = [vm.name.rpartition("-")[2] for vm in state.vms.values() if vm.role == role]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1
