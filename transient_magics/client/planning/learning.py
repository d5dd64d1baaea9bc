"""What runs of this machine tell of their model: how fast its workers are, how it learns; kept for
plans to come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...journal import kept, metrics
from ...protocol import layout
from ...protocol.literals import value_text
from ...protocol.run import RunSpec
from ...spec import Source
from ..folders import KnownRun

if TYPE_CHECKING:
    from ...planner.model_store import ModelStore
    from ...planner.run_records import Record


_BATCHES = ("batch", "batch_size")
"""What a parameter is called that sets the mini-batch, which is measured."""


def store_of(run: KnownRun) -> ModelStore:
    """Where what is learnt of the run's model is kept; of a cell's own model, by the cell's text."""
    if run.state.spec.model:
        cell = b""
    else:
        cell = (run.directory / layout.CELL).read_bytes()
    return store_for(run.state.spec, cell)


def store_for(spec: RunSpec, cell: bytes) -> ModelStore:
    """The same, of a run that may not be declared yet."""
    from ...planner.model_store import ModelStore

    return ModelStore.of(spec, cell)


def alike(runs: Iterable[KnownRun], store: ModelStore) -> list[KnownRun]:
    """Those of `runs` that tell of the model of a store: how fast it is, or how accurate it
    becomes.
    """
    return [run for run in runs if bool(run.state.spec.model) != store.own and _is_of(run, store)]


def _is_of(run: KnownRun, store: ModelStore) -> bool:
    try:
        return store_of(run).key == store.key
    except OSError:  # its cell is gone
        return False


def source(run: KnownRun) -> Source:
    """Return where the run's VMs are: what its seconds hold for."""
    spec = kept(run.cluster / layout.JOURNAL).read().spec
    return spec.source if spec else "emulated"


def is_synchronous(run: KnownRun) -> bool:
    """Whether its steps are taken together: then their number per second does not grow with the
    workers.
    """
    return run.state.spec.mode == "sync"


def learn(store: ModelStore, run: KnownRun) -> None:
    """Keep what the run tells, unless it is known to its end; of one that measures stalls, what
    these are.
    """
    if run.state.spec.stalls:
        _learn_stalls(store, run)
        return
    known = store.record(run.identity)
    if known is None or not known.over:
        found = record(run, whole=True)
        if (
            run.state.spec.per_vm > 1
        ):  # it had a part of its VM, and the more the fewer trained there
            found = replace(found, observations=(), waits={})
        if not _is_home(run):  # then it is looked at again
            found = replace(found, over=False)
        if found.observations or found.evaluations:
            store.learn(run.identity, found)


def _is_home(run: KnownRun) -> bool:
    """Whether its metrics are here to their end, where they come from the VM of a controller."""
    return (run.directory / layout.HOME).exists() or not kept(
        run.cluster / layout.JOURNAL
    ).read().seat


def _learn_stalls(store: ModelStore, run: KnownRun) -> None:
    from ..results.stalls import terms

    found = terms(kept(run.cluster / layout.JOURNAL).read(), run.state, _counted(run))
    if found and found != store.stalls(source(run)).get(run.identity):
        store.keep_stalls(run.identity, found)


def _counted(run: KnownRun) -> Mapping[str, Any] | None:
    """What was counted of the run's model, once it is."""
    try:
        return json.loads((run.directory / layout.MODEL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record(run: KnownRun, *, whole: bool = False) -> Record:
    """What the run was measured at, until now; `whole`: without what deflated VMs were."""
    from ...planner import run_records

    rows = metrics.sample(run.directory / layout.METRICS)
    told = run_records.record(run.events(), rows, run.state.name, _counted(run), whole=whole)
    return replace(told, mode=run.state.spec.mode, settings=settings(run))


def settings(run: KnownRun) -> str:
    """What else than model, workers and batch makes the run another experiment: hparams and params,
    as text.
    """
    said = [
        *run.state.spec.hparams.split(","),
        *(f"{name}={value_text(value)}" for name, value in run.state.spec.params.items()),
    ]
    return ",".join(
        sorted(each for each in said if each and each.partition("=")[0] not in _BATCHES)
    )
