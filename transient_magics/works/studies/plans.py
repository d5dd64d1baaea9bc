"""What the runs of a study take before any has begun: the hours and dollars in its dry run."""

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
    """What the runs of one configuration take: `hours` until all are trained, the range from `low`
    to `high` of simulated courses, and `dollars` of the whole cluster for that time, from `least`
    to `most`.
    """

    hours: float
    low: float
    high: float
    dollars: float
    least: float
    most: float


class Expectations:
    """By what runs of the same model were measured at on this machine, and lifetimes as published;
    the end of a run, and the start of the next one, take no time.
    """

    def __init__(self, spec: StudySpec, cell: str) -> None:
        self._spec = spec
        self._cell = cell
        self._workloads: dict[Source, Workload | None] = {}
        self.unread = ""
        """Why what was measured cannot be read, once it was needed; empty where it can."""

    def of(
        self, cluster: ClusterSpec, machines: str | None, workers: int, runs: int, at_once: int
    ) -> Expected | None:
        """Of so many runs with so many workers, or on these `machines`; None where no run of the
        model tells it.
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
        except (
            TransientError
        ):  # as the price of such a VM there is not known, or it is revoked before it trains
            return None
        hours, (low, high) = float(simulated.mean()), middle(simulated)
        dollars, least, most = (each * cluster.hourly for each in (hours, low, high))
        return Expected(hours, low, high, dollars, least, most)

    def _workload(self, cluster: ClusterSpec) -> Workload | None:
        """The study's model as it was measured on VMs like the cluster's; None where it was not, or
        what plans need is not installed.
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

    The workers of a place train one run after the other. Runs differ from the usual one, so the
    mean over the runs of a place differs less; by their VMs they differ alike, since these stay.
    How much of it that is was not measured: a VM is taken to differ as far from others as a run
    does. What is not known of the model's speed is the same for all.

    Parameters
    ----------
    course
        One run, with what is not known of its speed.
    runs, at_once
        At least one each.

    Raises
    ------
    PlanError
        Where the workers are revoked before they train.
    """
    import numpy as np

    from ...planner.plan import RUNS
    from ...planner.simulate import simulate

    each = math.ceil(runs / at_once)
    last = runs - at_once * (each - 1)  # places that train so many
    of_vms = 1 / (1 + sum(group.count for group in course.groups))
    shared = math.sqrt(of_vms + (1 - of_vms) / each)
    place = replace(course, steps=each * course.steps, work_error=shared * course.work_error)
    outcome = simulate(_exact(place), RUNS, seed)
    if not outcome.finished:
        raise PlanError(
            "No run of this study comes to its end: its workers are revoked before they train",
            fix="Take other VMs, or --provisioning-model standard.",
        )
    random = np.random.default_rng(seed)
    slowest = random.choice(outcome.until_done().hours, (last, RUNS)).max(axis=0)
    undisturbed = replace(
        place,
        groups=tuple(replace(group, lifetimes=None) for group in place.groups),
        work_error=0.0,
        from_first_step=True,
    )
    return (
        slowest * simulate(undisturbed, RUNS, seed).hours / simulate(_exact(undisturbed), 1).hours
    )


def _exact(course: Course) -> Course:
    """The same course as if all was known of its model's speed."""
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
