"""Records of a model: measured by its runs on this machine, or counted from its graph."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError, reason_of
from ...journal import RunState, kept, metrics
from ...kinds import load
from ...protocol import layout
from ...protocol.literals import value_text
from ...protocol.run import RunSpec
from ...spec import Source
from .. import cell
from ..commands import run_model_program
from ..declaring.claims import write_record
from ..declaring.payload import Payload, included
from ..declaring.runs import specified
from ..folders import KnownRun

if TYPE_CHECKING:
    from ...planner.model_store import ModelStore
    from ...planner.run_records import Record


_BATCHES = ("batch", "batch_size")
"""Names of parameters that set the mini-batch, which is measured."""

_SECONDS = 300.0
_OTHERWISE = "or train it for a minute on a cluster, then plan with that run."


def store_of(run: KnownRun) -> ModelStore:
    """Return the store of the model of a run; the text of a cell identifies its model."""
    if run.state.spec.model:
        cell = b""
    else:
        cell = (run.directory / layout.CELL).read_bytes()
    return store_for(run.state.spec, cell)


def store_for(spec: RunSpec, cell: bytes) -> ModelStore:
    """Return the store of the model of a run that may not be declared yet."""
    from ...planner.model_store import ModelStore

    return ModelStore.of(spec, cell)


def alike(runs: Iterable[KnownRun], store: ModelStore) -> list[KnownRun]:
    """Return the runs of the model of a store."""
    return [run for run in runs if bool(run.state.spec.model) != store.own and _is_of(run, store)]


def _is_of(run: KnownRun, store: ModelStore) -> bool:
    try:
        return store_of(run).key == store.key
    except OSError:  # its cell is deleted
        return False


def source(run: KnownRun) -> Source:
    """Return the place of the run's VMs, for which its speed holds."""
    spec = kept(run.cluster / layout.JOURNAL).read().spec
    if spec is None:
        return "emulated"
    return spec.source


def is_synchronous(run: KnownRun) -> bool:
    """Return whether the steps of a run are synchronous: their rate does not grow with workers."""
    return run.state.spec.mode == "sync"


def learn(store: ModelStore, run: KnownRun) -> None:
    """Store the measurements of a run, unless the store has them to its end.

    For a measurement of stalls, store the stalls.
    """
    if run.state.spec.stalls:
        _learn_stalls(store, run)
        return
    stored = store.record(run.identity)
    if stored is None or not stored.over:
        found = record(run, whole=True)
        if run.state.spec.per_vm > 1:
            # It shared its VM with a varying number of runs, so its speed says little.
            found = replace(found, observations=(), waits={})
        if not _is_home(run):  # incomplete, so it will be read again
            found = replace(found, over=False)
        if found.observations or found.evaluations:
            store.learn(run.identity, found)


def _is_home(run: KnownRun) -> bool:
    """Return whether all metrics are on this machine, if they come from a controller's VM."""
    return (run.directory / layout.HOME).exists() or not kept(
        run.cluster / layout.JOURNAL
    ).read().seat


def _learn_stalls(store: ModelStore, run: KnownRun) -> None:
    terms = load(RunState.kind, "stalls.report").terms
    found = terms(kept(run.cluster / layout.JOURNAL).read(), run.state, _read_model(run))
    if found and found != store.stalls(source(run)).get(run.identity):
        store.keep_stalls(run.identity, found)


def _read_model(run: KnownRun) -> Mapping[str, Any] | None:
    """Return the counted size of the run's model, or None."""
    try:
        return json.loads((run.directory / layout.MODEL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record(run: KnownRun, *, whole: bool = False) -> Record:
    """Return the measurements of a run so far; with `whole`, without those of deflated VMs."""
    from ...planner import run_records

    rows = metrics.sample(run.directory / layout.METRICS)
    found = run_records.record(run.events(), rows, run.state.name, _read_model(run), whole=whole)
    return replace(found, mode=run.state.spec.mode, settings=settings(run))


def settings(run: KnownRun) -> str:
    """Return the hyperparameters and parameters of a run as text, without the mini-batch.

    Runs with other settings are other experiments.
    """
    pairs = run.state.spec.hparams.split(",")
    pairs += [f"{name}={value_text(value)}" for name, value in run.state.spec.params.items()]
    return ",".join(
        sorted(pair for pair in pairs if pair and pair.partition("=")[0] not in _BATCHES)
    )


def planned_run(
    source: str, options: Mapping[str, Any], include: tuple[str, ...] = (), line_offset: int = 0
) -> RunSpec:
    """Return the declaration of a run that is planned but not declared.

    Parameters
    ----------
    source
        The code, checked as the body of `%%train`.
    options
        Fields of RunSpec by name.
    include
        Files and folders that the code imports.
    line_offset
        The number of lines above the code in its cell.

    Raises
    ------
    CellError
        The code is invalid.
    DeclarationError
        An option is invalid.
    """
    named = {key: value for key, value in options.items() if value}
    paths = included(include)
    if source or not named.get("model"):
        cell.check(
            source,
            line_offset=line_offset,
            include=paths,
            own_model=not named.get("model"),
            params=dict.fromkeys(named.get("params", ()), "--param"),
        )
    whole = {"name": "planned", "train_steps": 1, "line_offset": line_offset, **named}
    payload = Payload.of(
        source, paths, whole.pop("pip", None) or (), build=bool(whole.get("pip_build"))
    )
    return specified(None, whole, None, payload)


def count_graph(source: str, spec: RunSpec, include: tuple[str, ...] = ()) -> Mapping[str, float]:
    """Count the size of a model in its graph.

    A process of its own builds one training step, as the check of a run does: it imports TensorFlow
    and runs the code. The first call for a model takes about ten seconds.

    Parameters
    ----------
    source
        The code.
    spec
        The declaration of the run.
    include
        Files and folders that the code imports.

    Returns
    -------
    Mapping[str, float]
        `parameters`, `gigaflops` of an example, `batch_size`, whether that counts `tokens`, and the
        size of the assumed `vocabulary`.

    Raises
    ------
    CellError, TrainingError or ClusterError
        The graph cannot be built.
    """
    paths = included(include)
    files = [file for path in paths for file in (Path(path), *Path(path).rglob("*"))]
    ages = tuple(file.stat().st_mtime_ns for file in files)
    return _count(
        source, json.dumps({**spec.to_dict(), "declared_at": 0.0}, sort_keys=True), paths, ages
    )


@lru_cache(maxsize=16)
def _count(
    source: str, declared: str, paths: tuple[str, ...], ages: tuple[int, ...]
) -> Mapping[str, float]:
    what = "Counting the operations of the model"
    with tempfile.TemporaryDirectory(prefix="transient-") as temporary:
        folder = Path(temporary) / "planned"
        try:
            folder.mkdir(mode=0o700)
            Payload(source, paths).fill(folder)
            write_record(folder / layout.RUN, json.loads(declared))
        except OSError as error:
            raise TrainingError(f"{what} failed: {reason_of(error)}", where=str(folder)) from error
        found = run_model_program(
            what,
            "--planned",
            "--run",
            str(folder),
            program="check",
            otherwise=_OTHERWISE,
            timeout=_SECONDS,
        )
    if not isinstance(model := found.get("model"), dict):
        raise TrainingError(f"{what} failed: {found.get('note') or 'it has no result'}")
    return {name: float(value) for name, value in model.items()}
