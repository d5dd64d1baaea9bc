"""Hours and dollars of the runs of a study before any has begun, for its dry run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...client.folders import known_runs
from ...client.planning.revocations import foreseen
from ...client.planning.workloads import alike, learn, store_for
from ...errors import PlanError, StoreError, TransientError
from ...protocol.machines import parse_machines
from ...spec import ClusterSpec, Source, WorkerGroup
from .spec import StudySpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ...planner.simulate import Course
    from ...planner.speeds.workloads import Workload


@dataclass(frozen=True)
class Expected:
    """The expected time and cost of the runs of one configuration.

    `hours` is the time until all are trained, `low` to `high` its range over simulated courses.
    `dollars` is the cost of the whole cluster for that time, `least` to `most` its range.
    """

    hours: float
    low: float
    high: float
    dollars: float
    least: float
    most: float


class Expectations:
    """Expectations from earlier runs of the same model on this machine, and published lifetimes.

    The end of a run and the start of the next one take no time.
    """

    def __init__(self, spec: StudySpec, cell: str) -> None:
        self._spec = spec
        self._cell = cell
        self._workloads: dict[Source, Workload | None] = {}
        self.unread = ""
        """Why stored measurements cannot be read; empty if they can, or were not needed."""

    def of(
        self, cluster: ClusterSpec, machines: str | None, workers: int, runs: int, at_once: int
    ) -> Expected | None:
        """Return the expectation for runs with these workers, or on these `machines`.

        Return None if no run of the model was measured.
        """
        workload = self._workload(cluster)
        if workload is None or not at_once:
            return None
        from ...planner.choices import Choice
        from ...planner.ranges import middle

        if machines:
            found = parse_machines(machines)
        else:
            found = {cluster.groups[0].accelerator: workers}
        groups = tuple(WorkerGroup(gpu, count, cluster.home_zone) for gpu, count in found.items())
        choice = Choice(
            groups,
            cluster.parameter_servers,
            provisioning=cluster.provisioning_model,
            machines=cluster.worker_machines,
            server_zone=cluster.parameter_server_zone,
        )
        lifetimes, *_ = foreseen(
            "published" if choice.transient and not cluster.emulated else "none"
        )
        try:
            course = choice.course(
                workload, self._spec.run.train_steps, lifetimes, replace=cluster.replace
            )
            simulated = hours_until_trained(course, runs, at_once)
        # For example, the price of such a VM is unknown, or it is revoked before it trains.
        except TransientError:
            return None
        hours, (low, high) = float(simulated.mean()), middle(simulated)
        dollars, least, most = (duration * cluster.hourly for duration in (hours, low, high))
        return Expected(hours, low, high, dollars, least, most)

    def _workload(self, cluster: ClusterSpec) -> Workload | None:
        """Return the study's model as measured on VMs like the cluster's.

        Return None if it was not measured, or if the packages for plans are not installed.
        """
        if cluster.source not in self._workloads:
            self._workloads[cluster.source] = None
            try:
                self._workloads[cluster.source] = _workload(self._spec, self._cell, cluster.source)
            except StoreError as error:
                self.unread = str(error)
        return self._workloads[cluster.source]


def hours_until_trained(
    course: Course, runs: int, at_once: int, seed: int = 0
) -> NDArray[np.float64]:
    """Simulate the hours until all runs of a study are trained, one entry per simulated study.

    The workers of a place train one run after the other. The speed of each run deviates at random.
    Over the runs of a place these deviations average out, except the part of its VMs, which stay.
    The size of that part was not measured: the speeds of VMs are assumed to vary as much as those
    of runs. The uncertainty of the model's speed is the same for all places.

    Parameters
    ----------
    course
        One run, with the uncertainty of its speed.
    runs, at_once
        At least one each.

    Raises
    ------
    PlanError
        If no simulated course of a place finishes, because its workers are revoked.
    """
    import numpy as np

    from ...planner.plan import RUNS
    from ...planner.simulate import simulate

    runs_per_place = math.ceil(runs / at_once)
    # Only the places with this many runs matter: the others have one run less and end earlier.
    busiest_places = runs - at_once * (runs_per_place - 1)
    # With equal variances v of a VM and of a run, n VMs add v/n, a part 1 / (1 + n) of the sum.
    vm_part = 1 / (1 + sum(group.count for group in course.groups))
    error_factor = math.sqrt(vm_part + (1 - vm_part) / runs_per_place)
    place = replace(
        course,
        steps=runs_per_place * course.steps,
        work_error=error_factor * course.work_error,
    )
    # The uncertainty of the model's speed is applied once below, because all places share it.
    outcome = simulate(_exact(place), RUNS, seed)
    if not outcome.finished:
        raise PlanError(
            "The runs of this study do not finish in any simulation: their workers are revoked "
            "before they train",
            fix="Use other VMs, or --provisioning-model standard.",
        )
    random = np.random.default_rng(seed)
    # Each busiest place of each simulated study gets one of the simulated courses.
    courses = random.choice(outcome.until_done().hours, (busiest_places, RUNS))
    slowest = courses.max(axis=0)
    undisturbed = replace(
        place,
        groups=tuple(replace(group, lifetimes=None) for group in place.groups),
        work_error=0.0,
        from_first_step=True,
    )
    # The random factor of the model's speed, one per simulated study.
    slower = simulate(undisturbed, RUNS, seed).hours / simulate(_exact(undisturbed), 1).hours
    return slowest * slower


def _exact(course: Course) -> Course:
    """Return the course without the uncertainty of its model's speed."""
    groups = tuple(replace(group, error=0.0, added_error=0.0) for group in course.groups)
    return replace(course, groups=groups, draws=None, limit_error=0.0)


def _workload(spec: StudySpec, cell: str, source: Source) -> Workload | None:
    try:
        store = store_for(spec.run, cell.encode())
        for run in alike(known_runs(), store):
            learn(store, run)
        found = store.workload(spec.name, source, spec.run.wire)
        return replace(
            found, synchronous=spec.run.mode == "sync", backup_workers=spec.run.backup_workers
        )
    except StoreError:
        raise
    except (TransientError, ImportError):
        return None
