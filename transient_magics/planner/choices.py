"""A cluster that could be declared, and the course that a workload would take on it.

Zones, prices and what traffic costs come from the catalog; lifetimes and start-up times from
whoever asks.
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
    """Lifetimes of VMs that nobody revokes."""
    return None


@dataclass(frozen=True)
class Choice:
    """A declaration: groups of workers (each with its zone), parameter servers beside most of them,
    how all is rented.

    `servers` of 0: a single worker that keeps its variables to itself, as the papers' smallest
    cluster.
    """

    groups: tuple[WorkerGroup, ...]
    servers: int = 1
    server_cores: int = 4
    provisioning: str = "spot"
    machines: Mapping[str, str] = field(default_factory=dict[str, str])
    """By GPU: the machine of its workers, where it is not the catalog's."""
    server_zone: str = ""
    """Where the parameter servers are, if not beside most workers."""
    disk: str = ""
    """Of workers and parameter servers, as `--disk` says it; empty: the usual."""
    starts: Starts = published_starts
    """How long VMs take until they can be used."""

    @property
    def transient(self) -> bool:
        """Whether workers may be revoked."""
        return self.provisioning != "standard"

    @property
    def workers(self) -> int:
        """Of all groups together."""
        return sum(group.count for group in self.groups)

    @cached_property
    def placed(self) -> tuple[WorkerGroup, ...]:
        """The groups, each with a zone: its own, else the catalog's best for all that name none."""
        kinds = [group.accelerator for group in self.groups if not group.zone]
        if kinds:
            zone = default_zone(kinds)
        else:
            zone = ""
        return tuple(
            WorkerGroup(each.accelerator, each.count, each.zone or zone) for each in self.groups
        )

    @cached_property
    def home_zone(self) -> str:
        """Where the parameter servers are: where most workers are, unless they have a zone of their
        own.
        """
        if self.server_zone:
            return self.server_zone
        counts: dict[str, int] = {}
        for group in self.placed:
            counts[group.zone or ""] = counts.get(group.zone or "", 0) + group.count
        return max(counts, key=lambda zone: counts[zone])

    @property
    def line(self) -> str:
        """What declares it."""
        zones = {group.zone for group in self.groups}
        together = (
            len(self.groups) > 1 and len(zones) == 1 and None not in zones
        )  # then it is said once
        if together:
            groups = [WorkerGroup(each.accelerator, each.count) for each in self.groups]
        else:
            groups = self.groups
        words = ["%transient_cluster", render_groups(groups)]
        words += ["--zone", str(*zones)] if together else []
        words += ["--machine-type", ",".join(self._machines)] if self._machines else []
        words += ["--disk", self.disk] if self.disk else []
        words += ["--ps-zone", self.server_zone] if self.server_zone else []
        words += ["--ps", str(self.servers)] if self.servers > 1 else []
        words += ["--ps-cores", str(self.server_cores)] if self.server_cores != 4 else []
        words += ["--provisioning-model", self.provisioning] if self.provisioning != "spot" else []
        return " ".join(words)

    @property
    def _machines(self) -> list[str]:
        """As `--machine-type` says them."""
        named = [(gpu, self.machines[gpu]) for gpu in self._gpus if gpu in self.machines]
        if len(self._gpus) == 1:
            return [name for _, name in named]
        return [f"{gpu}={name}" for gpu, name in named]

    @property
    def _gpus(self) -> list[str]:
        return list(dict.fromkeys(group.accelerator for group in self.groups))

    def prices(self, workload: Workload) -> PriceList:
        """The workload's own prices where they know all these GPUs, else those of a cluster that is
        declared.
        """
        own = workload.prices
        kinds = self._gpus
        if own.servers and all(kind in own.servers for kind in kinds):
            found = own
        else:
            found = price_list(kinds)
        if self.disk:
            gb, kind = parse_disk(self.disk)
        else:
            gb = 0
            kind = DISK_TYPE
        return replace(found, machines=self.machines, disk_gb=gb, disk_type=kind)

    def kind(self, group: WorkerGroup) -> str:
        """The kind of the group's workers: their GPU, and their machine if it is not the catalog's."""
        return kind_of(group.accelerator, self.machines.get(group.accelerator, ""))

    def worker_price(self, workload: Workload, group: WorkerGroup) -> VmPrice:
        """Dollars per hour of one of the group's VMs. Raises DeclarationError where no price is
        known.
        """
        return self.prices(workload).worker_price(group.accelerator, group.zone or "")

    def step(self, workload: Workload, group: WorkerGroup) -> Estimate:
        """The seconds of a step of one of the group's workers, the way to its servers included.
        Raises PlanError.
        """
        known = self._computing(workload, group)
        return replace(known, seconds=known.seconds + self.added_seconds(workload, group))

    def _computing(self, workload: Workload, group: WorkerGroup) -> Estimate:
        """The same beside its servers."""
        return workload.step(group.accelerator, self.machines.get(group.accelerator, ""), self.disk)

    def round_trip(self, group: WorkerGroup) -> float:
        """The estimated seconds to the parameter servers and back; 0 within one region."""
        here = region(group.zone or "")
        there = region(self.home_zone)
        if self.servers and here != there:
            return round_trip(apart(here, there))
        return 0.0

    def added_seconds(self, workload: Workload, group: WorkerGroup) -> float:
        """The seconds that a step takes longer for the distance to its servers; 0 within one
        region.
        """
        away = self.round_trip(group)
        if away:
            return added_seconds(away, workload.bytes_per_step, self.servers)
        return 0.0

    def far(self) -> list[WorkerGroup]:
        """The groups in another region than their parameter servers: how long their steps take is
        an estimate.
        """
        return [group for group in self.placed if self.round_trip(group)]

    def start(self, workload: Workload, gpu: str, transient: bool, place: str) -> Start:
        """The start-up of a VM; that of a published workload is as published as its speeds."""
        return (published_starts if workload.from_first_step else self.starts)(
            gpu, transient, place
        )

    def transfer_dollars(self, workload: Workload, group: WorkerGroup) -> float:
        """What the data of one step of one of the group's workers costs."""
        if self.servers:
            price = transfer_price(group.zone or "", self.home_zone).dollars_per_gib
        else:
            price = 0.0
        return workload.bytes_per_step / _GIB * price

    def steps_per_second(self, workload: Workload) -> float:
        """The speed of the undisturbed cluster."""
        speeds, counts = self._speeds(workload)
        if workload.synchronous:
            return float(
                synchronous_speed(speeds, counts, workload.backup_workers, self._limit(workload))
            )
        return float(cluster_speed(speeds @ counts, self._limit(workload)))

    def shares(self, workload: Workload) -> list[float]:
        """The share of all steps that each group makes."""
        speeds, counts = self._speeds(workload)
        if workload.synchronous:
            made = counts
        else:
            made = speeds * counts
        return (made / made.sum()).tolist()

    def speed_error(self, workload: Workload) -> float:
        """How far off, relatively, the speed may be by what measured runs leave open of the
        workload's parameters.
        """
        if workload.draws is None:
            return 0.0
        drawn = workload.draws
        offered = np.zeros(len(workload.draws.service))
        for group in self.placed:
            step = self._computing(workload, group)
            seconds = step.seconds * drawn.factors.get(step.kind, np.ones(1)) + self.added_seconds(
                workload, group
            )
            offered += group.count * worker_speed(seconds, drawn.service, self.servers)
        limit = capacities(drawn.service, self.servers, drawn.scaling)
        return float(np.log(cluster_speed(offered, limit)).std())

    def speed_of(self, workload: Workload) -> Callable[[Mapping[str, int]], float]:
        """The undisturbed speed of any number of workers with GPUs of this choice, by GPU."""
        speeds, _ = self._speeds(workload)
        each = dict(
            zip((group.accelerator for group in self.placed), map(float, speeds), strict=True)
        )
        limit = self._limit(workload)
        return lambda workers: float(
            cluster_speed(sum(each[gpu] * count for gpu, count in workers.items()), limit)
        )

    def load(self, workload: Workload) -> float:
        """The steps per second of workers that nothing holds back, over those that the parameter
        servers take.
        """
        if self.servers:
            return self.offered(workload) / self._limit(workload)
        return 0.0

    def offered(self, workload: Workload) -> float:
        """The steps per second of workers that nothing holds back."""
        speeds, counts = self._speeds(workload)
        return float(speeds @ counts)

    def _speeds(self, workload: Workload) -> tuple[NDArray[np.float64], NDArray[np.int_]]:
        """Steps per second of one worker of each group, and how many there are."""
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
        """The run of so many steps; with `on_demand` the same cluster without transient servers."""
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
