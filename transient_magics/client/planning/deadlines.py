"""Runs with a deadline: its time, the checks before the run, and the observed capacity on demand.

Google publishes no on-demand capacity in advance: its capacity advice (`advice.capacity`, a
preview) covers Spot VMs, calendars are for reservations of weeks, and an immediate reservation
costs as much as the VMs. So the only source is earlier requests, and whether they got a VM.
"""

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
"""The maximum age of an observation, in seconds."""
_GAP = 7200.0
"""A wait ends without a further request for this time, in seconds."""
_LEAST = 600.0
"""The minimum length of a wait without a VM: the interval of measurements, in seconds."""
_RECENT = 3600.0
_MOST_ZONES = 3


def moment(finish_by: str | float | datetime, cluster: BaseCluster) -> float:
    """Return the time of a deadline, in seconds since 1970.

    Parameters
    ----------
    finish_by
        A time of day (the next one on this machine's clock), a duration on the cluster's clock
        such as `6h` or a number of hours, or a datetime.
    cluster
        The cluster.

    Raises
    ------
    DeclarationError
        The deadline is invalid, or has passed.
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
            seconds = 3600 * finish_by
        at = now + seconds / _rate(cluster)
    if not now < at < math.inf:
        raise DeclarationError(
            "The deadline has already passed",
            where=_OPTION,
            fix="Write a later one, such as 6h, or 18:00.",
        )
    return at


def refuse_untimely(cluster: BaseCluster, options: Mapping[str, Any]) -> None:
    """Check that a cluster can have a run with a deadline.

    Parameters
    ----------
    cluster
        The cluster.
    options
        Fields of RunSpec by name.

    Raises
    ------
    ClusterError
        The cluster cannot have such a run.
    DeclarationError
        It cannot with these options.
    """
    state = cluster.state
    spec = state.spec
    if spec is None:
        raise ClusterError(f"{cluster.name} is not declared yet", fix="Try again in a moment.")
    if others := [work.name for work in state.works.values() if not work.over]:
        what = (
            f"A run with a deadline needs {cluster.name} alone, but "
            f"{' and '.join(others)} would share it"
        )
        raise ClusterError(what, fix="Wait until they have ended, or declare another cluster.")
    for wrong, why in (
        (
            spec.provisioning_model == "standard",
            "has only on-demand workers, but a run with a deadline needs Spot and on-demand "
            "workers",
        ),
        (
            not spec.replace,
            "was declared with --no-replace, but a run with a deadline needs replacements",
        ),
        (
            spec.chief == "worker",
            "has its chief on a worker, whose revocation may lose checkpoints",
        ),
    ):
        if wrong:
            raise ClusterError(
                f"{cluster.name} {why}", where=_OPTION, fix="Declare another cluster."
            )
    for gpu in options.get("gpus") or [group.accelerator for group in spec.groups]:
        if accelerator(gpu).spot_only:
            what = f"{gpu.upper()}s are not sold on demand, which a deadline needs"
            raise DeclarationError(what, where=_OPTION, fix="Name other GPUs with --gpus.")
        if (zones := options.get("zones")) and not any(has_gpu(zone, gpu) for zone in zones):
            raise DeclarationError(
                f"{gpu.upper()}s are not available in {', '.join(zones)}",
                where="--zones",
                fix="Name another zone.",
            )
    left = state.seconds_left(time.time()) * state.clock.rate / _rate(cluster)
    if options["finish_by"] - time.time() > left:
        what = f"{cluster.name} reaches its limits in {render_duration(left)}, before the deadline"
        raise DeclarationError(
            what, where=_OPTION, fix="Declare a cluster with a larger --max-hours or --max-cost."
        )
    most = options.get("max_cost")
    if most is not None and spec.max_cost is not None:
        rest = spec.max_cost - total(state, time.time())
        if most > rest:
            what = (
                f"{render_money(most)} exceeds the rest of the limit of {cluster.name}, "
                f"{render_money(max(rest, 0.0))}"
            )
            raise DeclarationError(what, where="--max-cost", fix="Use a lower limit.")


def refuse_without_quota(cluster: BaseCluster, run: RunSpec) -> None:
    """Raise ClusterError if the quota does not allow all workers on demand, for each possible GPU.

    Emulated clusters are checked if their weather has quotas. An unknown quota is not refused here.
    """
    spec = cluster.state.spec
    assert spec
    if spec.emulated and not (cluster.state.vms and weather(cluster, {}).settings.get("quota")):
        return
    count = spec.worker_count
    for gpu in run.gpus or dict.fromkeys(group.accelerator for group in spec.groups):
        if accelerator(gpu).spot_only:
            continue
        priced = spec
        if gpu not in spec.prices:
            priced = widened(spec, run.gpus)
        groups = (WorkerGroup(gpu, count, next(iter(run.zones), priced.zones_for(gpu)[0])),)
        alone = replace(
            priced,
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
                    f"The deadline may need {count} on-demand {gpu.upper()} VMs, which are not "
                    f"available: {finding['text']}",
                    where=_OPTION,
                )


def on_demand_wait(cluster: BaseCluster, run: RunSpec) -> float:
    """Return the longest observed wait for a VM on demand that the run may use, in seconds."""
    assert cluster.state.spec
    now = time.time()
    rate = _rate(cluster)
    return max(found.waited(now, rate) for found in on_demand(cluster.state.spec, run, now))


def on_demand_words(cluster: BaseCluster, run: RunSpec) -> str:
    """Return sentences about on-demand capacity, for a run with a deadline that may use it."""
    spec = cluster.state.spec
    if spec is None or not run.finish_by or run.adapt == "off":
        return ""
    now = time.time()
    rate = _rate(cluster)
    return "\n".join(found.words(now, rate) for found in on_demand(spec, run, now))


def refuse_impossible(cluster: BaseCluster, run: RunSpec, source: str, made: int = 0) -> None:
    """Check that the cluster can meet a deadline, by the speed of earlier runs of this code.

    Do nothing if no run was measured.

    Parameters
    ----------
    cluster
        The cluster.
    run
        The declaration of the run.
    source
        Its code.
    made
        The number of steps that are already done.

    Raises
    ------
    DeclarationError
        No workers of the cluster are fast enough. The error has the nearest possible deadline.
    StoreError
        The measurements of earlier runs are unreadable.
    """
    spec = cluster.state.spec
    assert spec
    needed = _needed(spec, run, source, run.train_steps - made)
    left = run.finish_by - time.time()
    if needed is not None and needed > left:
        raise DeclarationError(
            f"{run.name} cannot end in time: with all workers of {cluster.name} on demand, it "
            f"needs up to {render_duration(needed)}, but only {render_duration(left)} are left",
            where=_OPTION,
            fix=f"Use {_OPTION} {math.ceil(needed * _rate(cluster) / 60)}m or later, or a cluster "
            "with more workers.",
        )


def _needed(spec: ClusterSpec, run: RunSpec, source: str, steps: int) -> float | None:
    """Return the seconds that `steps` take with the fastest allowed workers on demand.

    These are as many workers of one GPU as the run may have. None if no speed is known. `source` is
    the code of the run.
    """
    try:
        # These modules need NumPy, which may be missing: then the import raises PlanError.
        from ...planner.choices import Choice
        from ...planner.deadlines.cost import start_seconds, work_seconds

        store = store_for(run, source.encode())
        for other in alike(known_runs(), store):
            learn(store, other)
        workload = store.workload(run.name, spec.source, run.wire)
        most = spec.max_workers or spec.worker_count
        count = min(run.most_workers or most, most)
        gpus = run.gpus or dict.fromkeys(group.accelerator for group in spec.groups)
        # The zone of on-demand workers does not change their speed, so any zone will do.
        choices = [
            Choice(
                (WorkerGroup(gpu, count, spec.zones_for(gpu)[0]),),
                spec.parameter_servers,
                provisioning="standard",
            )
            for gpu in gpus
        ]
        seconds: list[float] = []
        for choice in choices:
            needed = work_seconds(choice, workload, steps)
            # Published start-up times do not apply to emulated VMs, which start within seconds.
            if not spec.emulated:
                needed += start_seconds(choice, workload, steps)
            seconds.append(needed)
        return min(seconds)
    except StoreError:
        # The user can mend an unreadable file of measurements, so this one is reported.
        raise
    except (TransientError, OSError):
        # No run of this code has trained long enough, the journal of one is unreadable, or NumPy is
        # not installed.
        return None


def _rate(cluster: BaseCluster) -> float:
    """Return the speed of the cluster's clock in seconds per second.

    The journal does not have it before the first VM, so the weather is read.
    """
    spec = cluster.state.spec
    if spec is None or not spec.emulated:
        return 1.0
    try:
        return rate_of(weather(cluster, {}).settings.get("hours_per_minute"))
    except (ClusterError, UnreachableError):  # the emulator is not running yet
        return cluster.state.clock.rate


@dataclass(frozen=True, slots=True)
class OnDemand:
    """Observations of the on-demand capacity of a GPU.

    Attributes
    ----------
    gpu : str
        The GPU, or `cpu`.
    zones : tuple of str
        The zones.
    seen : tuple of Sighting
        The observations in order of time.
    project : str or None
        The project; None for the emulator.
    """

    gpu: str
    zones: tuple[str, ...]
    seen: tuple[Sighting, ...]
    project: str | None = None

    def waited(self, now: float, rate: float = 1.0) -> float:
        """Return the longest wait for a VM until `now`, in seconds.

        A wait lasts from the first refusal to the next VM. Without one, it lasts to the last
        request, or until `now` if that request was recent, and counts as at least a minimum.

        Parameters
        ----------
        now
            The present time, in seconds since 1970.
        rate
            The emulated seconds per second of this machine; 1 for Compute Engine.
        """
        longest_pause = _GAP / rate
        shortest_wait = _LEAST / rate
        longest = 0.0
        since = None  # the first refusal of the present wait
        last = 0.0
        # A refusal is assumed now, so that the loop also ends the last wait.
        for sighting in (*self.seen, Sighting(now, "", given=False)):
            if since is not None:
                if sighting.at - last > longest_pause:  # the requests ended without a VM
                    longest = max(longest, last - since, shortest_wait)
                    since = None
                elif sighting.given:
                    longest = max(longest, sighting.at - since)
                    since = None
                else:
                    longest = max(longest, sighting.at - since, shortest_wait)
            if not sighting.given and since is None:
                since = sighting.at
            last = sighting.at
        return longest

    def words(self, now: float, rate: float = 1.0) -> str:
        """Return the observations in sentences; `now` and `rate` are those of `waited`."""
        vms = f"{self.gpu.upper()}s"
        if self.gpu == "cpu":
            vms = "VMs without a GPU"
        zones = self.zones[:_MOST_ZONES]
        what = f"{vms} on demand in {', '.join(zones)}"
        if len(self.zones) > _MOST_ZONES:
            what += f" and {len(self.zones) - _MOST_ZONES} more"
        if not self.seen:
            measure = f"%transient_measure {self.gpu} --zones {','.join(zones)} "
            measure += "--provisioning-model standard --budget 2"
            if self.project:
                measure += f" --project {self.project}"
            unknown = f"Unknown capacity for {what}: this machine requested none within a week"
            return f"{unknown}. To measure it: {measure}"
        given = sum(sighting.given for sighting in self.seen)
        last = self.seen[-1]
        wait = self.waited(now, rate)
        requests = count(len(self.seen), "request")
        words = f"{what}: {given} of {requests} of the last week succeeded."
        if wait:
            words += (
                f" The longest wait was {render_duration(wait)}: VMs are requested that much "
                "earlier."
            )
        if not last.given and now - last.at < _RECENT:
            words += f" The last request, {render_duration(now - last.at)} ago, failed."
        return words


def on_demand(cluster: ClusterSpec, run: RunSpec, now: float) -> list[OnDemand]:
    """Return the observed on-demand capacity, for each GPU and its zones that the run may use."""
    gpus = run.gpus or dict.fromkeys(group.accelerator for group in cluster.groups)
    return [_of(cluster, gpu, zones_for(cluster, run, gpu), now) for gpu in gpus]


def _of(cluster: ClusterSpec, gpu: str, zones: Sequence[str], now: float) -> OnDemand:
    sightings = [
        *_requested(known_states(), cluster.project, gpu),
        *_measured(cluster.project, gpu),
    ]
    found = [
        sighting
        for sighting in sightings
        if sighting.zone in zones and now - KNOWN_SECONDS < sighting.at <= now
    ]
    found.sort(key=lambda sighting: sighting.at)
    return OnDemand(gpu, tuple(zones), tuple(found), cluster.project)


def _requested(states: Iterable[ClusterState], project: str | None, gpu: str) -> Iterator[Sighting]:
    """Yield the results of requests of clusters for workers on demand."""
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
