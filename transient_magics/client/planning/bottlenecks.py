"""Whether parameter servers or preparation would hold back a cluster that is not declared yet, as
far as runs tell.

A cluster is declared without a model. So the model is that of the newest run on this machine whose
speed is known where the cluster will be: on Compute Engine, or on the emulator.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import StoreError, TransientError
from ...spec import JOBS, ClusterSpec, WorkerGroup
from ..declaring import Preview
from ..folders import known_runs
from .workloads import is_synchronous, learn, source, store_of

_LOOKED_AT = 5


def foreseen(preview: Preview) -> Preview:
    """The same with what plans say of such a cluster."""
    return replace(preview, foreseen=bound_words(preview.spec))


def bound_words(spec: ClusterSpec) -> str:
    """`With the model of run-1: ...`, where they would hold it back from the first step; else
    nothing.

    Where what runs measured cannot be read: that error.
    """
    if spec.purpose == JOBS:
        return ""
    there = [run for run in known_runs() if source(run) == spec.source]
    for run in reversed(there[-_LOOKED_AT:]):
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
            said = " ".join(held_back(choice, workload))
        except StoreError as error:
            return str(error)
        except (TransientError, OSError):  # too young to tell, or its cell is gone
            continue
        if said:
            return f"With the model of {run.state.name}: {said}"
        return ""
    return ""
