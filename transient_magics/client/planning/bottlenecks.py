"""Prediction of bottlenecks of a cluster that is not declared yet, from earlier runs.

A cluster is declared without a model. So the model is that of the newest run on this machine whose
speed is known for the cluster's place: Compute Engine or the emulator.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import StoreError, TransientError
from ...spec import JOBS, ClusterSpec, WorkerGroup
from ..declaring import Preview
from ..folders import known_runs
from .workloads import is_synchronous, learn, source, store_of

_MOST_RUNS = 5


def foreseen(preview: Preview) -> Preview:
    """Add the predicted bottleneck to a preview."""
    return replace(preview, foreseen=bound_words(preview.spec))


def bound_words(spec: ClusterSpec) -> str:
    """Return a sentence, `With the model of run-1: ...`, about bottlenecks; empty without any.

    It is the error if the measurements of runs are unreadable.
    """
    if spec.purpose == JOBS:
        return ""
    there = [run for run in known_runs() if source(run) == spec.source]
    for run in reversed(there[-_MOST_RUNS:]):
        if is_synchronous(run) or not run.state.started_at:
            continue
        from ...planner.choices import Choice
        from ...planner.plan import held_back

        groups = tuple(
            WorkerGroup(group.accelerator, group.count, group.zone) for group in spec.groups
        )
        choice = Choice(
            groups,
            spec.parameter_servers,
            provisioning=spec.provisioning_model,
            machines=spec.worker_machines,
            server_zone=spec.parameter_server_zone,
            disk=f"{spec.disk_gb}GB:{spec.disk_type}" if spec.disk_gb else "",
        )
        try:
            store = store_of(run)
            learn(store, run)
            workload = store.workload(run.state.name, source(run), run.state.spec.wire)
            limits = " ".join(held_back(choice, workload))
        except StoreError as error:
            return str(error)
        except (TransientError, OSError):  # the run is too young, or its cell is deleted
            continue
        if limits:
            return f"With the model of {run.state.name}: {limits}"
        return ""
    return ""
