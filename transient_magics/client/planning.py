"""Numbers before money: plans of clusters that are not declared yet, and forecasts of runs that go on.

What the user names becomes what the planner reckons with: a workload (published, or learnt from runs of one's own), a
cluster, and lifetimes. NumPy and SciPy are loaded when the first of these is asked for.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace as changed
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from ..catalog import ACCELERATORS, ZONES, accelerator, check_zone, default_zone
from ..errors import ClusterError, DeclarationError, PlanError, TransientError, UnreachableError
from ..journal import bill, metrics
from ..spec import WorkerGroup, parse_groups
from ..spec.grammar import nearest
from .clusters import MODELS, refuse_on_demand

if TYPE_CHECKING:
    from ..planner.choices import Lifetimes
    from ..planner.efficiency import TargetSteps
    from ..planner.forecast import Forecast
    from ..planner.lifetimes.model import LifetimeModel
    from ..planner.measured import Record
    from ..planner.plan import Plan
    from ..planner.search import Search
    from ..planner.store import ModelStore
    from ..planner.workloads import Workload
    from .handles import Run

RISKS = ("published", "own", "none")
"""Which revocations can be reckoned with, besides a count of them, and lifetimes of the emulator or of a CSV file."""


def plan(
    spec: str = "",
    *,
    workload: str = "",
    train_steps: int | None = None,
    target: str | None = None,
    ps: int | None = None,
    ps_cores: int = 4,
    zone: tuple[str, ...] = (),
    gpus: tuple[str, ...] = (),
    provisioning_model: str | None = None,
    revocations: int | str = "published",
    replace: bool | None = None,
    mode: str = "async",
    backup_workers: int = 0,
    batch_size: int | None = None,
    max_hours: float | None = None,
    max_cost: float | None = None,
    objective: str = "knee",
    model: str = "",
    problem: str = "",
    hparams_set: str = "",
    seed: int = 0,
) -> Plan | Search:
    """What the cluster SPEC would take for `train_steps` steps; without a SPEC, the best clusters of the catalog, of
    one GPU or of two (of `gpus`, else of all whose speed is known).

    `workload`: a published one (`icac19/resnet-32`: its speeds, its prices of 2019, counted from the first step) or the
    name of a run (what its model's runs were measured at, today's prices); or `model` and `problem` of such runs.
    `target` as `accuracy>=0.9` takes the steps from runs that got there (planner.efficiency). `revocations`:
    `published` lifetimes, those of your `own` VMs, of a CSV file, `none`, or how many workers are lost; `replace` them
    or not (default: yes, but not for a count, as the papers count). `ps` (1; of a search: 1, 2 and 4) of 0: a single
    worker without a parameter server. `mode` of `sync`: each step is taken together and has a mini-batch of every
    worker, but for the slowest `backup_workers`; of one SPEC only. `provisioning_model` (spot; of a search: spot and
    standard). `max_cost` in US dollars. Raises DeclarationError, ClusterError or PlanError.
    """
    from ..planner.plan import make_plan
    from ..planner.search import search

    chosen, records = _workload(workload, model, problem, hparams_set)
    if batch_size:
        chosen = chosen.with_batch(batch_size)
    chosen = _together(chosen, mode, backup_workers, searched=not spec, target=target)
    needed = _needed(chosen, records, train_steps, target)
    lifetimes, lost, risk = _risk(revocations)
    if not spec:
        if lost:
            raise DeclarationError("A number of revocations is of one cluster", where="--revocations",
                                   fix="Name its SPEC, or use published or none.")  # fmt: skip
        limits: dict[str, Any] = {"servers": (ps,)} if ps is not None else {}
        limits |= {"models": (_model(provisioning_model),)} if provisioning_model else {}
        refuse_on_demand(provisioning_model or "spot", None, [accelerator(gpu).name for gpu in gpus])
        steps, chosen, notes = _steps(chosen, needed)
        told = None if callable(steps) else steps
        found = search(
            chosen, steps, lifetimes, objective=objective, max_hours=max_hours, max_dollars=max_cost, zones=zone,
            gpus=[accelerator(gpu).name for gpu in gpus], server_cores=ps_cores,
            replaced=replace is not False, risk=risk, seed=seed, notes=notes, **limits,
        )  # fmt: skip
        asked = {
            "workload": workload, "model": model, "problem": problem, "hparams_set": hparams_set, "zone": zone,
            "gpus": gpus, "train_steps": told, "target": None if told else target, "batch_size": batch_size,
            "max_hours": max_hours, "max_cost": max_cost,
            "objective": objective, "revocations": revocations, "seed": seed, "ps": ps, "ps_cores": ps_cores,
            "provisioning_model": provisioning_model, "replace": replace,
        }  # fmt: skip
        return changed(found, asked=asked)
    choice = _choice(spec, 1 if ps is None else ps, ps_cores, zone, _model(provisioning_model or "spot"))
    if not choice.transient:
        lost, risk = None, "on demand, no revocations"
    steps, chosen, notes = _steps(chosen, needed, choice.workers)
    replaced = (lost is None) if replace is None else replace
    if lost and not replaced:
        risk += ", not replaced"
    found = make_plan(choice, chosen, steps, lifetimes, lost=lost, replaced=replaced, risk=risk, seed=seed, notes=notes)
    if max_hours or max_cost:
        share = found.within(max_hours, max_cost)
        found = changed(found, notes=(*found.notes, f"{share:.0%} of the courses keep within the limits."))
    return found


def forecast(run: Run, revocations: str | None = None) -> Forecast:
    """When a run that goes on ends, and what its cluster will have cost. Raises PlanError where that cannot be told.

    `revocations`: `published` or `none`; by default `published` on Compute Engine, and on the emulator what its weather
    is (other revocations than published ones are not foreseen).
    """
    from ..planner.forecast import CLOSING_SECONDS
    from ..planner.forecast import forecast as foretell

    cluster = run.cluster
    state, now = cluster.state, time.time()
    found = state.runs.get(run.name)
    if found is None:
        raise PlanError(f"{run.name} is not known to {cluster.name} yet")
    lifetimes, _, risk = _risk(revocations or _weather_of(run))
    store = _store(run)
    for other in _alike(store.key):
        if other.state.over:
            _learn(store, other)
    closings = [each.closing for each in store.records().values() if each.closing is not None]
    closing = statistics.median(closings) if closings else CLOSING_SECONDS
    return foretell(state, bill(state, now), now, found, _record(run), lifetimes, risk=risk, closing=closing)


def forecast_line(run: Run) -> str:
    """`run-1 finishes in ...` for a run that goes on; nothing where that cannot be told."""
    if run.state.phase != "running":
        return ""
    try:
        return f"{run.name} {forecast(run)}."
    except TransientError:  # too young, or NumPy is not installed: the status says enough without
        return ""


def _workload(name: str, model: str, problem: str, hparams_set: str) -> tuple[Workload, dict[str, Record]]:
    """The workload, and what its own runs tell."""
    from ..planner.store import ModelStore
    from ..planner.workloads import PUBLISHED, published

    if name and (found := published(name)):
        return found, {}
    if name and "/" in name:
        raise DeclarationError(f"Unknown published workload '{name}'", where="--workload",
                               fix=nearest(name.lower(), list(PUBLISHED)))  # fmt: skip
    if not name and not model:
        raise DeclarationError("A plan needs a workload", fix=f"--workload RUN, or {', '.join(PUBLISHED)}.")
    wire = "fp32"
    if name:
        store, wire = _learnt_from(name)
    else:
        store = ModelStore(model, problem, hparams_set)
        for run in _alike(store.key):
            _learn(store, run)
    return store.workload(name or model, wire), store.records()


def _learnt_from(name: str) -> tuple[ModelStore, str]:
    """The store of the model that the run trains, with all runs that this machine still has; how its numbers cross."""
    from .runs import run as find_run

    try:
        found = find_run(name)
    except ClusterError as error:
        raise DeclarationError(f"There is no run {name}, and no published workload of that name", where="--workload",
                               fix="For example: icac19/resnet-32.") from error  # fmt: skip
    if _synchronous(found):
        raise PlanError(f"{name} took its steps together (--mode sync), which does not tell how fast each worker is",
                        fix="Name an asynchronous run; the plan itself may be of --mode sync.")  # fmt: skip
    store = _store(found)
    for run in [*_alike(store.key), found]:
        _learn(store, run)
    return store, found.state.spec.wire


def _store(run: Run) -> ModelStore:
    from ..planner.store import ModelStore

    spec = run.state.spec
    if spec.model:
        return ModelStore(spec.model, spec.problem, spec.hparams_set)
    import hashlib

    cell = (run.directory / "cell.py").read_bytes()
    return ModelStore(f"cell-{hashlib.sha256(cell).hexdigest()[:12]}", "")


def _alike(key: dict[str, str]) -> list[Run]:
    from .runs import runs

    def fits(run: Run) -> bool:
        spec = run.state.spec
        return not _synchronous(run) and all(getattr(spec, name) == value for name, value in key.items())

    return [run for run in runs() if fits(run)]


def _synchronous(run: Run) -> bool:
    """Whether its steps are taken together: then their number per second does not grow with the workers."""
    return run.state.spec.mode == "sync"


def _learn(store: ModelStore, run: Run) -> None:
    """Keep what the run tells, unless it is known to its end."""
    identity = f"{run.cluster.name}/{run.name}@{run.state.declared_at:.0f}"
    known = store.records().get(identity)
    if known is None or not known.over:
        found = _record(run)
        if found.observations or found.evaluations:
            store.learn(identity, found)


def _record(run: Run) -> Record:
    from ..planner.measured import record

    try:
        counted = json.loads((run.directory / "model.json").read_text())
    except (OSError, ValueError):
        counted = None
    rows = metrics.sample(run.directory / "metrics.jsonl")
    return record(run.cluster.events(), rows, run.name, counted)


def _together(workload: Workload, mode: str, backup: int, *, searched: bool, target: str | None) -> Workload:
    """The workload with its steps taken together, where that is the `mode`. Raises DeclarationError."""
    if mode not in ("async", "sync"):
        raise DeclarationError(f"Invalid --mode '{mode}'", fix="Choose async or sync.")
    if mode == "async":
        if backup:
            raise DeclarationError("--backup-workers needs --mode sync",
                                   fix="Add --mode sync.")  # fmt: skip
        return workload
    if searched or target:
        raise DeclarationError("A synchronous step has as many mini-batches as there are workers, so that steps of one "
                               "cluster are not those of another", where="--mode",
                               fix="Name a SPEC, and its --train-steps.")  # fmt: skip
    return changed(workload, synchronous=True, backup_workers=backup)


def _needed(
    workload: Workload, records: dict[str, Record], train_steps: int | None, target: str | None
) -> int | TargetSteps:
    """How many steps are to be made, or what tells them. Raises DeclarationError or PlanError."""
    if (train_steps is None) == (target is None):
        raise DeclarationError("A plan needs either the steps or a target",
                               fix='--train-steps 64000, or --target "accuracy>=0.9".')  # fmt: skip
    if train_steps is not None:
        if train_steps < 1:
            raise DeclarationError("--train-steps must be at least 1")
        return train_steps
    from ..planner.efficiency import Target, TargetSteps

    wanted = Target.parse(target or "")
    if not records:
        raise PlanError(f"When {workload.name} gets to {wanted} is not known: a published workload has no curve here",
                        fix="Plan with --train-steps, or with a run of yours that got there.")  # fmt: skip
    return TargetSteps(records.values(), wanted, workload.batch_size)


@overload
def _steps(workload: Workload, needed: int | TargetSteps, workers: int) -> tuple[int, Workload, list[str]]: ...


@overload
def _steps(workload: Workload, needed: int | TargetSteps) -> tuple[int | Callable[[int], int], Workload, list[str]]: ...


def _steps(
    workload: Workload, needed: int | TargetSteps, workers: int | None = None
) -> tuple[int | Callable[[int], int], Workload, list[str]]:
    """The steps of so many workers (None: for any number), the workload with how far off they may be, and where they
    come from."""
    if isinstance(needed, int):
        return needed, workload, []
    error = needed.need(workers).error if workers else needed.error
    depends = workers is None and needed.depends_on_workers
    steps = needed.steps if depends else needed.steps(workers or 1)
    return steps, changed(workload, steps_error=error), [needed.words(workers)]


def _risk(revocations: int | str) -> tuple[Lifetimes, int | None, str]:
    """Lifetimes, or how many workers are lost, and both in words. Raises DeclarationError."""
    from ..planner.choices import immortal
    from ..planner.lifetimes.published import published_lifetimes

    text = str(revocations).strip().lower()
    if text.isdigit():
        count = int(text)
        said = "no revocation" if count == 0 else f"{count} revocation{'' if count == 1 else 's'}"
        return immortal, count, said
    if text == "none":
        return immortal, 0, "no revocation"
    if text == "published":
        return published_lifetimes, None, "lifetimes as published in 2019 for preemptible VMs"
    if text in ("own", "emulated"):
        return _observed(text), None, f"lifetimes of your {'own' if text == 'own' else 'emulated'} VMs"
    if text.endswith(".csv"):
        return _observed(str(revocations).strip()), None, f"lifetimes in {revocations}"
    raise DeclarationError(f"Invalid --revocations '{revocations}'",
                           fix=f"Write {', '.join(RISKS)}, or how many workers are lost.")  # fmt: skip


def _observed(source: str) -> Lifetimes:
    """What a source tells about a GPU in a region; where it is too little, about the GPU in all of them (of a file:
    about all VMs in it)."""
    from ..planner.lifetimes.sources import Question
    from ..planner.lifetimes.study import study

    @cache
    def lifetimes(gpu: str, place: str) -> LifetimeModel:
        try:
            return study(Question(gpu, place), source).model
        except (PlanError, DeclarationError):
            return study(Question(gpu if source in ("own", "emulated") else None), source).model

    return lifetimes


def _model(name: str) -> str:
    if name not in MODELS:
        raise DeclarationError(f"Unknown provisioning model '{name}'", where="--provisioning-model",
                               fix=f"Choose from {', '.join(MODELS)}.")  # fmt: skip
    return name


def _choice(spec: str, ps: int, ps_cores: int, zone: tuple[str, ...], model: str) -> Any:
    from ..planner.choices import Choice

    groups = parse_groups(spec, ACCELERATORS, ZONES)
    if ps == 0 and sum(group.count for group in groups) > 1:
        raise DeclarationError("Several workers need a parameter server", where="--ps")
    if not 0 <= ps <= 16:
        raise DeclarationError("A cluster has up to 16 parameter servers", where="--ps")
    home = zone[0] if zone else default_zone([group.accelerator for group in groups])
    refuse_on_demand(model, None, (group.accelerator for group in groups))
    for group in groups:
        check_zone(group.zone or home, group.accelerator)
    placed = tuple(
        WorkerGroup(each.accelerator, each.count, each.zone or (zone[0] if zone else None)) for each in groups
    )
    return Choice(placed, ps, ps_cores, model)


def _weather_of(run: Run) -> str:
    spec = run.cluster.state.spec
    if spec is None or not spec.emulated:
        return "published"
    try:
        set_to = run.cluster.weather().settings.get("revocations")
    except (ClusterError, UnreachableError):
        return "none"
    return "published" if set_to == "published" else "none"
