"""What is recorded about a model: measured by its runs on this machine, or counted from its graph."""

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
"""What a parameter is called that sets the mini-batch, which is measured."""

_SECONDS = 300.0
_OTHERWISE = "or train it for a minute on a cluster, then plan with that run."


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
    terms = load(RunState.kind, "stalls.report").terms
    found = terms(kept(run.cluster / layout.JOURNAL).read(), run.state, _read_model(run))
    if found and found != store.stalls(source(run)).get(run.identity):
        store.keep_stalls(run.identity, found)


def _read_model(run: KnownRun) -> Mapping[str, Any] | None:
    """What was counted of the run's model, once it is."""
    try:
        return json.loads((run.directory / layout.MODEL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record(run: KnownRun, *, whole: bool = False) -> Record:
    """What the run was measured at, until now; `whole`: without what deflated VMs were."""
    from ...planner import run_records

    rows = metrics.sample(run.directory / layout.METRICS)
    told = run_records.record(run.events(), rows, run.state.name, _read_model(run), whole=whole)
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


def planned_run(
    source: str, options: Mapping[str, Any], include: tuple[str, ...] = (), line_offset: int = 0
) -> RunSpec:
    """The declaration of a run of the code in `source` with these options (fields of RunSpec),
    checked as a cell of training is. Raises CellError or DeclarationError.
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
    """What was counted of the model: `parameters`, `gigaflops` of an example, `batch_size`, and
    whether that is in `tokens`; the size of a `vocabulary` that stands in. Takes some ten seconds
    the first time that this process is asked about it. Raises CellError, TrainingError or
    ClusterError.
    """
    paths = included(include)
    ages = tuple(
        each.stat().st_mtime_ns for path in paths for each in (Path(path), *Path(path).rglob("*"))
    )
    return _count(
        source, json.dumps({**spec.to_dict(), "declared_at": 0.0}, sort_keys=True), paths, ages
    )


@lru_cache(maxsize=16)
def _count(
    source: str, declared: str, paths: tuple[str, ...], ages: tuple[int, ...]
) -> Mapping[str, float]:
    what = "Counting what the model computes"
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
        raise TrainingError(f"{what} failed: {found.get('note') or 'it says nothing'}")
    return {name: float(value) for name, value in model.items()}
