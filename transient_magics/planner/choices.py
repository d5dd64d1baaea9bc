"""Clusters that could be declared, and the course of a workload on them.

Zones, prices and traffic costs come from the catalog; lifetimes and start-up times from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..catalog import (
    DISK_TYPE,
    PriceList,
    VmPrice,
    default_zone,
    parse_disk,
    price_list,
    region,
    transfer_price,
)
from ..catalog.published import LAST_HOUR, WAVES
from ..catalog.regions import apart
from ..spec import WorkerGroup, render_groups
from .lifetimes.kaplan_meier import Capped
from .lifetimes.parametric import LifetimeModel
from .run_records import Start, Starts, published_starts
from .simulate import Course, Workers
from .speeds.throughput import (
    ADDED_ERROR,
    added_seconds,
    capacities,
    capacity,
    cluster_speed,
    kind_of,
    round_trip,
    synchronous_speed,
    worker_speed,
)
from .speeds.workloads import Estimate, Workload

Lifetimes = Callable[[str, str], LifetimeModel | None]
"""The lifetimes of VMs with a GPU in a region; None: they are never revoked."""

_GIB = 2**30


def immortal(gpu: str, place: str) -> LifetimeModel | None:
    """Return the lifetimes of VMs that are never revoked."""
    return None


@dataclass(frozen=True)
class Choice:
    """A declaration: groups of workers with their zones, parameter servers, provisioning.

    With 0 `servers` a single worker keeps its variables itself, as in the papers' smallest cluster.
    """

    groups: tuple[WorkerGroup, ...]
    servers: int = 1
    server_cores: int = 4
    provisioning: str = "spot"
    machines: Mapping[str, str] = field(default_factory=dict[str, str])
    """Machine types of workers by GPU, if they are not the catalog's."""
    server_zone: str = ""
    """The parameter servers' zone, if not that of most workers."""
    disk: str = ""
    """The disk of workers and parameter servers (`--disk`); '' for the usual one."""
    starts: Starts = published_starts
    """Start-up times of VMs."""

    @property
    def transient(self) -> bool:
        """Whether workers may be revoked."""
        return self.provisioning != "standard"

    @property
    def workers(self) -> int:
        """The number of workers of all groups."""
        return sum(group.count for group in self.groups)

    @cached_property
    def placed(self) -> tuple[WorkerGroup, ...]:
        """The groups with zones: their own, else the catalog's best for all that name none."""
        kinds = [group.accelerator for group in self.groups if not group.zone]
        zone = default_zone(kinds) if kinds else ""
        return tuple(
            WorkerGroup(group.accelerator, group.count, group.zone or zone) for group in self.groups
        )

    @cached_property
    def home_zone(self) -> str:
        """The parameter servers' zone: a declared one, else that of most workers."""
        if self.server_zone:
            return self.server_zone
        counts: dict[str, int] = {}
        for group in self.placed:
            counts[group.zone or ""] = counts.get(group.zone or "", 0) + group.count
        return max(counts, key=lambda zone: counts[zone])

    @property
    def line(self) -> str:
        """The line that declares the cluster."""
        zones = {group.zone for group in self.groups}
        # A common zone is an option of its own.
        together = len(self.groups) > 1 and len(zones) == 1 and None not in zones
        groups = self.groups
        if together:
            groups = tuple(WorkerGroup(group.accelerator, group.count) for group in self.groups)
        words = ["%transient_cluster", render_groups(groups)]
        if together:
            words += ["--zone", str(*zones)]
        if self._machines:
            words += ["--machine-type", ",".join(self._machines)]
        if self.disk:
            words += ["--disk", self.disk]
        if self.server_zone:
            words += ["--ps-zone", self.server_zone]
        if self.servers > 1:
            words += ["--ps", str(self.servers)]
        if self.server_cores != 4:
            words += ["--ps-cores", str(self.server_cores)]
        if self.provisioning != "spot":
            words += ["--provisioning-model", self.provisioning]
        return " ".join(words)

    @property
    def _machines(self) -> list[str]:
        """The machines as `--machine-type` takes them."""
        named = [(gpu, self.machines[gpu]) for gpu in self._gpus if gpu in self.machines]
        if len(self._gpus) == 1:
            return [name for _, name in named]
        return [f"{gpu}={name}" for gpu, name in named]

    @property
    def _gpus(self) -> list[str]:
        return list(dict.fromkeys(group.accelerator for group in self.groups))

    def prices(self, workload: Workload) -> PriceList:
        """Return the workload's own prices if they cover all these GPUs, else list prices."""
        own = workload.prices
        kinds = self._gpus
        found = own
        if not own.servers or not all(kind in own.servers for kind in kinds):
            found = price_list(kinds)
        gb = 0
        kind = DISK_TYPE
        if self.disk:
            gb, kind = parse_disk(self.disk)
        return replace(found, machines=self.machines, disk_gb=gb, disk_type=kind)

    def kind(self, group: WorkerGroup) -> str:
        """Return the kind of the group's workers: GPU, and machine if it is not the catalog's."""
        return kind_of(group.accelerator, self.machines.get(group.accelerator, ""))

    def worker_price(self, workload: Workload, group: WorkerGroup) -> VmPrice:
        """Return dollars per hour of one of the group's VMs.

        Raises DeclarationError if there is no price.
        """
        return self.prices(workload).worker_price(group.accelerator, group.zone or "")

    def step(self, workload: Workload, group: WorkerGroup) -> Estimate:
        """Return the seconds of a step of one of the group's workers, distance included.

        Raises PlanError.
        """
        estimate = self._computing(workload, group)
        seconds = estimate.seconds + self.added_seconds(workload, group)
        return replace(estimate, seconds=seconds)

    def _computing(self, workload: Workload, group: WorkerGroup) -> Estimate:
        """Return the seconds of a step beside its servers."""
        return workload.step(group.accelerator, self.machines.get(group.accelerator, ""), self.disk)

    def round_trip(self, group: WorkerGroup) -> float:
        """Return the estimated seconds to the parameter servers and back; 0 within a region."""
        here = region(group.zone or "")
        there = region(self.home_zone)
        if self.servers and here != there:
            return round_trip(apart(here, there))
        return 0.0

    def added_seconds(self, workload: Workload, group: WorkerGroup) -> float:
        """Return the seconds that the distance to its servers adds to a step; 0 within a region."""
        away = self.round_trip(group)
        if away:
            return added_seconds(away, workload.bytes_per_step, self.servers)
        return 0.0

    def far(self) -> list[WorkerGroup]:
        """Return the groups in another region than their servers: their speed is an estimate."""
        return [group for group in self.placed if self.round_trip(group)]

    def start(self, workload: Workload, gpu: str, transient: bool, place: str) -> Start:
        """Return the start-up of a VM; for a published workload the published one."""
        starts = published_starts if workload.from_first_step else self.starts
        return starts(gpu, transient, place)

    def transfer_dollars(self, workload: Workload, group: WorkerGroup) -> float:
        """Return the dollars for the data of one step of one of the group's workers."""
        price = 0.0
        if self.servers:
            price = transfer_price(group.zone or "", self.home_zone).dollars_per_gib
        return workload.bytes_per_step / _GIB * price

    def steps_per_second(self, workload: Workload) -> float:
        """Return the speed of the undisturbed cluster, in steps per second."""
        speeds, counts = self._speeds(workload)
        if workload.synchronous:
            return float(
                synchronous_speed(speeds, counts, workload.backup_workers, self._limit(workload))
            )
        return float(cluster_speed(speeds @ counts, self._limit(workload)))

    def shares(self, workload: Workload) -> list[float]:
        """Return each group's share of all steps."""
        speeds, counts = self._speeds(workload)
        made = counts if workload.synchronous else speeds * counts
        return (made / made.sum()).tolist()

    def speed_error(self, workload: Workload) -> float:
        """Return the relative error of the speed that the measured parameters leave."""
        if workload.draws is None:
            return 0.0
        drawn = workload.draws
        offered = np.zeros(len(workload.draws.service))
        for group in self.placed:
            step = self._computing(workload, group)
            factor = drawn.factors.get(step.kind, np.ones(1))
            seconds = step.seconds * factor + self.added_seconds(workload, group)
            offered += group.count * worker_speed(seconds, drawn.service, self.servers)
        limit = capacities(drawn.service, self.servers, drawn.scaling)
        return float(np.log(cluster_speed(offered, limit)).std())

    def speed_of(self, workload: Workload) -> Callable[[Mapping[str, int]], float]:
        """Return a function from workers by GPU to the undisturbed speed."""
        speeds, _ = self._speeds(workload)
        kinds = (group.accelerator for group in self.placed)
        by_gpu = dict(zip(kinds, map(float, speeds), strict=True))
        limit = self._limit(workload)

        def speed(workers: Mapping[str, int]) -> float:
            offered = sum(by_gpu[gpu] * count for gpu, count in workers.items())
            return float(cluster_speed(offered, limit))

        return speed

    def load(self, workload: Workload) -> float:
        """Return the steps per second of unhindered workers, relative to the servers' capacity."""
        if self.servers:
            return self.offered(workload) / self._limit(workload)
        return 0.0

    def offered(self, workload: Workload) -> float:
        """Return the steps per second of unhindered workers."""
        speeds, counts = self._speeds(workload)
        return float(speeds @ counts)

    def _speeds(self, workload: Workload) -> tuple[NDArray[np.float64], NDArray[np.int_]]:
        """Return steps per second of one worker of each group, and their numbers."""
        seconds = [self.step(workload, group).seconds for group in self.placed]
        counts = np.array([group.count for group in self.placed])
        return worker_speed(seconds, workload.service_seconds, self.servers), counts

    def _limit(self, workload: Workload) -> float:
        return capacity(workload.service_seconds, self.servers, workload.scaling)

    def _lifetimes(self, model: LifetimeModel | None) -> LifetimeModel | None:
        if model is not None and self.provisioning == "preemptible":
            return Capped(model, LAST_HOUR)
        return model

    def course(
        self,
        workload: Workload,
        steps: float,
        lifetimes: Lifetimes = immortal,
        *,
        replace: bool = True,
        on_demand: bool = False,
    ) -> Course:
        """Return the run of `steps` steps; with `on_demand` without transient servers."""
        transient = self.transient and not on_demand
        groups = []
        for group in self.placed:
            price = self.worker_price(workload, group)
            estimate = self._computing(workload, group)
            place = region(group.zone or "")
            added = self.added_seconds(workload, group)
            groups.append(
                Workers(
                    accelerator=group.accelerator,
                    count=group.count,
                    compute_seconds=estimate.seconds,
                    error=estimate.error,
                    kind=estimate.kind,
                    added_seconds=added,
                    added_error=ADDED_ERROR if added else 0.0,
                    hourly=price.transient if transient else price.on_demand,
                    on_demand_hourly=price.on_demand,
                    price_error=price.drift if transient else 0.0,
                    lifetimes=self._lifetimes(lifetimes(group.accelerator, place))
                    if transient
                    else None,
                    startup=self.start(workload, group.accelerator, transient, place).startup,
                    join_seconds=workload.join_seconds,
                    transfer_dollars=self.transfer_dollars(workload, group),
                )
            )
        home = self.home_zone
        return Course(
            groups=tuple(groups),
            steps=steps,
            servers=self.servers,
            server_hourly=self.prices(workload).parameter_server(self.server_cores, home)
            if self.servers
            else 0.0,
            server_startup=self.start(workload, "cpu", False, region(home)).startup,
            service_seconds=workload.service_seconds,
            scaling=workload.scaling,
            replace=replace,
            work_error=math.hypot(workload.steps_error, workload.speed_error),
            limit_error=0.0
            if workload.draws
            else math.hypot(
                workload.limit_error, workload.scaling_error * math.log2(max(self.servers, 1))
            ),
            draws=workload.draws,
            from_first_step=workload.from_first_step,
            synchronous=workload.synchronous,
            backup_workers=workload.backup_workers,
            waves=WAVES,
        )
