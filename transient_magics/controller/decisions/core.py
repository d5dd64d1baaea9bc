"""Decide what a controller does next. Pure.

`decide` takes the state of a cluster and the observations of this moment, a `Situation`, and
returns decisions. It does no I/O and remembers nothing. A controller that follows a killed one
therefore decides the same from the same journal and observations, and a test can replay every
decision.

The rules, in this order:

1. A cluster that is being deleted deletes all of its VMs, once its unsaved work is over.
2. The deletion begins when a limit (hours, cost, idle time) is reached, when the work that owns
   the cluster is over (`owns_cluster`), or when the last run is over and its `when_done` is
   `cluster`.
3. Shortly before the end of the cluster the runs save.
4. A cluster that moves to other zones follows the steps of `relocation` instead of the rules below.
5. VMs are deleted if no place is declared for them, if they failed or no longer answer, or if their
   work releases them.
6. Each declared place without a VM gets one, under a number that was never used. `_may_request` has
   the exceptions: a VM is not requested where it would cost money without being of use.
7. The cluster is ready once all declared workers and parameter servers are.
8. The control of the cluster passes to the controller's own VM once that VM answers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from .relocation import CancelMove, FinishMove

SAVE_AHEAD_SECONDS = 600.0
"""Runs save this long before the end of their cluster, or later in short-lived clusters.

In a cluster of less than 40 minutes they save once a quarter of its time is left.
"""
LEAVE_SECONDS = 300.0
"""A VM that still runs this long after its preemption notice is deleted.

It may have invented the notice.
"""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a decision depends on.

    Attributes
    ----------
    now
        The time, in seconds since 1970.
    state
        The state of the cluster, from its journal.
    save_requested
        Whether the runs were already asked to save before the end of the cluster.
    clock_ahead
        How far this machine's clock, which dates events, is ahead of `now`, in seconds.
    answering
        The VMs whose agents answer.
    silent
        The VMs that no longer answer and are given up (`heartbeat`).
    here
        The VM on which this controller runs, or '' on the machine that declared the cluster.
    isolated
        Whether the VMs have a network of their own.
    unprepared
        The VMs in the new zones of a moving cluster that do not have the files of its runs yet.
    """

    now: float
    state: ClusterState
    save_requested: bool = False
    clock_ahead: float = 0.0
    answering: Collection[str] = ()
    silent: Collection[str] = ()
    here: str = ""
    isolated: bool = True
    unprepared: Collection[str] = ()

    @property
    def dated_now(self) -> float:
        """The time by the clock that dates events: compare it with their times.

        The limits on the cluster's time are compared with `now`, because VMs end by Compute
        Engine's clock.
        """
        return self.now + self.clock_ahead


@dataclass(frozen=True, slots=True)
class RequestVm:
    """Request a VM from Compute Engine."""

    vm: str
    role: str
    slot: int
    accelerator: str
    zone: str
    provisioning_model: str
    replaces: str | None


@dataclass(frozen=True, slots=True)
class DeleteVm:
    """Delete a VM; `reason` is a clause."""

    vm: str
    reason: str


@dataclass(frozen=True, slots=True)
class BeginDeletion:
    """Delete the whole cluster; `reason` is a clause."""

    reason: str


@dataclass(frozen=True, slots=True)
class SaveAhead:
    """Save all runs now: the cluster ends in `seconds_left` seconds."""

    seconds_left: float


@dataclass(frozen=True, slots=True)
class ReportReady:
    """Report that all declared VMs are ready, among them this number of `workers`."""

    workers: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Pass control of the cluster to a controller on this VM, if the VM can run one."""

    vm: str


@dataclass(frozen=True, slots=True)
class StayHere:
    """Keep the controller here although a VM was declared for it; `why` is a sentence."""

    why: str


Decision = (
    RequestVm
    | DeleteVm
    | BeginDeletion
    | SaveAhead
    | ReportReady
    | HandOver
    | StayHere
    | FinishMove
    | CancelMove
)


@dataclass(frozen=True, slots=True)
class Place:
    """A place for one VM in the declaration of a cluster.

    Attributes
    ----------
    zones
        The zones that the VM may be in, the best first.
    fixed
        Whether the user named the zones, so that a VM in another zone does not fit.
    terms
        `spot` or `standard` (on demand) where a deadline decides it, or '' for the cluster's own.
    """

    role: str
    slot: int
    accelerator: str
    zones: tuple[str, ...]
    fixed: bool = False
    terms: str = ""

    def fits(self, vm: VmState) -> bool:
        """Return whether the VM has the terms, GPU and zone of this place."""
        on_demand = vm.provisioning_model == "standard"
        if self.terms and (self.terms == "standard") != on_demand:
            return False
        if vm.accelerator != self.accelerator:
            return False
        return not self.fixed or vm.zone in self.zones


def decide(situation: Situation) -> list[Decision]:
    """Decide what the controller does next.

    Until a decision is carried out and in the journal, the next call returns it again.

    Parameters
    ----------
    situation
        The state of the cluster and the observations of this moment.

    Returns
    -------
    list of Decision
        The decisions, in the order in which to carry them out.
    """
    state = situation.state
    spec = state.spec
    if spec is None or state.over:
        return []
    if state.phase == "deleting":
        return _delete_all(situation)
    if reason := _reason_to_end(situation, spec):
        return [BeginDeletion(reason)]
    decisions: list[Decision] = []
    left = state.seconds_left(situation.now)
    ends_soon = left <= min(SAVE_AHEAD_SECONDS, spec.max_seconds / 4)
    if ends_soon and state.current_or_next_run and not situation.save_requested:
        decisions.append(SaveAhead(left))
    if state.relocation:
        decisions += _move(situation, state.relocation)
        return decisions
    places = list(places_now(situation))
    decisions += _surplus(situation, spec, places)
    decisions += _requests(situation, spec, places)
    decisions += _readiness(state, spec)
    decisions += _hand_over(situation, spec)
    return decisions


# ---------------------------------------------------------------- the end of the cluster


def _delete_all(situation: Situation) -> list[Decision]:
    """Delete all VMs; while work still saves, only those that no longer respond."""
    state = situation.state
    unsaved = any(KINDS[work.kind].saves for work in state.works.values() if not work.over)
    if unsaved:
        return list(_unresponsive(situation))
    # The VM on which the controller runs comes last: after it, no process would delete the others.
    others = [vm for vm in state.living if vm.name != state.seat]
    return [DeleteVm(vm.name, state.reason) for vm in others or state.living]


def _reason_to_end(situation: Situation, spec: ClusterSpec) -> str:
    """Return why the cluster ends now, a clause, or ''."""
    state = situation.state
    now = situation.now
    if state.clock.between(spec.declared_at, now) >= spec.max_seconds:
        return f"the limit of {render_duration(spec.max_seconds)} is reached"
    # The bill may reach the limit sooner than the declared rate says: traffic is part of it.
    if spec.max_cost is not None and (
        state.seconds_left(now) <= 0 or total(state, now) >= spec.max_cost
    ):
        return f"the limit of ${spec.max_cost:.2f} is reached"
    if unused_seconds(situation) >= spec.idle_end_seconds:
        return f"{_missing_use(state)} for {render_duration(spec.idle_end_seconds)}"
    if _is_busy(state):
        return ""
    for work in state.works.values():
        if work.over and work.owns_cluster:
            return f"{work.name} is over"
    if state.run and state.run.spec.when_done == "cluster":
        return f"{state.run.name} is over"
    return ""


def unused_seconds(situation: Situation) -> float:
    """Return for how many seconds the cluster has been of no use.

    It is of no use without work, and also with a run that has no parameter server.
    """
    since = situation.state.unused_since
    if since:
        return situation.dated_now - since
    return 0.0


def _missing_use(state: ClusterState) -> str:
    """Return what the cluster lacks to be of use, a noun phrase."""
    return "no parameter server" if state.current_or_next_run else "no run"


def _is_busy(state: ClusterState) -> bool:
    """Return whether work needs the cluster."""
    return bool(state.current_or_next_run or state.studying or state.has_work_without_servers)


# ---------------------------------------------------------------- places


def places_now(situation: Situation, spec: ClusterSpec | None = None) -> Iterator[Place]:
    """Yield the places that should have a VM now.

    Parameters
    ----------
    situation
        The state of the cluster and the observations of this moment.
    spec
        The declaration that the cluster moves to (default: its own).
    """
    state = situation.state
    spec = spec or state.spec
    assert spec is not None
    near = home_first(spec.all_zones, spec.home_zone)
    if spec.controller_vm:
        yield Place(CONTROLLER, 0, "", near)
    if spec.parameter_server_zone:
        server_zones = (spec.parameter_server_zone,)
    else:
        server_zones = near
    for slot in range(spec.parameter_servers):
        yield Place(PARAMETER_SERVER, slot, "", server_zones)
    if CPU in spec.prices:
        slots = (slot for run in preparing(state) for slot in run.preparation.slots)
        # No more than declared: the time that --max-cost allows is computed with this number.
        for slot in itertools.islice(slots, spec.preparation):
            yield Place(PREPARATION, slot, CPU, (spec.home_zone,))
    if unused_seconds(situation) >= spec.idle_seconds or _workers_released(state):
        return
    present = [vm for vm in state.serving if vm.role == WORKER]
    yield from _renumbered(state, list(worker_places(state, spec)), present)


def _workers_released(state: ClusterState) -> bool:
    """Return whether the last run is over and its declaration releases the workers then."""
    run = state.run
    return bool(run and not _is_busy(state) and run.spec.when_done == "workers")


def worker_places(state: ClusterState, spec: ClusterSpec) -> Iterator[Place]:
    """Yield the places of workers: those that a deadline decided on, or else those of `spec`."""
    slots = itertools.count()
    run = state.deadline_run or state.run
    if state.steered is not None and run:
        # A VM may have written this part of the journal, so it is limited to what was declared. The
        # limit applies to Spot and on-demand workers separately, because workers of one kind start
        # before those of the other kind, which they replace, are deleted. The counts are positive
        # (`journal.events.Machines`).
        most = spec.max_workers or spec.worker_count
        room = {"spot": most, "standard": most}
        for gpu, terms, count in state.steered:
            if gpu not in spec.prices:
                continue
            granted = min(count, room[terms])
            room[terms] -= granted
            for _ in range(granted):
                yield Place(WORKER, next(slots), gpu, zones_for(spec, run.spec, gpu), terms=terms)
        return
    for group in spec.groups:
        if group.zone:
            zones = (group.zone,)
        else:
            zones = spec.zones_for(group.accelerator)
        for _ in range(group.count):
            yield Place(WORKER, next(slots), group.accelerator, zones, fixed=bool(group.zone))


def _renumbered(state: ClusterState, places: list[Place], present: list[VmState]) -> list[Place]:
    """Return the places with the slots of VMs that fit them, so that a resize keeps these VMs.

    Slots change only if a VM does not fit the place of its own slot, as after the resize of a
    cluster with several GPU types. For example, `t4x2,v100` has T4s in the slots 0 and 1, and a
    V100 in slot 2. After a resize to `t4,v100`, the declaration has the V100 in slot 1. It gets
    slot 2, where the V100 is, and the VM in slot 1 is surplus.
    """
    declared = {place.slot: place for place in places}
    if all(vm.slot in declared and declared[vm.slot].fits(vm) for vm in present):
        return places
    by_slot: dict[int, VmState] = {}
    for vm in present:
        # Of two VMs in one slot, the one that is leaving does not count.
        if vm.slot not in by_slot or vm.state != "leaving":
            by_slot[vm.slot] = vm
    # By the slot of the place: the slot that it gets.
    assigned: dict[int, int] = {}
    # Places in one zone have fewer VMs that fit, so they choose first.
    for place in sorted(places, key=lambda place: not place.fixed):
        free = by_slot.keys() - set(assigned.values())
        fitting = [slot for slot in free if place.fits(by_slot[slot])]
        if fitting:
            assigned[place.slot] = min(fitting, key=lambda slot: (slot != place.slot, slot))
    # An empty place gets a slot in which a VM of its kind was revoked, because `_requests` looks
    # there for the VM to replace.
    revoked = {
        (vm.slot, vm.accelerator)
        for vm in state.vms.values()
        if vm.role == WORKER and vm.state == "revoked"
    }
    for place in places:
        if place.slot in assigned:
            continue
        unassigned = (slot for slot in itertools.count() if slot not in assigned.values())
        candidates = list(itertools.islice(unassigned, len(places)))
        replacing = [slot for slot in candidates if (slot, place.accelerator) in revoked]
        assigned[place.slot] = min(replacing or candidates)
    return [replace(place, slot=assigned[place.slot]) for place in places]


# ---------------------------------------------------------------- VMs that are deleted


def _surplus(situation: Situation, spec: ClusterSpec, places: list[Place]) -> Iterator[DeleteVm]:
    """Delete VMs without a place, useless VMs, and VMs that their work releases."""
    state = situation.state
    declared = {(place.role, place.slot): place for place in places}
    useless = {deletion.vm: deletion for deletion in _useless(situation)}
    released: dict[str, str] = {}
    # Kinds of work that give VMs back while they run have a module `released`.
    for part in having("released"):
        released.update(part.released_vms(state))
    left = state.seconds_left(situation.now)
    for vm in state.living:
        place = declared.get((vm.role, vm.slot))
        if vm.left:
            yield useless[vm.name]
        elif place is None:
            yield DeleteVm(vm.name, _why_unneeded(situation, spec))
        elif vm.role == WORKER and not place.fits(vm):
            yield DeleteVm(vm.name, "no longer declared")
        elif vm.name in useless:
            yield useless[vm.name]
        elif vm.name in released:
            # Work releases a VM to get another one in its place. If that one could not boot in
            # time, the released VM is better than none.
            can_replace = spec.replace and left >= least_boot_seconds(spec, vm.accelerator)
            if can_replace:
                yield DeleteVm(vm.name, released[vm.name])


def _why_unneeded(situation: Situation, spec: ClusterSpec) -> str:
    """Return why a VM without a place is deleted, a clause."""
    if unused_seconds(situation) >= spec.idle_seconds:
        return f"{_missing_use(situation.state)} for {render_duration(spec.idle_seconds)}"
    return "no longer needed"


def _useless(situation: Situation) -> Iterator[DeleteVm]:
    """Delete VMs that are of no use in any zone."""
    unresponsive = {deletion.vm: deletion for deletion in _unresponsive(situation)}
    for vm in situation.state.living:
        if vm.left:
            yield DeleteVm(vm.name, "no longer needed")
        elif vm.failure:
            yield DeleteVm(vm.name, vm.failure)
        elif vm.name in unresponsive:
            yield unresponsive[vm.name]


def _unresponsive(situation: Situation) -> Iterator[DeleteVm]:
    """Delete VMs that do not answer, and VMs that outlived their preemption notice."""
    for vm in situation.state.living:
        noticed_for = situation.dated_now - vm.noticed_at
        if vm.state == "leaving" and noticed_for > LEAVE_SECONDS:
            minutes = round(LEAVE_SECONDS / 60)
            yield DeleteVm(vm.name, f"still running {minutes} min after its preemption notice")
        elif vm.name in situation.silent:
            yield DeleteVm(vm.name, "it does not answer")


# ---------------------------------------------------------------- VMs that are requested


def _requests(
    situation: Situation, spec: ClusterSpec, places: Iterable[Place]
) -> Iterator[RequestVm]:
    """Request VMs for the places that have none and that may have one."""
    state = situation.state
    numbers = _next_numbers(state)
    # The steering of a deadline decides on its own whether workers are on demand.
    if state.steered is None:
        capacity_spec = spec
    else:
        capacity_spec = replace(spec, fallback_seconds=None)
    capacity = Capacity(capacity_spec, state.vms.values(), situation.dated_now, state.advice)
    history = _history_by_place(state)
    vacant: set[int] = set()
    for part in having("released"):
        vacant.update(part.vacant_slots(state))
    for place in places:
        fitting = [vm for vm in history.get((place.role, place.slot), ()) if place.fits(vm)]
        if any(vm.living and vm.state != "leaving" for vm in fitting):
            continue
        lost = _lost_in(fitting)
        if not _may_request(situation, spec, place, lost, vacant):
            continue
        may_be_spot = place.role in (WORKER, PREPARATION) and place.terms != "standard"
        model = spec.provisioning_model if may_be_spot else "standard"
        offer = capacity.offer(place.role, place.slot, place.accelerator, place.zones, model)
        # No zone has capacity now.
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


def _lost_in(history: Sequence[VmState]) -> VmState | None:
    """Return the VM that a place lost, or None; `history` are its VMs in the order of requests.

    VMs that never served do not count: a request for a replacement may be refused, or its VM may
    fail to boot. Then the next request still replaces the VM that was revoked.
    """
    for vm in reversed(history):
        if vm.state in ("revoked", "leaving"):
            return vm
        if vm.ready_at:
            return None
    return None


def _may_request(
    situation: Situation,
    spec: ClusterSpec,
    place: Place,
    lost: VmState | None,
    vacant: Collection[int],
) -> bool:
    """Return whether a VM in this empty place would be of use.

    `lost` is the VM that was revoked in this place. `vacant` are the slots of workers that stay
    empty because their work does not need them now.
    """
    state = situation.state
    if state.seconds_left(situation.now) < least_boot_seconds(spec, place.accelerator):
        return False
    # VMs of this kind failed to boot one after another, or were unusable.
    if boot_key(place.role, place.accelerator) in state.given_up:
        return False
    # VMs of these roles may be Spot, and `spec.replace` says whether revoked ones are replaced.
    # Others always are.
    is_revocable_role = place.role in (WORKER, PREPARATION)
    # No parameter server can boot, so that these VMs would be idle.
    if is_revocable_role and state.stranded and not _works_without_server(state):
        return False
    if place.role == WORKER and place.slot in vacant:
        return False
    return not (lost and is_revocable_role and not spec.replace)


def _works_without_server(state: ClusterState) -> bool:
    """Return whether work that needs no parameter server has workers."""
    return any(
        work.takes_workers and not KINDS[work.kind].needs_server
        for work in state.works.values()
        if not work.over
    )


def _history_by_place(state: ClusterState) -> Mapping[tuple[str, int], list[VmState]]:
    """Return VMs by role and slot, in the order of their requests, gone ones included.

    VMs that a move left behind have no place.
    """
    found: dict[tuple[str, int], list[VmState]] = {}
    for vm in state.vms.values():
        if not vm.left:
            found.setdefault((vm.role, vm.slot), []).append(vm)
    return found


def _next_numbers(state: ClusterState) -> dict[str, int]:
    """Return the next number for the name of a VM, by role. Numbers are never reused."""
    numbers: dict[str, int] = dict.fromkeys((CONTROLLER, PARAMETER_SERVER, WORKER, PREPARATION), 0)
    for vm in state.vms.values():
        number = vm.name.rpartition("-")[2]
        if vm.role in numbers and number.isdecimal():
            numbers[vm.role] = max(numbers[vm.role], int(number) + 1)
    return numbers


# ---------------------------------------------------------------- moves


def _move(situation: Situation, relocation: Relocation) -> Iterator[Decision]:
    """Fill the places in the new zones, and take the next step of the move."""
    state = situation.state
    useless = {deletion.vm: deletion for deletion in _useless(situation)}
    yield from useless.values()
    places = list(_places_after_move(situation, relocation.spec))
    filled = [(place, _present_vm(state, place, useless)) for place in places]
    empty = [place for place, vm in filled if vm is None]
    requests = list(_requests(situation, relocation.spec, empty))
    requested = {(request.role, request.slot) for request in requests}
    targets = [
        moves.TargetPlace(
            place.role,
            place.slot,
            place.accelerator,
            place.zones,
            vm,
            (place.role, place.slot) in requested,
        )
        for place, vm in filled
    ]
    step = moves.step(state, relocation, targets, situation.dated_now, situation.unprepared)
    if step:
        yield step
    if not isinstance(step, CancelMove):
        yield from requests


def _places_after_move(situation: Situation, spec: ClusterSpec) -> Iterator[Place]:
    """Yield the places of the moved cluster, in its new zones only.

    A worker's place whose VM was revoked there is left out if the cluster does not replace VMs.
    """
    state = situation.state
    places = [
        replace(place, fixed=True)
        for place in places_now(situation, spec)
        if place.role != PREPARATION
    ]
    workers = [place for place in places if place.role == WORKER]
    others = [place for place in places if place.role != WORKER]
    present = [
        vm
        for vm in state.living
        if vm.role == WORKER and not vm.left and any(place.fits(vm) for place in workers)
    ]
    yield from others
    for place in _renumbered(state, workers, present):
        vms = [
            vm
            for vm in state.vms.values()
            if (vm.role, vm.slot) == (place.role, place.slot) and place.fits(vm)
        ]
        # A VM that was rented for this move (`coming`) and revoked during it does not count: the
        # move continues with another one.
        revoked = any(vm.state == "revoked" and not vm.left and not vm.coming for vm in vms)
        if spec.replace or not revoked or any(vm.living for vm in vms):
            yield place


def _present_vm(state: ClusterState, place: Place, useless: Collection[str]) -> VmState | None:
    """Return the VM that is in this place and can stay, or None."""
    for vm in state.living:
        if (vm.role, vm.slot) != (place.role, place.slot) or not place.fits(vm):
            continue
        if not vm.left and vm.state != "leaving" and vm.name not in useless:
            return vm
    return None


# ---------------------------------------------------------------- readiness and handover


def _readiness(state: ClusterState, spec: ClusterSpec) -> Iterator[ReportReady]:
    """Report the cluster as ready once all declared workers and parameter servers are."""
    if state.phase != "provisioning":
        return
    ready = Counter(vm.role for vm in state.living if vm.state == "ready")
    workers = sum(1 for _ in worker_places(state, spec))
    if ready[WORKER] >= workers and ready[PARAMETER_SERVER] >= spec.parameter_servers:
        yield ReportReady(ready[WORKER])


def _hand_over(situation: Situation, spec: ClusterSpec) -> Iterator[HandOver | StayHere]:
    """Pass control to the controller's own VM once it answers, or report why it stays here."""
    if situation.here or spec.controller != "cluster":
        return
    if not spec.controller_vm:
        yield StayHere("An earlier version declared it: from now on its controller stays here")
        return
    if not situation.isolated:
        yield StayHere("The emulated VMs have no network of their own: the controller stays here")
        return
    for vm in situation.state.living:
        if vm.role == CONTROLLER:
            # The VM may have ended without a record in the journal yet.
            if vm.state == "ready" and vm.name in situation.answering:
                yield HandOver(vm.name)
            return
