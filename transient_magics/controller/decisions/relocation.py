"""Decide the steps of a cluster's move, as a pure function: new VMs, then runs, then deletions.

A move has two phases in the journal. From `cluster.relocating` on, VMs are requested for every
place of the target cluster, beside the old VMs. A VM that fits a target place stays in it, and lost
old VMs are not replaced. Once every place has a ready VM, with everything prepared that the runs
need there, the runs are handed over: their workers end, they are saved, and the parameter servers
end (`cluster.relocated`). From then on the new spec applies, and the VMs left behind are deleted
like any surplus VM. Before that event the old cluster is complete and trains, so a failure costs
only the new VMs: `cluster.stayed`, and they are deleted.

A move is cancelled if its VMs are not available: without capacity after `CAPACITY_SECONDS`, for a
quota or a missing permission immediately. It is also cancelled if VMs of a kind do not boot, or if
it takes longer than `patience`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...catalog import region
from ...errors import ClusterError
from ...journal import ClusterState, Relocation, VmState
from ...journal.cost import total
from ...kinds import KINDS
from ...spec import CONTROLLER, PARAMETER_SERVER, WORKER, ClusterSpec, render_duration, render_money
from ...spec.image import boot_patience
from .capacity import STOCKOUT

CAPACITY_SECONDS = 180.0
"""Time, in seconds, that a place may lack a VM for lack of capacity: both clusters are billed."""
_HAND_OVER_SECONDS = 300.0
"""Time, in seconds, to save, to copy what was saved, and to replace preempted VMs.

It is added to the time in which VMs boot.
"""


@dataclass(frozen=True, slots=True)
class FinishMove:
    """Hand the runs over to the new VMs, and leave the VMs in `leaves`.

    `save` is whether the parameter servers' variables are saved for the next ones. They are not if
    all parameter servers stay, or if one is lost: the runs then continue from their last
    checkpoints.
    """

    leaves: tuple[str, ...]
    save: bool


@dataclass(frozen=True, slots=True)
class CancelMove:
    """Cancel the move; `why` is a clause."""

    why: str


@dataclass(frozen=True, slots=True)
class TargetPlace:
    """Place of the target cluster, and its VM if it has one.

    Without a VM, `asked` is whether one is requested now.
    """

    role: str
    slot: int
    accelerator: str
    zones: tuple[str, ...]
    vm: VmState | None
    asked: bool

    @property
    def what(self) -> tuple[str, int, str]:
        """Fields of a VM that was requested for this place."""
        return self.role, self.slot, self.accelerator


def meant(
    state: ClusterState, target: ClusterSpec, now: float, dollars: float = 0.0
) -> ClusterSpec:
    """Return the target cluster: the present one with the machines of `target`.

    It also has their zones, prices and number. Both clusters are billed for as long as a move may
    take, and `dollars` for what follows. If the remaining money would then be spent before the old
    VMs end, the new VMs get an earlier end. Compute Engine cannot change the end of a running VM.

    Raises
    ------
    ClusterError
        The cluster cannot move, or the money would not last.
    """
    present = state.spec
    if present is None or state.phase != "ready":
        raise ClusterError(
            f"{state.name} is not ready, so it cannot be relocated", fix="Try again when it is."
        )
    if state.relocation:
        raise ClusterError(
            f"{present.name} is already being relocated", fix="Try again when it has moved."
        )
    if present.controller_vm:
        what = f"{present.name} has its controller on a VM, so it cannot be relocated"
        raise ClusterError(what, fix="Declare another cluster there, and resume its runs.")
    if holding := [
        work.name for work in state.works.values() if not work.over and not KINDS[work.kind].moves
    ]:
        raise ClusterError(
            f"{present.name} cannot be relocated while {holding[0]} uses its VMs",
            fix="Wait until it has ended.",
        )
    if state.steered is not None or state.deadline_run:
        what = f"{present.name} cannot be relocated while a run with a deadline chooses its workers"
        raise ClusterError(what, fix="Name the run's zones with %%train --zones instead.")
    if present.subnet and region(target.home_zone) != region(present.home_zone):
        what = (
            f"{present.name} cannot leave {region(present.home_zone)}, the region of its subnet "
            f"{present.subnet}"
        )
        raise ClusterError(what, fix="Name a zone in that region.")
    new = replace(
        present,
        groups=target.groups,
        zones=target.zones,
        candidates=target.candidates,
        prices={**present.prices, **target.prices},
        transfer_prices=target.transfer_prices,
        parameter_servers=target.parameter_servers,
        parameter_server_zone=target.parameter_server_zone,
        end_hourly=present.end_hourly or present.most_hourly,
    )
    if _is_there(state, present, new):
        raise ClusterError(f"{present.name} is already there", fix="Name another zone or GPU.")
    return _within_limits(state, present, new, now, dollars)


def _is_there(state: ClusterState, present: ClusterSpec, new: ClusterSpec) -> bool:
    """Return whether the cluster already is the target, whatever zones it could be in."""
    before, after = (
        Counter(group.accelerator for group in spec.groups for _ in range(group.count))
        for spec in (present, new)
    )
    here = all(vm.zone in new.all_zones for vm in state.serving)
    return here and before == after and present.parameter_servers == new.parameter_servers


def _within_limits(
    state: ClusterState, present: ClusterSpec, new: ClusterSpec, now: float, dollars: float
) -> ClusterSpec:
    """Return `new` with the end that its limits allow. Raise ClusterError if that is too soon."""
    passed = state.clock.between(present.declared_at, now)
    # These three are in seconds of the emulated clock, if there is one.
    left = present.ends_at - present.declared_at - passed
    together = patience(new) * state.clock.rate
    if left <= together:
        what = (
            f"{present.name} ends in {render_duration(state.seconds_left(now))} at the latest, "
            "but a relocation may take "
        )
        raise ClusterError(
            what + render_duration(patience(new)), fix="Declare another cluster there."
        )
    if present.max_cost is None:
        return new
    spent = total(state, now) + dollars + present.most_hourly * together / 3600
    # VMs that stay keep their present end, which is later than the end of the new VMs.
    stay = [
        (vm.hourly, (vm.ends or present.ends_at) - present.declared_at - passed)
        for vm in _staying(state, new)
    ]
    spent += sum(hourly * until for hourly, until in stay) / 3600
    lasts = (
        3600
        * (present.max_cost - spent)
        / max(new.most_hourly - sum(hourly for hourly, _ in stay), 1e-9)
    )
    if lasts >= left:
        return new
    if lasts <= together:
        what = (
            f"{present.name} could reach its limit of {render_money(present.max_cost)} before it "
            "has moved"
        )
        why = "VMs in both places cost money during the relocation"
        if stay:
            why += ", and VMs that stay keep their end, which Compute Engine cannot change"
        raise ClusterError(f"{what}: {why}", fix="Declare another cluster there.")
    return replace(new, end_hourly=3600 * present.max_cost / (passed + lasts))


def _staying(state: ClusterState, new: ClusterSpec) -> list[VmState]:
    """Return the VMs that can stay in a place of the target; if too many could, the dearest."""
    places = Counter({(PARAMETER_SERVER, ""): new.parameter_servers})
    for group in new.groups:
        places[WORKER, group.accelerator] += group.count
    found: list[VmState] = []
    for vm in sorted(state.serving, key=lambda vm: vm.hourly, reverse=True):
        kind = vm.role, vm.accelerator
        if places[kind] > 0 and vm.zone in new.all_zones:
            places[kind] -= 1
            found.append(vm)
    return found


def patience(spec: ClusterSpec) -> float:
    """Return the seconds after which a move to `spec` is cancelled.

    Both clusters may have to be paid for this time.
    """
    kinds = ["", *(group.accelerator for group in spec.groups)]
    return max(boot_patience(spec, kind) for kind in kinds) + _HAND_OVER_SECONDS


def step(
    state: ClusterState,
    relocation: Relocation,
    places: Sequence[TargetPlace],
    now: float,
    unprepared: Collection[str] = (),
) -> FinishMove | CancelMove | None:
    """Return the next step of a move, except for requests of VMs; `now` in seconds since 1970.

    `unprepared` are the VMs that do not have everything yet that the runs need there.
    """
    if why := _hopeless(state, relocation, places, now):
        return CancelMove(why)
    there = {place.vm.name: place.vm for place in places if place.vm and place.vm.state == "ready"}
    if len(there) < len(places) or not there.keys().isdisjoint(unprepared):
        return None
    staying = [vm for vm in state.living if not vm.left and vm.role != CONTROLLER]
    return FinishMove(
        tuple(vm.name for vm in staying if vm.name not in there), _to_be_saved(state, there)
    )


def _to_be_saved(state: ClusterState, there: Mapping[str, VmState]) -> bool:
    before = _servers(state.serving)
    after = _servers(there.values())
    whole = (
        state.spec is not None
        and sum(vm.state == "ready" for vm in before) >= state.spec.parameter_servers
    )
    return whole and {vm.name for vm in before} != {vm.name for vm in after}


def _servers(vms: Iterable[VmState]) -> list[VmState]:
    return [vm for vm in vms if vm.role == PARAMETER_SERVER]


def _hopeless(
    state: ClusterState, relocation: Relocation, places: Iterable[TargetPlace], now: float
) -> str:
    """Return why the target cluster cannot be reached, a clause; empty if it still can."""
    passed = now - relocation.began_at
    for place in places:
        if place.vm:
            continue
        requested = [
            vm for vm in state.vms.values() if (vm.role, vm.slot, vm.accelerator) == place.what
        ]
        there = [vm for vm in requested if vm.zone in place.zones]
        if failed := [vm for vm in there if vm.coming and vm.boots_as in state.given_up]:
            return (
                "VMs there do not boot: "
                f"{failed[-1].failure or failed[-1].reason or 'they do not answer'}"
            )
        refused = [vm for vm in there if vm.state == "refused"]
        if [vm for vm in refused if vm.coming and vm.cause != STOCKOUT] or (
            passed >= CAPACITY_SECONDS and not place.asked
        ):
            if refused:
                why = f": {refused[-1].reason.rstrip('.')}"
            else:
                why = ""
            return f"a VM that it needs there cannot be had{why}"
    if passed >= patience(relocation.spec):
        return (
            f"its VMs there had not all ready within {render_duration(patience(relocation.spec))}"
        )
    return ""
