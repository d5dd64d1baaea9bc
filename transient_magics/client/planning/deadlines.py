"""Runs with a deadline: its moment, the checks before such a run begins, and the on-demand capacity observed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...catalog import accelerator, has_gpu
from ...clock import rate_of
from ...deadlines.situation import ON_DEMAND, zones_for
from ...errors import ClusterError, DeclarationError, StoreError, TransientError, UnreachableError
from ...journal import ClusterState, known_states
from ...journal.cost import total
from ...spec import WORKER, ClusterSpec, RunSpec, WorkerGroup, render_duration, render_money
from ...spec.measurement import Sighting, measurements
from ...spec.units import parse_deadline
from ..commands import run_program
from ..declaring import widened
from ..folders import known_runs
from ..project.weather import weather
from ..text import count
from .workloads import alike, learn, store_for

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

_OPTION = "--finish-by"

KNOWN_SECONDS = 7 * 86400.0
"""How old what was seen may be."""
_GAP = 7200.0
"""Nobody waits who does not ask for so long."""
_LEAST = 600.0
"""Seconds that were waited at least where no VM came: as often do measurements ask."""
_RECENT = 3600.0
_MOST_ZONES = 3


def moment(finish_by: str | float | datetime, cluster: BaseCluster) -> float:
    """When that is, in seconds since 1970. A time of the day is the next one on this machine's
    clock; a number of hours passes on the cluster's clock, as its limits do. Raises
    DeclarationError, also where it is past.
    """
    now = time.time()
    if isinstance(finish_by, datetime):
        at = finish_by.timestamp()
    elif isinstance(finish_by, str) and ":" in finish_by:
        at = now + parse_deadline(finish_by, _OPTION, now)
    else:
        if isinstance(finish_by, str):
            seconds = parse_deadline(finish_by, _OPTION, now)
        else:
            seconds = 3600 * float(finish_by)
        at = now + seconds / _rate(cluster)
    if not now < at < math.inf:
        raise DeclarationError(
            "The deadline is past already",
            where=_OPTION,
            fix="Write 6h, or 18:00 for the next one.",
        )
    return at


def refuse_untimely(cluster: BaseCluster, options: Mapping[str, Any]) -> None:
    """Raise ClusterError or DeclarationError where this cluster cannot have a run with a deadline,
    or not with these `options` (fields of RunSpec).
    """
    state = cluster.state
    spec = state.spec
    if spec is None:
        raise ClusterError(f"{cluster.name} is not declared yet")
    if others := [each.name for each in state.works.values() if not each.over]:
        what = f"A run with a deadline needs {cluster.name} for itself, and {' and '.join(others)} would share it"
        raise ClusterError(what, fix="Wait for their end, or declare another cluster.")
    for wrong, why in (
        (
            spec.provisioning_model == "standard",
            "is on demand only, and a deadline chooses between Spot and on demand",
        ),
        (not spec.replace, "was declared with --no-replace, and a deadline needs replacements"),
        (spec.chief == "worker", "has its chief on a worker, with which what it saved may be lost"),
    ):
        if wrong:
            raise ClusterError(
                f"{cluster.name} {why}", where=_OPTION, fix="Declare another cluster."
            )
    for gpu in options.get("gpus") or [group.accelerator for group in spec.groups]:
        if accelerator(gpu).spot_only:
            what = f"{gpu.upper()}s are not sold on demand, and a deadline needs VMs on demand"
            raise DeclarationError(what, where=_OPTION, fix="Name other GPUs with --gpus.")
        if (zones := options.get("zones")) and not any(has_gpu(zone, gpu) for zone in zones):
            raise DeclarationError(
                f"None of {', '.join(zones)} has {gpu.upper()}s", where="--zones"
            )
    left = state.seconds_left(time.time()) * state.clock.rate / _rate(cluster)
    wanted = options["finish_by"] - time.time()
    if wanted > left:
        what = (
            f"{cluster.name} ends by its own limits in {render_duration(left)}, before the deadline"
        )
        raise DeclarationError(
            what, where=_OPTION, fix="Declare it with other --max-hours or --max-cost."
        )
    most = options.get("max_cost")
    if most is not None and spec.max_cost is not None:
        rest = spec.max_cost - total(state, time.time())
        if most > rest:
            what = f"{render_money(most)} are more than the {render_money(max(rest, 0.0))} left of {cluster.name}'s limit"
            raise DeclarationError(what, where="--max-cost", fix="Take less.")


def refuse_without_quota(cluster: BaseCluster, run: RunSpec) -> None:
    """Raise ClusterError where the project has no quota left for as many VMs on demand as the
    cluster has workers, of each GPU that the run may have them of.

    Of an emulated cluster where its weather has quotas. What cannot be told is no refusal: it is
    told when it is met.
    """
    spec = cluster.state.spec
    assert spec
    if spec.emulated and not (cluster.state.vms and weather(cluster, {}).settings.get("quota")):
        return
    count = spec.worker_count
    for gpu in run.gpus or dict.fromkeys(group.accelerator for group in spec.groups):
        if accelerator(gpu).spot_only:
            continue
        if gpu in spec.prices:
            known = spec
        else:
            known = widened(spec, run.gpus)
        groups = (WorkerGroup(gpu, count, next(iter(run.zones), known.zones_for(gpu)[0])),)
        alone = replace(
            known,
            name=f"{spec.name[:30]}-due",
            id="",
            groups=groups,
            provisioning_model="standard",
            parameter_servers=0,
            controller="local",
        )
        answer = run_program(
            "preflight", "The examination of quotas", stdin=json.dumps(alone.to_dict())
        )
        for finding in answer["findings"]:
            if not finding["good"] and str(finding["subject"]).startswith("quotas"):
                raise ClusterError(
                    f"{count} {gpu.upper()} VMs on demand could not be had, and with them the deadline might "
                    f"not be kept: {finding['said']}",
                    where=_OPTION,
                )


def on_demand_wait(cluster: BaseCluster, run: RunSpec) -> float:
    """The longest that a VM on demand was waited for where the run may have one, in seconds: what
    was seen here.
    """
    assert cluster.state.spec
    now = time.time()
    rate = _rate(cluster)
    return max(each.waited(now, rate) for each in on_demand(cluster.state.spec, run, now))


def on_demand_words(cluster: BaseCluster, run: RunSpec) -> str:
    """What is known of capacity on demand before a run with a deadline begins, where it may be
    changed for it.
    """
    spec = cluster.state.spec
    if spec is None or not run.finish_by or run.adapt == "off":
        return ""
    now = time.time()
    rate = _rate(cluster)
    return "\n".join(each.words(now, rate) for each in on_demand(spec, run, now))


def refuse_impossible(cluster: BaseCluster, run: RunSpec, source: str, made: int = 0) -> None:
    """Raise DeclarationError where earlier runs of this code tell that no workers of the cluster do
    it in time, with the nearest deadline that they can. `made`: steps that count already. Nothing
    where no run tells its speed.

    Raises StoreError where what earlier runs tell cannot be read.
    """
    spec = cluster.state.spec
    assert spec
    needed = _needed(spec, run, source, run.train_steps - made)
    left = run.finish_by - time.time()
    if needed is not None and needed > left:
        raise DeclarationError(
            f"{run.name} takes {render_duration(needed)} even on demand with all workers that {cluster.name} may have, "
            f"at the lower end of its speed, and {render_duration(left)} are left",
            where=_OPTION,
            fix=f"The nearest deadline is {math.ceil(needed * _rate(cluster) / 60)}m; more workers may be faster.",
        )


def _needed(spec: ClusterSpec, run: RunSpec, source: str, steps: int) -> float | None:
    """Seconds on demand, with the fastest workers that the cluster may have; None where nobody
    knows.
    """
    try:
        from ...planner.choices import Choice
        from ...planner.deadlines.cost import start_seconds, work_seconds

        store = store_for(run, source.encode())
        for other in alike(known_runs(), store):
            learn(store, other)
        workload = store.workload(run.name, spec.source, run.wire)
        count = min(run.most_workers or spec.max_workers, spec.max_workers or spec.worker_count)
        choices = [
            Choice(
                (WorkerGroup(gpu, count, spec.zones_for(gpu)[0]),),
                spec.parameter_servers,
                provisioning="standard",
            )
            for gpu in run.gpus or dict.fromkeys(group.accelerator for group in spec.groups)
        ]
        return min(
            work_seconds(choice, workload, steps)
            + (0.0 if spec.emulated else start_seconds(choice, workload, steps))
            for choice in choices
        )
    except StoreError:
        raise
    except (
        TransientError,
        OSError,
    ):  # no run of it has trained long enough, or NumPy is not installed
        return None


def _rate(cluster: BaseCluster) -> float:
    """How fast the cluster's clock runs, in seconds per second; before its first VM only the
    weather knows.
    """
    spec = cluster.state.spec
    if spec is None or not spec.emulated:
        return 1.0
    try:
        return rate_of(weather(cluster, {}).settings.get("hours_per_minute"))
    except (ClusterError, UnreachableError):  # there is no emulator yet
        return cluster.state.clock.rate


@dataclass(frozen=True, slots=True)
class OnDemand:
    """What was seen of VMs with a `gpu` on demand in `zones`, in order; of which project, the
    emulator's where None.
    """

    gpu: str
    zones: tuple[str, ...]
    seen: tuple[Sighting, ...]
    project: str | None = None

    def waited(self, now: float, rate: float = 1.0) -> float:
        """The longest that one was waited for until `now`, from the first refusal to the VM that
        came or, where none came, as long as somebody asked. Seconds on a clock that the cloud's
        outpaces so many times (`rate`).
        """
        gap = _GAP / rate
        least = _LEAST / rate
        longest = 0.0
        since = None
        last = 0.0
        for each in (*self.seen, Sighting(now, "", given=False)):
            if since is not None:
                asked = each.at - last <= gap
                came = asked and each.given
                longest = max(longest, (each.at if asked else last) - since, 0.0 if came else least)
                since = since if asked and not came else None
            if not each.given and since is None:
                since = each.at
            last = each.at
        return longest

    def words(self, now: float, rate: float = 1.0) -> str:
        """What is said of it before the run begins: one sentence, or two."""
        if self.gpu == "cpu":
            vms = "VMs without a GPU"
        else:
            vms = f"{self.gpu.upper()}s"
        if len(self.zones) > _MOST_ZONES:
            more = f" and {len(self.zones) - _MOST_ZONES} more"
        else:
            more = ""
        what = f"{vms} on demand in {', '.join(self.zones[:_MOST_ZONES])}{more}"
        if not self.seen:
            look = f"%transient_measure {self.gpu} --zones {','.join(self.zones[:_MOST_ZONES])} "
            look += "--provisioning-model standard --budget 2"
            look += f" --project {self.project}" if self.project else ""
            unknown = f"Nothing is known of capacity for {what}: none was requested from this machine within a week"
            return f"{unknown}. To look: {look}"
        there = sum(each.given for each in self.seen)
        last = self.seen[-1]
        wait = self.waited(now, rate)
        said = f"{what}: {there} of {count(len(self.seen), 'request')} of the last week got one"
        if wait:
            said += f". One was waited for up to {render_duration(wait)}: they are taken that much earlier"
        if not last.given and now - last.at < _RECENT:
            said += f". The last request, {render_duration(now - last.at)} ago, got none"
        return said + "."


def on_demand(cluster: ClusterSpec, run: RunSpec, now: float) -> list[OnDemand]:
    """Of each GPU of which the run may have VMs on demand, where it may have them."""
    gpus = run.gpus or dict.fromkeys(group.accelerator for group in cluster.groups)
    return [_of(cluster, gpu, zones_for(cluster, run, gpu), now) for gpu in gpus]


def _of(cluster: ClusterSpec, gpu: str, zones: Sequence[str], now: float) -> OnDemand:
    found = (
        each
        for each in (*_met(known_states(), cluster.project, gpu), *_measured(cluster.project, gpu))
        if each.zone in zones and now - KNOWN_SECONDS < each.at <= now
    )
    return OnDemand(
        gpu, tuple(zones), tuple(sorted(found, key=lambda each: each.at)), cluster.project
    )


def _met(states: Iterable[ClusterState], project: str | None, gpu: str) -> Iterator[Sighting]:
    """What clusters met when they asked for workers on demand."""
    for state in states:
        if state.spec is None or state.spec.project != project:
            continue
        for vm in state.vms.values():
            if (
                vm.role != WORKER
                or vm.provisioning_model != ON_DEMAND
                or (vm.accelerator or "cpu") != gpu
            ):
                continue
            if vm.running_at:
                yield Sighting(vm.running_at, vm.zone, given=True)
            elif vm.state == "refused" and vm.cause == "stockout":
                yield Sighting(vm.ended_at, vm.zone, given=False)


def _measured(project: str | None, gpu: str) -> Iterator[Sighting]:
    for spec, seen in measurements():
        if (spec.project, spec.gpu, spec.provisioning_model) == (project, gpu, ON_DEMAND):
            yield from seen
