"""Which run has which workers: a pure function of the cluster's state, and of the places that workers may take.

A run asks for so many workers at least and at most; without a number it asks for all. Runs begin in the order in which
they were declared. The first that waits (the head) begins once its least is free; one behind it begins earlier only
where that cannot delay the head, whichever of the runs before it end first (`_delays`). Those that have begun keep
their least, and what is left goes to them in order, up to the most of each.

What is leased is the place of a worker (its slot), not the VM in it: so a replacement goes to whoever lost a VM. A
place changes hands only where its run has too many. Parameter servers are shared: each run has a process of its own on
their VMs, on ports of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ...journal import ClusterState, RunState
from ...spec import WORKER

MOST_RUNS = 8
"""At once: each has a process of some 0.6 GB on the VM of every parameter server."""
_READINESS = ("ready", "booting", "requested", "leaving")
"""States of the VMs in free places, those that a run takes first at the front."""


@dataclass(frozen=True, slots=True)
class Leases:
    """Who has what: the numbers of the ports of runs that have begun, and the runs of workers' slots."""

    ports: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[int, str] = field(default_factory=dict)


def leases(state: ClusterState, slots: Sequence[int]) -> Leases:
    """The leases of this moment, where workers may be in `slots`. The same again from a state that has them."""
    ports = _begun(state, max(1, len(slots)))
    going = [run for run in state.runs.values() if run.name in ports]
    shares = _shares(going, len(slots))
    return Leases(ports, _handed_out(state, slots, shares))


def waiting(state: ClusterState) -> list[RunState]:
    """Runs that have not begun, the head first."""
    return [run for run in state.runs.values() if not run.over and run.name not in state.ports and not _began(run)]


def _began(run: RunState) -> bool:
    return run.phase == "running"  # also in the journal of an earlier version, which knew of no leases


def _least(run: RunState, places: int) -> int:
    return min(run.spec.least_workers or places, places)


def _most(run: RunState, places: int) -> int:
    return min(run.spec.most_workers or places, places)


def _begun(state: ClusterState, places: int) -> dict[str, int]:
    """The ports of runs that have begun, or begin now."""
    active = [run for run in state.runs.values() if not run.over]
    ports = {run.name: state.ports[run.name] for run in active if run.name in state.ports}
    for run in active:
        if run.name not in ports and _began(run):
            ports[run.name] = _free_port(ports.values())
    head: RunState | None = None
    for run in waiting(state):
        begun = [_least(each, places) for each in active if each.name in ports]
        fits = len(ports) < MOST_RUNS and sum(begun) + _least(run, places) <= places
        if fits and (head is None or not _delays(begun, _least(run, places), _least(head, places), places)):
            ports[run.name] = _free_port(ports.values())
        elif head is None:
            head = run
    return ports


def _delays(begun: Sequence[int], another: int, head: int, places: int) -> bool:
    """Whether the head might have to wait for `another` too, besides those that have begun (their leasts).

    It might where some of them can be left with which the head alone would fit, and both would not: then a sum of some
    of their leasts lies within the last `another` places that the head leaves.
    """
    sums = {0}
    for least in begun:
        sums |= {each + least for each in sums}
    return any(places - head - another < each <= places - head for each in sums)


def _free_port(taken: Collection[int]) -> int:
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _shares(going: Sequence[RunState], places: int) -> dict[str, int]:
    """How many workers each run has: its least, in order, then more, in order."""
    shares: dict[str, int] = {}
    left = places
    for run in going:
        shares[run.name] = min(_least(run, places), left)
        left -= shares[run.name]
    for run in going:
        more = min(_most(run, places) - shares[run.name], left)
        if more > 0:
            shares[run.name] += more
            left -= more
    return shares


def _handed_out(state: ClusterState, slots: Sequence[int], shares: Mapping[str, int]) -> dict[int, str]:
    order = sorted(slots, key=lambda slot: (_readiness(state, slot), slot))
    had: dict[str, list[int]] = {name: [] for name in shares}
    for slot in order:
        if (run := state.leases.get(slot, "")) in had and len(had[run]) < shares[run]:
            had[run].append(slot)
    taken = {slot for owned in had.values() for slot in owned}
    free = [slot for slot in order if slot not in taken]
    for name, owned in had.items():
        more = shares[name] - len(owned)
        owned += free[:more]
        free = free[more:]
    return {slot: name for name, owned in had.items() for slot in sorted(owned)}


def _readiness(state: ClusterState, slot: int) -> int:
    states = [vm.state for vm in state.vms.values() if vm.living and (vm.role, vm.slot) == (WORKER, slot)]
    return min((_READINESS.index(each) for each in states), default=len(_READINESS))
