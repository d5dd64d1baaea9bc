"""What the runs of a study take before any has begun: the hours and dollars in its dry run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import StoreError, TransientError
from ...protocol.machines import parse_machines
from ...protocol.study import StudySpec
from ...spec import ClusterSpec, Source, WorkerGroup
from ..folders import known_runs
from .learning import alike, learn, store_for
from .revocations import foreseen

if TYPE_CHECKING:
    from ...planner.speeds.workloads import Workload


@dataclass(frozen=True)
class Expected:
    """What the runs of one configuration take: `hours` until all are trained, the range from `low` to
    `high` of simulated courses, and `dollars` of the whole cluster for that time, from `least` to `most`."""

    hours: float
    low: float
    high: float
    dollars: float
    least: float
    most: float


class Expectations:
    """By what runs of the same model were measured at on this machine, and lifetimes as published; the end of a run,
    and the start of the next one, take no time."""

    def __init__(self, spec: StudySpec, cell: str) -> None:
        self._spec = spec
        self._cell = cell
        self._workloads: dict[Source, Workload | None] = {}
        self.unread = ""
        """Why what was measured cannot be read, once it was needed; empty where it can."""

    def of(self, cluster: ClusterSpec, machines: str | None, workers: int, runs: int, at_once: int) -> Expected | None:
        """Of so many runs with so many workers, or on these `machines`; None where no run of the model tells it."""
        workload = self._workload(cluster)
        if workload is None or not at_once:
            return None
        from ...planner.choices import Choice
        from ...planner.plan import make_plan

        found = parse_machines(machines) if machines else {cluster.groups[0].accelerator: workers}
        groups = tuple(WorkerGroup(gpu, count, cluster.home_zone) for gpu, count in found.items())
        choice = Choice(
            groups, cluster.parameter_servers, provisioning=cluster.provisioning_model,
            machines=cluster.worker_machines, server_zone=cluster.parameter_server_zone,
        )  # fmt: skip
        steps = self._spec.run.train_steps * math.ceil(runs / at_once)
        lifetimes, lost, risk = foreseen("published" if choice.transient and not cluster.emulated else "none")
        try:
            plan = make_plan(choice, workload, steps, lifetimes, lost=lost, replaced=cluster.replace, risk=risk)
        except TransientError:  # as the price of such a VM there is not known, or it is revoked before it trains
            return None
        low, high = plan.interval()
        dollars, least, most = (hours * cluster.hourly for hours in (plan.hours, low, high))
        return Expected(plan.hours, low, high, dollars, least, most)

    def _workload(self, cluster: ClusterSpec) -> Workload | None:
        """The study's model as it was measured on VMs like the cluster's; None where it was not, or what plans need is
        not installed."""
        if cluster.source not in self._workloads:
            self._workloads[cluster.source] = None
            try:
                self._workloads[cluster.source] = _workload(self._spec, self._cell, cluster.source)
            except StoreError as error:
                self.unread = str(error)
        return self._workloads[cluster.source]


def _workload(spec: StudySpec, cell: str, source: Source) -> Workload | None:
    try:
        store = store_for(spec.run, cell.encode())
        for run in alike(known_runs(), store):
            learn(store, run)
        found = store.workload(spec.name, source, spec.run.wire)
        return replace(found, synchronous=spec.run.mode == "sync", backup_workers=spec.run.backup_workers)
    except StoreError:
        raise
    except (TransientError, ImportError):
        return None
