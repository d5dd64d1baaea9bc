"""Which run or job has which workers: a pure function of the state, and of the places that workers may take.

A run asks for so many workers at least and at most; without a number it asks for all. Runs begin in the order in which
they were declared. The first that waits (the head) begins once its least is free; one behind it begins earlier only
where that cannot delay the head, whichever of the runs before it end first (`_delays`). Those that have begun keep
their least, and what is left goes to them in order, up to the most of each.

What is leased is the place of a worker (its slot), not the VM in it: so a replacement goes to whoever lost a VM. A
place changes hands only where its run has too many.

A run that has its steps (`made`) needs no worker any more: while its last checkpoint is evaluated, the next one has
them. The head begins ahead, some seconds before those that it waits for have their steps, by the speeds that were told
last: its parameter servers are there when workers come free, of which it has none until it has its least. Runs that
have begun are in the memory of the parameter servers' VMs: none begins beside more than a few that are made, not over.

A job is a claim like a run: it takes as many workers as it was declared with, no more and no fewer, and nothing of the
parameter servers. One that wants more than there are places has none, and nobody waits for it.

Parameter servers are shared: each run has a process of its own on their VMs, on ports of its own. A run begins beside
others only where their memory and their link have room for it, too (`admission`); so it is checked first, which counts
its parameters. Alone it begins always, so nobody waits for ever. Nobody passes a run that is held by any of these.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...journal import ClusterState, JobState, RunState
from ...journal.events import MOST_RUNS
from ...spec import WORKER
from .admission import Need, Server, need, shortage, why

CHECK = "check"
AHEAD_SECONDS = 15.0
"""So long before its workers come free a run begins: what it takes to start a parameter server on a busy VM."""
MOST_MADE = 2
"""Runs that have their steps and are not over, beside which another may begin."""
Claim = RunState | JobState
_READINESS = ("ready", "booting", "requested", "leaving")
"""States of the VMs in free places, those that a run takes first at the front."""


@dataclass(frozen=True, slots=True)
class Leases:
    """Who has what: the numbers of the ports of runs that have begun, and the runs and jobs of workers' slots.

    `held`: what runs wait for that would have enough workers (check, memory, link), and why, a clause.
    """

    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: Mapping[int, str] = field(default_factory=dict[int, str])
    held: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


def leases(
    state: ClusterState,
    slots: Sequence[int],
    server: Server = Server(),  # noqa: B008 - frozen
    now: float = math.inf,
) -> Leases:
    """The leases of this moment (`now`, in seconds since 1970), where workers may be in `slots` and parameter servers
    have what `server` says.

    The same again from a state that has them.
    """
    ports, jobs, held = _begun(state, max(1, len(slots)), server, now)
    going = [each for each in state.claims if (each.name in ports or each.name in jobs) and not _is_made(each)]
    shares = _shares(going, len(slots), {*state.leases.values()})
    return Leases(ports, _handed_out(state, slots, shares), _as_told(state, ports, held))


def to_conduct(state: ClusterState) -> list[RunState]:
    """The runs that are given machines and followed.

    One that trains is followed also where the cluster is being deleted, until its results are home; none begins then.
    """
    ending = state.phase == "deleting"
    return [run for run in state.turns if run.phase == "running" or (state.has_begun(run) and not ending)]


def to_check(state: ClusterState) -> RunState | None:
    """The run that waits and is to be checked meanwhile: one at a time, in their order."""
    return next((run for run in state.queue if _unchecked(run)), None)


def _unchecked(run: RunState) -> bool:
    return run.spec.check and not run.checked


def places_kept(claims: Iterable[Claim], places: int, now: float) -> int:
    """How many of the workers' places these keep for longer than a run that begins now takes to be ready: of a job
    nobody knows when it ends."""
    return sum(
        _least(each, places) for each in claims if not _is_made(each) and _seconds_left(each, now) > AHEAD_SECONDS
    )


def _is_made(claim: Claim) -> bool:
    return isinstance(claim, RunState) and claim.made


def _seconds_left(claim: Claim, now: float) -> float:
    return claim.seconds_left(now) if isinstance(claim, RunState) else math.inf


def _began(run: RunState) -> bool:
    return run.phase == "running"  # also in the journal of an earlier version, which knew of no leases


def _least(claim: Claim, places: int) -> int:
    if isinstance(claim, JobState):
        return claim.spec.workers if claim.spec.workers <= places else 0
    return min(claim.spec.least_workers or places, places)


def _most(claim: Claim, places: int) -> int:
    if isinstance(claim, JobState):
        return _least(claim, places)
    return min(claim.spec.most_workers or places, places)


def _begun(
    state: ClusterState, places: int, server: Server, now: float
) -> tuple[dict[str, int], set[str], dict[str, tuple[str, str]]]:
    """The ports of runs that have begun, or begin now; the jobs that have; and what holds the runs that would have
    enough workers."""
    active = state.claims
    ports = {run.name: state.ports[run.name] for run in active if run.name in state.ports}
    for run in active:
        if isinstance(run, RunState) and run.name not in ports and _began(run):
            ports[run.name] = _free_port(ports.values())
    jobs = {job.name for job in active if isinstance(job, JobState) and state.has_begun(job)}
    held: dict[str, tuple[str, str]] = {}
    head: Claim | None = None
    for run in [each for each in active if not state.has_begun(each)]:
        if isinstance(run, JobState) and not _least(run, places):
            continue
        going = [each for each in active if each.name in ports or each.name in jobs]
        training = [each for each in going if not _is_made(each)]
        begun = [_least(each, places) for each in training]
        beside = len(going) - len(training)
        fits = sum(begun) + _least(run, places) <= places
        if isinstance(run, JobState):
            full = not fits
        else:
            ahead = not (fits or head) and places_kept(training, places, now) + _least(run, places) <= places
            full = len(ports) >= MOST_RUNS or beside > MOST_MADE or not (fits or ahead)
        if full:
            head = head or run
            continue
        if head and (head.name in held or _delays(begun, _least(run, places), _least(head, places), places)):
            continue
        if isinstance(run, JobState):
            jobs.add(run.name)
            continue
        trains = [each for each in going if isinstance(each, RunState)]
        if short := _short(run, head, trains, state, places, server):
            if head is None and fits:
                held[run.name] = short
            head = head or run
            continue
        ports[run.name] = _free_port(ports.values())
    return ports, jobs, held


def _short(
    run: RunState, head: Claim | None, going: Sequence[RunState], state: ClusterState, places: int, server: Server
) -> tuple[str, str] | None:
    """What keeps the run from beginning beside those that have begun (`going`), and why; nothing where it may.

    Behind a head there has to be room for both.
    """
    if not going:
        return None
    if _unchecked(run):
        return CHECK, f"is checked first, to see whether it fits beside {_names(going)}"
    begun = {each.name: _need(each, state, places) for each in going}
    own = _need(run, state, places)
    more = [own, *([_need(head, state, places)] if isinstance(head, RunState) else [])]
    if kind := shortage(server, [*begun.values()], more):
        return kind, why(kind, server, begun, own)
    return None


def _need(run: RunState, state: ClusterState, places: int) -> Need:
    if run.made:
        return replace(need(run, state, 0), link=0.0)
    has = sum(name == run.name for name in state.leases.values())
    return need(run, state, has or _least(run, places))


def _names(runs: Iterable[RunState]) -> str:
    return ", ".join(run.name for run in runs)


def _as_told(
    state: ClusterState, ports: Mapping[str, int], held: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """The same in the words in which it was told, as long as those go on beside which it does not fit: what is measured
    of them is another number every ten seconds."""
    if ports != state.ports:
        return dict(held)
    return {name: told if (told := state.held.get(name, short))[0] == short[0] else short
            for name, short in held.items()}  # fmt: skip


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


def _shares(going: Sequence[Claim], places: int, has: Collection[str]) -> dict[str, int]:
    """How many workers each has: its least, in order, then runs more, in order.

    A run that has begun ahead, which is none of those that have any, has no fewer than its least; nor has a job.
    """
    shares: dict[str, int] = {}
    left = places
    for run in going:
        least = _least(run, places)
        some = run.name in has and isinstance(run, RunState)
        shares[run.name] = min(least, left) if some or least <= left else 0
        left -= shares[run.name]
    for run in [each for each in going if isinstance(each, RunState)]:
        more = min(_most(run, places) - shares[run.name], left)
        if more > 0 and shares[run.name]:
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
