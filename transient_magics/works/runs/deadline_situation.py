"""What a decision about a run with a deadline follows from, as the cluster's state tells it: pure.

Seconds are those of this machine's clock, also where the cloud's runs faster: what passes there
faster costs so much more of them.
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

_LATE = 2.326  # deviations: one start in a hundred takes longer
_ROUGH = 0.1  # of a mean start: how far starts differ at least
_FEW = 2.0  # the next of n starts is longer than all of them once in n + 1 times: few tell little of the longest
# of a usual start where none was seen; seconds until a worker that is ready takes steps
_UNSEEN = 1.5
_JOIN = 15.0
# seconds until the last step is saved, at least; of the longest save so far
_LAST_SAVE = 5.0
_SAVES_DIFFER = 2.0


def seen(state: ClusterState, run: RunState, now: float) -> Situation:
    """The situation of a run with a deadline."""
    spec = state.spec
    known = run.deadline
    assert spec
    assert known
    rate = state.clock.rate
    vms = [vm for vm in state.vms.values() if vm.role == WORKER]
    workers = Counter({(gpu, terms): count for gpu, terms, count in state.steered or ()})
    if state.steered is None:
        workers = Counter({(group.accelerator, SPOT): 0 for group in spec.groups})
        for group in spec.groups:
            workers[group.accelerator, SPOT] += group.count
    kinds = tuple(
        _kind(spec, run, gpu, rate)
        for gpu in run.spec.gpus or dict.fromkeys(each.accelerator for each in spec.groups)
    )
    start, begin = _start(spec, run, vms, kinds[0].gpu, rate, now)
    begin += max(
        run.spec.on_demand_wait,
        _waited([vm for vm in vms if vm.provisioning_model == ON_DEMAND], now),
    )
    if run.spec.max_cost is not None:
        left = [run.spec.max_cost - charged(state, run.name, now)]
    else:
        left = []
    left += [spec.max_cost - total(state, now)] if spec.max_cost is not None else []
    spots = [vm for vm in vms if vm.provisioning_model != ON_DEMAND]
    return Situation(
        now=now,
        deadline=run.spec.finish_by,
        steps=max(run.train_steps - known.durable, 0),
        unsaved=max(run.step - known.durable, 0),
        speeds=Speeds(known.blocks, run.spec.confidence, alike=spec.emulated, rate=rate),
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
        since=now - known.acted.at if known.acted else math.inf,
        acts=run.spec.adapt == "auto",
        overlaps=not run.spec.most_workers,  # else it gets no more than these
        end=max(_LAST_SAVE, _SAVES_DIFFER * known.save_seconds),
        began=known.began[0] if known.began else now,
        train_steps=run.train_steps - (known.began[1] if known.began else 0),
    )


def _kind(spec: ClusterSpec, run: RunState, gpu: str, rate: float) -> Kind:
    line = spec.price(gpu, zones_for(spec, run.spec, gpu)[0])
    if accelerator(gpu).spot_only:
        on_demand = None
    else:
        on_demand = line.on_demand_hourly * rate / 3600
    return Kind(gpu, line.hourly * rate / 3600, on_demand)


def _group(vm: VmState) -> tuple[str, str]:
    return vm.accelerator or "cpu", ON_DEMAND if vm.provisioning_model == ON_DEMAND else SPOT


def _start(
    spec: ClusterSpec, run: RunState, vms: Sequence[VmState], gpu: str, rate: float, now: float
) -> tuple[float, float]:
    """Seconds from a request to the first step of a worker, where there is capacity: the mean, and
    what one in a hundred takes longer than.
    """
    booted = [vm.ready_at - vm.requested_at for vm in vms if vm.ready_at]
    on_their_way = [
        now - max(vm.answered_at, run.started_at)
        for vm in vms
        if vm.state == "ready" and run.started_at and vm.name not in run.workers
    ]
    joined = [
        *(run.deadline.joins if run.deadline else ()),
        *(each for each in on_their_way if each > _JOIN),
    ]
    if booted:
        boot = statistics.fmean(booted)
    else:
        boot = _UNSEEN * usual_boot_seconds(spec, gpu) / rate
    if joined:
        join = statistics.fmean(joined)
    else:
        join = _JOIN
    varies = max(statistics.pstdev(booted) if booted else 0.0, _ROUGH * boot)
    longest = boot + _LATE * varies + max([*joined, join])
    return boot + join, longest * (1 + _FEW / (len(joined) + 1))


def _waited(vms: Iterable[VmState], now: float) -> float:
    """The longest that capacity on demand was waited for, from the first refusal to the VM that
    came.
    """
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
    """Seconds until all on demand that are asked for take steps, at most."""
    wanted = sum(count for (_, terms), count in workers.items() if terms == ON_DEMAND)
    there = [vm for vm in vms if vm.living and vm.provisioning_model == ON_DEMAND]
    if sum(vm.name in run.workers for vm in there) >= wanted:
        return 0.0
    coming = [
        vm.powered[-1].since if vm.powered else vm.requested_at
        for vm in there
        if vm.name not in run.workers
    ]
    if len(there) >= wanted:
        return max(begin - (now - max(coming)), 1.0)
    return begin


def _life(vms: Iterable[VmState], now: float, rate: float) -> float:
    """Mean seconds that a Spot VM is there."""
    lived = [(vm.ended_at or now) - vm.running_at for vm in vms if vm.running_at]
    revoked = sum(vm.state == "revoked" for vm in vms)
    return (PRIOR_SPELLS * LASTS / rate + sum(lived)) / (PRIOR_SPELLS + revoked)


def _market(vms: Iterable[VmState], now: float, rate: float) -> Market:
    """What the Spot VMs that were asked for tell: there is capacity while one is there, and none
    from a refusal, or from the revocation of the last one, until the next comes.
    """
    moments = [(vm.running_at, 1) for vm in vms if vm.running_at]
    moments += [
        (vm.ended_at, 0 if vm.state == "refused" else -1 if vm.state == "revoked" else -2)
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
        if what is None:
            after = alive
        else:
            after = alive + (what > 0) - (what < 0)
        if after:
            then = True
        else:
            if what == -2:
                then = None
            else:
                then = False if what in (0, -1) else open_
        if then != open_ or what is None:
            if open_ is not None:
                age = at - since
            else:
                age = 0.0
            if open_ is not None:
                spells[not open_] += age
                ends[not open_] += then is not None and what is not None
            since = at
            open_ = then if what is not None else open_
        alive = after
    return believed(
        spells[0], spells[1], (ends[0], ends[1]), open_=open_ is not False, rate=rate, age=age
    )
