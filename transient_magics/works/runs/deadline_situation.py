"""The situation of a run with a deadline, computed from the cluster's state: pure.

Seconds are those of this machine's clock, also where the cloud's clock is faster: prices per second
are multiplied accordingly.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from ...catalog import accelerator
from ...deadlines.situation import (
    LASTS,
    ON_DEMAND,
    PRIOR_SPELLS,
    SPOT,
    Kind,
    Market,
    Situation,
    Workers,
    believed,
    zones_for,
)
from ...deadlines.speeds import Speeds
from ...journal import ClusterState, RunState, VmState
from ...journal.cost import charged, total
from ...spec import WORKER, ClusterSpec
from ...spec.image import usual_boot_seconds

# Deviations: one start in a hundred takes longer.
_LATE = 2.326
# Smallest deviation between starts, as a share of the mean.
_ROUGH = 0.1
# The next of n starts is longer than all of them once in n + 1 times, so the longest of a few is
# multiplied.
_FEW = 2.0
# Start time without an observed start, as a multiple of the usual one.
_UNSEEN = 1.5
# Seconds until a ready worker takes steps.
_JOIN = 15.0
# Fewest seconds until the last step is saved.
_LAST_SAVE = 5.0
# Events of Spot VMs, as changes of their number: positive for more, negative for fewer.
_STARTED = 1
_REFUSED = 0
_REVOKED = -1
_DELETED = -2
# Bound of the last save, as a multiple of the measured one.
_SAVES_DIFFER = 2.0


def seen(state: ClusterState, run: RunState, now: float) -> Situation:
    """Return the situation of a run with a deadline."""
    spec = state.spec
    deadline = run.deadline
    assert spec
    assert deadline
    rate = state.clock.rate
    vms = [vm for vm in state.vms.values() if vm.role == WORKER]
    workers = Counter({(gpu, terms): count for gpu, terms, count in state.steered or ()})
    if state.steered is None:
        workers = Counter({(group.accelerator, SPOT): 0 for group in spec.groups})
        for group in spec.groups:
            workers[group.accelerator, SPOT] += group.count
    kinds = tuple(
        _kind(spec, run, gpu, rate)
        for gpu in run.spec.gpus or dict.fromkeys(group.accelerator for group in spec.groups)
    )
    start, begin = _start(spec, run, vms, kinds[0].gpu, rate, now)
    begin += max(
        run.spec.on_demand_wait,
        _waited([vm for vm in vms if vm.provisioning_model == ON_DEMAND], now),
    )
    left = []
    if run.spec.max_cost is not None:
        left.append(run.spec.max_cost - charged(state, run.name, now))
    if spec.max_cost is not None:
        left.append(spec.max_cost - total(state, now))
    spots = [vm for vm in vms if vm.provisioning_model != ON_DEMAND]
    return Situation(
        now=now,
        deadline=run.spec.finish_by,
        steps=max(run.train_steps - deadline.durable, 0),
        unsaved=max(run.step - deadline.durable, 0),
        speeds=Speeds(deadline.blocks, run.spec.confidence, alike=spec.emulated, rate=rate),
        market=_market(spots, now, rate),
        kinds=kinds,
        workers=workers,
        working=Counter(
            map(_group, (state.vms[name] for name in run.workers if name in state.vms))
        ),
        begin=begin,
        begun=_begun(run, workers, vms, begin, now),
        start=start,
        life=_life(spots, now, rate),
        kept=sum(vm.hourly for vm in state.living if vm.role != WORKER) * rate / 3600,
        most=min(run.spec.most_workers or 1000, spec.max_workers or spec.worker_count),
        money=min(left, default=math.inf),
        since=now - deadline.acted.at if deadline.acted else math.inf,
        acts=run.spec.adapt == "auto",
        # With a limit of its workers, new ones cannot start before old ones end.
        overlaps=not run.spec.most_workers,
        end=max(_LAST_SAVE, _SAVES_DIFFER * deadline.save_seconds),
        began=deadline.began[0] if deadline.began else now,
        train_steps=run.train_steps - (deadline.began[1] if deadline.began else 0),
    )


def _kind(spec: ClusterSpec, run: RunState, gpu: str, rate: float) -> Kind:
    line = spec.price(gpu, zones_for(spec, run.spec, gpu)[0])
    on_demand = None
    if not accelerator(gpu).spot_only:
        on_demand = line.on_demand_hourly * rate / 3600
    return Kind(gpu, line.hourly * rate / 3600, on_demand)


def _group(vm: VmState) -> tuple[str, str]:
    return vm.accelerator or "cpu", ON_DEMAND if vm.provisioning_model == ON_DEMAND else SPOT


def _start(
    spec: ClusterSpec, run: RunState, vms: Sequence[VmState], gpu: str, rate: float, now: float
) -> tuple[float, float]:
    """Return the seconds from a request to the first step of a worker, if there is capacity.

    The first figure is the mean, the second one is exceeded by one start in a hundred.
    """
    booted = [vm.ready_at - vm.requested_at for vm in vms if vm.ready_at]
    on_their_way = [
        now - max(vm.answered_at, run.started_at)
        for vm in vms
        if vm.state == "ready" and run.started_at and vm.name not in run.workers
    ]
    joined = [
        *(run.deadline.joins if run.deadline else ()),
        *(seconds for seconds in on_their_way if seconds > _JOIN),
    ]
    boot = _UNSEEN * usual_boot_seconds(spec, gpu) / rate
    if booted:
        boot = statistics.fmean(booted)
    join = statistics.fmean(joined) if joined else _JOIN
    varies = max(statistics.pstdev(booted) if booted else 0.0, _ROUGH * boot)
    longest = boot + _LATE * varies + max([*joined, join])
    return boot + join, longest * (1 + _FEW / (len(joined) + 1))


def _waited(vms: Iterable[VmState], now: float) -> float:
    """Return the longest wait for on-demand capacity, in seconds, from the first refusal on."""
    since = 0.0
    longest = 0.0
    for vm in vms:
        if vm.state == "refused":
            since = since or vm.requested_at
        elif vm.running_at and since:
            since, longest = 0.0, max(longest, vm.running_at - since)
    return max(longest, now - since if since else 0.0)


def _begun(
    run: RunState, workers: Workers, vms: Sequence[VmState], begin: float, now: float
) -> float:
    """Return the seconds until all requested on-demand VMs train, at most."""
    requested = sum(count for (_, terms), count in workers.items() if terms == ON_DEMAND)
    there = [vm for vm in vms if vm.living and vm.provisioning_model == ON_DEMAND]
    if sum(vm.name in run.workers for vm in there) >= requested:
        return 0.0
    coming = [
        vm.powered[-1].since if vm.powered else vm.requested_at
        for vm in there
        if vm.name not in run.workers
    ]
    if len(there) >= requested:
        return max(begin - (now - max(coming)), 1.0)
    return begin


def _life(vms: Iterable[VmState], now: float, rate: float) -> float:
    """Return the mean lifetime of a Spot VM, in seconds."""
    lived = [(vm.ended_at or now) - vm.running_at for vm in vms if vm.running_at]
    revoked = sum(vm.state == "revoked" for vm in vms)
    return (PRIOR_SPELLS * LASTS / rate + sum(lived)) / (PRIOR_SPELLS + revoked)


def _market(vms: Iterable[VmState], now: float, rate: float) -> Market:
    """Return what the requested Spot VMs say about capacity.

    There is capacity while a VM is there, and none from a refusal, or from the revocation of the
    last VM, until the next one comes.
    """
    how = {"refused": _REFUSED, "revoked": _REVOKED}
    moments = [(vm.running_at, _STARTED) for vm in vms if vm.running_at]
    moments += [
        (vm.ended_at, how.get(vm.state, _DELETED))
        for vm in vms
        if vm.ended_at and (vm.running_at or vm.state == "refused")
    ]
    alive = 0
    open_ = None
    since = 0.0
    age = 0.0
    spells = [0.0, 0.0]
    ends = [0, 0]
    for at, what in [*sorted(moments), (now, None)]:
        after = alive
        if what is not None:
            after += (what > 0) - (what < 0)
        if after:
            then = True
        elif what == _DELETED:
            # The last VM was deleted by us: nothing is known about capacity.
            then = None
        elif what in (_REFUSED, _REVOKED):
            then = False
        else:
            then = open_
        if then != open_ or what is None:
            age = 0.0
            if open_ is not None:
                age = at - since
                spells[not open_] += age
                ends[not open_] += then is not None and what is not None
            since = at
            if what is not None:
                open_ = then
        alive = after
    return believed(
        spells[0], spells[1], (ends[0], ends[1]), open_=open_ is not False, rate=rate, age=age
    )
