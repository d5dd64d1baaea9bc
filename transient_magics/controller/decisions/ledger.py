"""Assign workers to runs, jobs and Dask clusters: a pure function of the state and the slots.

A run requests a least and a most number of workers; without a number it requests all. Runs begin in
the order of their declarations. The first that waits (the head) begins once its least number of
workers is free. A later run begins earlier only if that cannot delay the head, in whichever order
the earlier runs end (`_delays`). Runs that have begun keep their least. The remaining workers go to
them in order, up to the most of each.

A lease is on the place of a worker (its slot), not on the VM in it, so a replacement goes to the
run that lost a VM. A slot changes hands only if its run has too many, or if a job waits for a VM,
for example between two attempts, while another slot has a free and ready VM. The job takes that one
and frees its own. A VM has one place, or several for trials of one study that share it (`seated`):
these are one claim. A further trial begins there immediately, unless other work waits for a worker.

A run that has made its steps (`made`) no longer needs a worker: while its last checkpoint is
evaluated, the next run has them. The head begins ahead, some seconds before the runs that it waits
for make their last steps, estimated from their latest speeds. Its parameter servers are then
running when workers become free. It has no worker until it has its least. Runs that have begun use
memory of the parameter servers' VMs, so no run begins while there are more made runs than
`MOST_MADE` and than workers.

A run with named machines takes these and no others (`slots.Pool`): it has no worker until all of
them are free.

A job is a claim like a run. It takes exactly the declared number of workers and no resources of the
parameter servers. A job that needs more workers than there are slots gets none, and blocks no other
work. A Dask cluster is a claim, too; it takes the slots that there are if there are fewer than it
asks for.

Parameter servers are shared: each run has its own process and ports on their VMs. A run begins
beside others only if the memory and network of these VMs have room for it (`admission`), so it is
first checked, which counts its parameters. A run that is alone always begins, so no run waits
endlessly. No run passes one that is held back for one of these reasons.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...journal import ClusterState, RunState
from ...journal.events import MOST_RUNS
from ...protocol.run import RunSpec
from ...spec import WORKER
from .admission import Need, Server, need, shortage, why
from .same_check import alike
from .slots import (
    Ahead,
    Claim,
    Machines,
    Pool,
    by_readiness,
    guests,
    hosts,
    machines_of,
    ready,
    ready_first,
    seated,
)

CHECK = "check"
AHEAD_SECONDS = 15.0
"""Lead time, in seconds, of a run that begins before its workers are free.

Starting a parameter server takes this long on a busy VM.
"""
MOST_MADE = 2
"""Runs that have made their steps but are not over, beside which another may begin.

With more workers than this, the limit is the number of workers: trials that began together make
their last steps together, and are evaluated one after the other.
"""
_READINESS = ("ready", "booting", "requested", "stopping", "stopped", "leaving")
"""States of the VMs in free slots, in the order in which a run takes them."""


@dataclass(frozen=True, slots=True)
class Leases:
    """Leases: the port numbers of runs that have begun, and the runs and jobs in worker slots.

    `held_back` has the runs that would have enough workers but wait for something else: what that is
    (check, memory, link), and why (a clause). `ahead` is the run that prepares in a slot for its
    next worker.
    """

    ports: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: Mapping[int, str] = field(default_factory=dict[int, str])
    held_back: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    ahead: Mapping[int, str] = field(default_factory=dict[int, str])


def leases(
    state: ClusterState,
    slots: Mapping[int, str],
    server: Server = Server(),  # noqa: B008 - frozen
    now: float = math.inf,
) -> Leases:
    """Return the leases at time `now`, in seconds since 1970.

    Workers may be in `slots`, each with its GPU, and `server` describes a parameter server.

    From a state that already has these leases the result is the same, with two exceptions. With
    named machines, a surplus worker can go to another run. With shared VMs, a trial that lost its
    own slot may become the guest of another.
    """
    pool = Pool(slots)
    ports, jobs, held_back = _begun(state, pool, server, now)
    begun = [
        claim
        for claim in state.claims
        if (claim.name in ports or claim.name in jobs) and not _is_made(claim)
    ]
    there = {slot for slot, rank in _readiness(state).items() if rank == 0 and slot in pool.gpus}
    ahead = {slot: name for slot, name in state.ahead.items() if slot in there}
    going = ready_first(hosts(begun, state), state, ahead)
    shares = _shares(going, pool, {*state.leases.values()})
    workers = seated(_handed_out(state, pool, going, shares, ahead), guests(begun, state), state)
    waiting = _waiting(begun, workers, pool)
    coming = _coming(begun, workers, there, now)
    return Leases(
        ports,
        workers,
        _as_reported(state, ports, held_back),
        ready(state, ahead, workers, waiting, coming),
    )


def to_conduct(state: ClusterState) -> list[RunState]:
    """Return the runs that are given machines and followed.

    While the cluster is being deleted, runs that train are followed until their results are copied,
    and no run begins.
    """
    ending = state.phase == "deleting"
    return [
        run
        for run in state.turns
        if run.phase == "running" or (state.has_begun(run) and not ending)
    ]


def to_check(state: ClusterState) -> RunState | None:
    """Return the next waiting run to check, or None. Runs are checked one at a time, in order.

    A trial waits while another one of its study is checked as it begins, because the result may
    hold for both.
    """
    unchecked = [run for run in state.turns if _unchecked(run) and not _began(run)]
    under_way = [run.spec for run in unchecked if run.spec.study and state.has_begun(run)]
    waits = [run for run in unchecked if not state.has_begun(run)]
    return next(
        (run for run in waits if not any(_as_trial(run.spec, spec) for spec in under_way)), None
    )


def _as_trial(other: RunSpec, trial: RunSpec) -> bool:
    return other.study == trial.study and alike(trial, other)


def _unchecked(run: RunState) -> bool:
    return run.spec.check and not run.checked


def has_room(
    state: ClusterState, slots: Mapping[int, str], now: float, workers: int, machines: Machines
) -> bool:
    """Return whether a run would have its workers, or machines, once it is ready.

    Some runs that have workers now will have made their steps by then. A job counts as endless,
    because its end is unknown.
    """
    claims = hosts(lasting(state.claims, now), state)
    return Pool(slots).has_room(claims, workers, machines, state.leases)


def lasting(claims: Iterable[Claim], now: float) -> list[Claim]:
    """Return the claims that keep their workers for longer than a new run takes to start."""
    return [
        claim
        for claim in claims
        if not _is_made(claim) and _seconds_left(claim, now) > AHEAD_SECONDS
    ]


def _is_made(claim: Claim) -> bool:
    return isinstance(claim, RunState) and claim.made


def _seconds_left(claim: Claim, now: float) -> float:
    if isinstance(claim, RunState):
        return claim.seconds_left(now)
    return math.inf


def _began(run: RunState) -> bool:
    # Also in the journal of an earlier version, which had no leases.
    return run.phase == "running"


def _begun(
    state: ClusterState, pool: Pool, server: Server, now: float
) -> tuple[dict[str, int], set[str], dict[str, tuple[str, str]]]:
    """Return the ports of begun runs, the begun jobs, and what holds back other runs.

    Runs that begin now are included. The held runs would have enough workers.
    """
    active = state.claims
    ports = {run.name: state.ports[run.name] for run in active if run.name in state.ports}
    for run in active:
        if isinstance(run, RunState) and run.name not in ports and _began(run):
            ports[run.name] = _free_port(ports.values())
    jobs = {job.name for job in active if not isinstance(job, RunState) and state.has_begun(job)}
    held_back: dict[str, tuple[str, str]] = {}
    head: Claim | None = None
    for run in [claim for claim in active if not state.has_begun(claim)]:
        if not pool.least(run):
            continue
        going = [claim for claim in active if claim.name in ports or claim.name in jobs]
        training = [claim for claim in going if not _is_made(claim)]
        beside = len(going) - len(training)
        fits = _fits(run, training, pool, state)
        if not isinstance(run, RunState):
            full = not fits
        else:
            ahead = not (fits or head) and _fits(run, lasting(training, now), pool, state)
            full = (
                len(ports) >= MOST_RUNS or beside > max(MOST_MADE, pool.size) or not (fits or ahead)
            )
        if full:
            head = head or run
            continue
        if head and (head.name in held_back or _delays(run, head, training, pool, state)):
            continue
        if not isinstance(run, RunState):
            jobs.add(run.name)
            continue
        trains = [claim for claim in going if isinstance(claim, RunState)]
        if short := _short(run, head, trains, state, pool, server):
            if head is None and fits:
                held_back[run.name] = short
            head = head or run
            continue
        ports[run.name] = _free_port(ports.values())
    return ports, jobs, held_back


def _fits(run: Claim, beside: Sequence[Claim], pool: Pool, state: ClusterState) -> bool:
    """Return whether a claim has its least workers beside these claims, or is a guest of one."""
    found = guests([*beside, run], state)
    others = [claim for claim in beside if claim.name not in found]
    return run.name in found or pool.has_room(
        others, pool.least(run), machines_of(run), state.leases
    )


def _delays(
    run: Claim, head: Claim, begun: Sequence[Claim], pool: Pool, state: ClusterState
) -> bool:
    """Return whether the run could delay the head. A guest delays when its VM becomes free."""
    return run.name in guests([*begun, run], state) or pool.delays(hosts(begun, state), run, head)


def _short(
    run: RunState,
    head: Claim | None,
    going: Sequence[RunState],
    state: ClusterState,
    pool: Pool,
    server: Server,
) -> tuple[str, str] | None:
    """Return what keeps the run from beginning beside `going`, and why; None if it may begin.

    Behind a head there has to be room for both.
    """
    if not going:
        return None
    if _unchecked(run):
        return CHECK, f"is checked first, to see whether it fits beside {_names(going)}"
    begun = {other.name: _need(other, state, pool) for other in going}
    own = _need(run, state, pool)
    more = [own, *([_need(head, state, pool)] if isinstance(head, RunState) else [])]
    if kind := shortage(server, [*begun.values()], more):
        return kind, why(kind, server, begun, own)
    return None


def _need(run: RunState, state: ClusterState, pool: Pool) -> Need:
    if run.made:
        return replace(need(run, state, 0), link=0.0)
    has = sum(name == run.name for name in state.leases.values())
    return need(run, state, has or pool.keeps(run))


def _names(runs: Iterable[RunState]) -> str:
    return ", ".join(run.name for run in runs)


def _as_reported(
    state: ClusterState, ports: Mapping[str, int], held_back: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[str, str]]:
    """Return `held_back` with the reasons that were reported first, while the same runs are active.

    The measured numbers in a reason change every ten seconds.
    """
    if ports != state.ports:
        return dict(held_back)
    return {
        name: reported if (reported := state.held_back.get(name, short))[0] == short[0] else short
        for name, short in held_back.items()
    }


def _free_port(used: Collection[int]) -> int:
    return next(number for number in range(len(used) + 1) if number not in used)


def _shares(going: Sequence[Claim], pool: Pool, has: Collection[str]) -> dict[str, int]:
    """Return the number of workers for each claim: its least, in order, then more for runs.

    A run that began ahead and has no worker yet gets at least its least, or none. So does a job.
    """
    shares: dict[str, int] = {}
    left = len(pool.gpus)
    for run in going:
        least = pool.keeps(run)
        some = run.name in has and (isinstance(run, RunState) or run.begins_with_fewer)
        if some or least <= left:
            shares[run.name] = min(least, left)
        else:
            shares[run.name] = 0
        left -= shares[run.name]
    for run in [claim for claim in going if isinstance(claim, RunState)]:
        more = min(pool.most(run) - shares[run.name], left)
        if more > 0 and shares[run.name]:
            shares[run.name] += more
            left -= more
    return shares


def _handed_out(
    state: ClusterState, pool: Pool, going: Sequence[Claim], shares: Mapping[str, int], ahead: Ahead
) -> dict[int, str]:
    """Assign slots: each claim keeps what it has and gets more from the free ones.

    Claims with named machines choose first. A run with too many workers gives up the machines that
    they need.
    """
    readiness = _readiness(state)
    order = sorted(pool.gpus, key=lambda slot: (readiness.get(slot, len(_READINESS)), slot))
    named = {
        claim.name: Counter(pool.in_reach(machines))
        for claim in going
        if (machines := machines_of(claim))
    }
    had: dict[str, list[int]] = {}
    needed: Counter[str] = Counter()
    for name in sorted(shares, key=lambda name: name not in named):
        mine = state.slots_of(name)
        own = [slot for slot in order if slot in mine]
        had[name] = _kept(own, pool, shares[name], named.get(name), needed)
        if name in named and shares[name]:
            needed += named[name] - Counter(pool.gpus[slot] for slot in had[name])
    _exchange(state, pool, going, had)
    assigned = {slot for owned in had.values() for slot in owned}
    free = [slot for slot in order if slot not in assigned]
    for name, owned in had.items():
        if name in named:
            more = _picked(free, pool, named[name], owned)
        else:
            there = [slot for slot in free if readiness.get(slot) == 0]
            more = [*by_readiness(there, name, ahead), *free[len(there) :]][
                : shares[name] - len(owned)
            ]
        if name in named and not owned and len(more) < shares[name]:
            continue
        owned += more
        gone = set(more)
        free = [slot for slot in free if slot not in gone]
    return {slot: name for name in shares for slot in sorted(had[name])}


def _exchange(
    state: ClusterState, pool: Pool, going: Sequence[Claim], had: Mapping[str, list[int]]
) -> None:
    """Give jobs that wait to begin free slots with a ready VM in exchange for slots without one."""
    fit = {
        vm.slot
        for vm in state.serving
        if vm.role == WORKER and vm.state == "ready" and not vm.failure
    }
    assigned = {slot for owned in had.values() for slot in owned}
    spare = [slot for slot in sorted(pool.gpus) if slot in fit and slot not in assigned]
    for job in going:
        if job.may_change_vms:
            owned = had[job.name]
            for place, slot in enumerate(owned):
                if slot not in fit and spare:
                    owned[place] = spare.pop(0)


def _waiting(begun: Sequence[Claim], workers: Mapping[int, str], pool: Pool) -> dict[str, int]:
    """Return the runs that have no worker yet, with the number they begin with.

    Only runs that take any workers count.
    """
    has = {*workers.values()}
    runs = [claim for claim in begun if isinstance(claim, RunState) and claim.name not in has]
    fit = [run.spec.per_vm < 2 and not (run.spec.machines or run.spec.stalls) for run in runs]
    return {run.name: pool.least(run) for run, fits in zip(runs, fit, strict=True) if fits}


def _coming(
    begun: Sequence[Claim], workers: Mapping[int, str], there: Collection[int], now: float
) -> list[int]:
    """Return free slots with ready VMs, then slots of runs that make their last steps soon.

    The latter are sorted by the time until those steps are made.
    """
    left = {
        claim.name: _seconds_left(claim, now)
        for claim in begun
        if isinstance(claim, RunState) and claim.spec.per_vm < 2
    }
    seconds = {
        slot: left.get(workers[slot], math.inf) if slot in workers else 0.0
        for slot in sorted(there)
    }
    return sorted(
        (slot for slot, remaining in seconds.items() if remaining <= AHEAD_SECONDS),
        key=lambda slot: seconds[slot],
    )


def _kept(
    own: list[int], pool: Pool, share: int, machines: Counter[str] | None, needed: Counter[str]
) -> list[int]:
    """Return which of its slots a claim keeps."""
    if machines is not None:
        return _picked(own, pool, machines, [])[:share]
    return sorted(own, key=lambda slot: needed[pool.gpus[slot]] > 0)[:share]


def _picked(
    slots: Sequence[int], pool: Pool, machines: Counter[str], has: Sequence[int]
) -> list[int]:
    """Return the first of these slots that, with those in `has`, make up the machines."""
    missing = machines - Counter(pool.gpus[slot] for slot in has)
    found: list[int] = []
    for slot in slots:
        if missing[pool.gpus[slot]] > 0:
            missing[pool.gpus[slot]] -= 1
            found.append(slot)
    return found


def _readiness(state: ClusterState) -> dict[int, int]:
    """Return for each slot the rank of the readiest of its VMs."""
    found: dict[int, int] = {}
    for vm in state.vms.values():
        if vm.living and vm.role == WORKER:
            found[vm.slot] = min(_READINESS.index(vm.state), found.get(vm.slot, len(_READINESS)))
    return found
