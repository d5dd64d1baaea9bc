"""Plans: the time and the cost of a run on a cluster that is not declared yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ...catalog import (
    ACCELERATORS,
    ZONES,
    accelerator,
    check_zone,
    default_zone,
    parse_disk,
    worker_machines,
)
from ...catalog.traces import DAYS, GOOGLE_H100_2025, Trace, drawn, read_traces
from ...errors import DeclarationError, PlanError, reason_of, unknown
from ...kinds import load
from ...spec import Source, WorkerGroup, parse_groups
from ...spec.units import parse_deadline
from ..cell import listed
from ..declaring import MODELS, refuse_far, refuse_on_demand
from ..folders import KnownRun, known_runs
from .revocations import foreseen
from .workloads import (
    alike,
    count_graph,
    is_synchronous,
    learn,
    planned_run,
    settings,
    store_for,
    store_of,
)
from .workloads import source as run_source

if TYPE_CHECKING:
    from ...planner.efficiency import TargetSteps
    from ...planner.model_store import ModelStore
    from ...planner.plan import Plan
    from ...planner.run_records import Record
    from ...planner.search import Search
    from ...planner.speeds.workloads import Workload
    from ...protocol.run import RunSpec

_OWN = "the cell's model"
_SERVER_CORES = 4
WHAT_IF = ("cache", "link")
"""Names of `what_if`: properties of a measurement of stalls that no other option changes."""


def plan(
    spec: str = "",
    *,
    workload: str = "",
    train_steps: int | None = None,
    target: str | None = None,
    ps: int | None = None,
    ps_cores: int | None = None,
    ps_zone: str = "",
    machine_type: str = "",
    disk: str = "",
    what_if: Mapping[str, float] | None = None,
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
    finish_by: float | str | None = None,
    availability: str = "",
    project: str | None = None,
    objective: str = "knee",
    model: str = "",
    problem: str = "",
    hparams_set: str = "",
    cell: str = "",
    source: str = "",
    hparams: str = "",
    params: Mapping[str, Any] | None = None,
    include: str | Sequence[str] = (),
    line_offset: int = 0,
    bag: bool = False,
    jobs: int | None = None,
    job_time: str | float | None = None,
    spare: float = 0.1,
    policy: str | None = None,
    save_time: float | None = None,
    seed: int = 0,
) -> Plan | Search | Any:
    """Estimate the time and the cost of a run; without a SPEC, find the best clusters.

    Nothing is created.

    Parameters
    ----------
    spec
        The workers, such as `k80x4`. Without it, clusters of one GPU or two from the catalog are
        searched, at list prices.
    workload
        The name of a run, with the measured speeds of all runs of its model and today's prices; or
        a published workload such as `icac19/resnet-32`, with its speeds and prices of 2019, counted
        from the first step.
    train_steps
        The number of steps of all workers together.
    target
        Instead of `train_steps`, a goal such as `accuracy>=0.9`: the steps that runs of the model
        took to reach it (`planner.efficiency`).
    ps
        The number of parameter servers (default: 1; a search tries 1, 2 and 4); 0: train with one
        worker only.
    ps_cores
        The vCPUs of each parameter server (default: 4).
    ps_zone, machine_type, disk
        As in `Declaration`. A search also tries larger machines if measured steps waited for their
        mini-batches.
    what_if
        Changes of a measurement of stalls: `cache`, the cached share of the data; `link`, the
        factor of the links' speed.
    zone
        The zone of groups without one; in a search, the zones to consider.
    gpus
        The GPUs to search (default: all that Google sells and whose speed is known).
    provisioning_model
        `spot`, `preemptible` or `standard` (default: `spot`; a search tries Spot and on demand).
    revocations
        `published` lifetimes, those of your `own` VMs, a CSV file, `none`, or the number of workers
        that are lost.
    replace
        Whether lost workers are replaced (default: yes, but not for a number of revocations).
    mode
        `async`, or `sync`: a step has a mini-batch of each worker. Only with a SPEC.
    backup_workers
        The number of the slowest workers for which a synchronous step does not wait.
    batch_size
        The examples in a step of one worker (default: as measured).
    max_hours, max_cost
        Limits of the clusters, in hours and US dollars.
    finish_by
        A deadline whose cost is shown, with that of others: hours, `6h` or `18:00`. Only with a
        SPEC.
    availability
        A CSV file with the measured availability on which deadlines are simulated
        (`catalog.traces`; default: a market like published ones).
    project
        The project of the VMs. Only measurements on Compute Engine count then. Without it, VMs are
        like those of the named or newest run, which may be on the emulator; the first line of the
        plan shows the place.
    objective
        The cluster to mark in a search: `knee`, `time` or `cost`.
    model, problem, hparams_set
        Instead of `workload`, a model of Tensor2Tensor.
    cell, source
        Instead of `workload`, code that defines a model, in a file or as text. The operations of a
        model that never ran are counted (`planner.speeds.counted`) if TensorFlow is installed.
    hparams, params, include, line_offset
        Hyperparameters, parameters, files and the place of that code.
    bag
        Whether to plan a bag of jobs instead of a run.
    jobs, job_time, spare, policy, save_time
        The jobs of the bag, as in `bag_plan`.
    seed
        The seed of the simulations.

    Returns
    -------
    Plan, Search or BagPlan
        The estimate, shown as text.

    Raises
    ------
    DeclarationError
        An option is invalid or missing.
    PlanError
        There are not enough data for a plan.
    ClusterError
        The operations of the model cannot be counted.

    Examples
    --------
    >>> tm.plan("k80x4", workload="icac19/resnet-32", train_steps=64_000)
    >>> tm.plan(workload="run-1", target="accuracy>=0.9", max_cost=20)
    """
    if bag:
        if workload or model or cell or source or train_steps is not None or target is not None:
            raise DeclarationError(
                "A plan for a bag cannot have a workload",
                where="--bag",
                fix="Use --jobs and --job-time instead.",
            )
        return load("bag", "plans").bag_plan(
            spec,
            jobs=jobs,
            job_time=job_time,
            spare=spare,
            policy=policy,
            save_time=save_time,
            zone=zone,
            provisioning_model=_model(provisioning_model or "spot"),
            revocations=revocations,
            ps_cores=ps_cores,
            seed=seed,
        )
    include = listed(include)
    if jobs is not None or job_time is not None:
        raise DeclarationError("--jobs and --job-time need --bag", fix="Add --bag.")
    from ...planner.efficiency import Accuracies
    from ...planner.plan import make_plan
    from ...planner.run_records import own_starts
    from ...planner.search import search

    within = _within(finish_by, spec, availability)
    if disk:
        parse_disk(disk)
    if ps_zone and not (spec and ps != 0):
        what = "--ps-zone needs a cluster with parameter servers"
        raise DeclarationError(what, where="--ps-zone", fix="Give a SPEC and --ps 1 or more.")
    if cell:
        source = _file(cell, "--cell")[0]
    named = {
        "model": model,
        "problem": problem,
        "hparams_set": hparams_set,
        "hparams": hparams,
        "params": params,
    }
    chosen, records, like = _workload(workload, named, source, include, line_offset, project)
    if what_if:
        chosen = changed(chosen, asked=_asked(chosen, what_if))
    if batch_size:
        chosen = chosen.with_batch(batch_size)
    accuracies = Accuracies(records.values(), chosen.batch_size, mode, like)
    chosen = _together(chosen, mode, backup_workers, searched=not spec, target=target)
    needed = _needed(
        chosen,
        [record for record in records.values() if record.settings == like],
        train_steps,
        target,
    )
    lifetimes, lost, risk = foreseen(revocations)
    if not spec:
        if lost:
            raise DeclarationError(
                "A number of revocations needs a SPEC",
                where="--revocations",
                fix="Give a SPEC, or use published or none.",
            )
        limits: dict[str, Any] = {}
        if ps is not None:
            limits["servers"] = (ps,)
        if provisioning_model:
            limits["models"] = (_model(provisioning_model),)
        refuse_on_demand(
            provisioning_model or "spot", None, [accelerator(gpu).name for gpu in gpus]
        )
        steps, chosen, notes = _steps(chosen, needed)
        fixed_steps = None
        if isinstance(steps, int):
            fixed_steps = steps
        found = search(
            chosen,
            steps,
            lifetimes,
            objective=objective,
            max_hours=max_hours,
            max_dollars=max_cost,
            zones=zone,
            gpus=[accelerator(gpu).name for gpu in gpus],
            server_cores=ps_cores or _SERVER_CORES,
            replaced=replace is not False,
            risk=risk,
            seed=seed,
            notes=notes,
            accuracies=accuracies,
            like=_like(machine_type, gpus, disk),
            **limits,
        )
        asked = {
            "workload": workload,
            **named,
            "source": source,
            "include": include,
            "line_offset": line_offset,
            "zone": zone,
            "project": project,
            "gpus": gpus,
            "train_steps": fixed_steps,
            "target": None if fixed_steps else target,
            "batch_size": batch_size,
            "max_hours": max_hours,
            "max_cost": max_cost,
            "objective": objective,
            "revocations": revocations,
            "seed": seed,
            "ps": ps,
            "ps_cores": ps_cores,
            "provisioning_model": provisioning_model,
            "replace": replace,
            "machine_type": machine_type,
            "disk": disk,
            "what_if": what_if,
        }
        return changed(found, asked=asked)
    if ps is None:
        ps = 1
    choice = _choice(
        spec, ps, ps_cores or _SERVER_CORES, zone, _model(provisioning_model or "spot")
    )
    machines = worker_machines(machine_type, [group.accelerator for group in choice.groups])
    refuse_far(ps_zone, [group.zone or "" for group in choice.placed])
    choice = changed(choice, machines=machines, server_zone=ps_zone, disk=disk, starts=own_starts())
    if not choice.transient:
        lost = None
        risk = "on demand, no revocations"
    steps, chosen, notes = _steps(chosen, needed, choice.workers)
    replaced = replace
    if replaced is None:  # as in the papers, which count revocations without replacement
        replaced = lost is None
    if lost and not replaced:
        risk += ", not replaced"
    found = make_plan(
        choice,
        chosen,
        steps,
        lifetimes,
        lost=lost,
        replaced=replaced,
        risk=risk,
        seed=seed,
        notes=notes,
        accuracies=accuracies,
    )
    if within is not None:
        from ...planner.deadlines.cost import deadline_cost

        traces: Sequence[Trace] = ()
        if availability:
            traces = _traces(availability, seed)
        cost = deadline_cost(choice, chosen, steps, within, traces, Path(availability).name, seed)
        found = changed(found, deadline=cost)
    if max_hours or max_cost:
        share = found.within(max_hours, max_cost)
        found = changed(
            found, notes=(*found.notes, f"{share:.0%} of the simulations stay within the limits.")
        )
    return found


def _asked(workload: Workload, what_if: Mapping[str, float]) -> Any:
    """Return the changes of `what_if`. Raises DeclarationError for unknown or unmeasured ones."""
    from ...planner.stalls.terms import Change

    if others := sorted({*what_if} - {*WHAT_IF}):
        fix = (
            f"Choose from {', '.join(WHAT_IF)}. For cores, disks and servers use "
            "--machine-type, --disk and --ps."
        )
        raise unknown("change", others[0], WHAT_IF, where="--what-if", otherwise=fix)
    if not workload.stalls:
        raise DeclarationError(
            f"The stalls of {workload.name} have not been measured",
            where="--what-if",
            fix="Measure them first: %transient_stalls RUN.",
        )
    return Change(**what_if)


def _within(finish_by: float | str | None, spec: str, availability: str) -> float | None:
    """Return the hours until a deadline. Raises DeclarationError."""
    if finish_by is None:
        if availability:
            raise DeclarationError("--availability needs --finish-by", fix="Add --finish-by 6h.")
        return None
    if not spec:
        raise DeclarationError("--finish-by needs a SPEC", fix="Give a SPEC, or use --max-hours.")
    if isinstance(finish_by, str):
        return parse_deadline(finish_by, "--finish-by", time.time()) / 3600
    if not 0 < finish_by < float("inf"):
        raise DeclarationError(
            "The deadline has already passed", where="--finish-by", fix="Write a later one."
        )
    return finish_by


def _traces(name: str, seed: int) -> Sequence[Trace]:
    """Return the traces of a file, or traces drawn from the table in the package."""
    if name == GOOGLE_H100_2025:
        return drawn(seed, 2 * DAYS)
    return read_traces(*_file(name))


def _file(name: str, option: str = "--availability") -> tuple[str, str]:
    path = Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8"), path.name
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{name} cannot be read: {reason_of(error)}", where=option) from None


def _workload(
    name: str,
    named: Mapping[str, Any],
    code: str,
    include: tuple[str, ...],
    line_offset: int,
    project: str | None,
) -> tuple[Workload, dict[str, Record], str]:
    """Return the workload, the records of its runs, and the settings of the named or newest run."""
    from ...planner.speeds.workloads import PUBLISHED, published

    if name and (found := published(name)):
        return found, {}, ""
    if name and "/" in name:
        raise unknown("published workload", name.lower(), PUBLISHED, where="--workload")
    if not name and not named["model"] and not code:
        raise DeclarationError(
            "A plan needs a workload", fix=f"Use --workload RUN, or one of {', '.join(PUBLISHED)}."
        )
    runs = known_runs()
    if name:
        store, wire, like, measured = _learnt_from(name, runs)
        where: Source = "own" if project else measured
        records = store.records(where)
        if where != measured and not store.has_seconds(where):
            return _not_there(name, store, records), records, like
        return store.workload(name, where, wire), records, like
    spec = planned_run(code, named, include, line_offset)
    store = store_for(spec, code.encode())
    for run in alike(runs, store):
        learn(store, run)
    where = "own"
    if not project:
        where = store.newest_source or "own"
    records = store.records(where)
    like = ""
    if records:
        like = list(records.values())[-1].settings
    if not store.has_seconds(where):
        return _never_run(spec, code, include), records, like
    return store.workload(spec.model or _OWN, where), records, like


def _not_there(name: str, store: ModelStore, records: Mapping[str, Record]) -> Workload:
    """Return the counted workload of a model that trained on the emulator only."""
    from ...planner.model_store import family_of
    from ...planner.speeds.workloads import counted_workload

    sizes = {
        "parameters": max((record.parameters for record in records.values()), default=0),
        "gigaflops": max((record.gigaflops for record in records.values()), default=0.0),
        "batch_size": max((record.batch_size for record in records.values()), default=0),
    }
    if not sizes["gigaflops"]:
        raise PlanError(
            f"{name} was measured only on the emulator, whose speed does not apply to VMs of a "
            "project",
            fix="Train it in the project for a minute, or leave out --project.",
        )
    return counted_workload(name, sizes, family_of(store.key["model"]))


def _never_run(spec: RunSpec, source: str, include: tuple[str, ...]) -> Workload:
    """Return the counted workload of a model without a long enough run on this machine."""
    from ...planner.model_store import family_of
    from ...planner.speeds.workloads import counted_workload

    return counted_workload(
        spec.model or _OWN, count_graph(source, spec, include), family_of(spec.model)
    )


def _learnt_from(name: str, runs: list[KnownRun]) -> tuple[ModelStore, str, str, Source]:
    """Return measurements of a run's model, and how and where that run was trained.

    These are the store of its model, its wire format, its settings, and whether it ran on the
    emulator or in a project.
    """
    # The newest run of this name.
    found = next((run for run in reversed(runs) if run.state.name == name), None)
    if found is None:
        names = [run.state.name for run in runs]
        raise unknown(
            "run or published workload",
            name,
            names,
            where="--workload",
            otherwise="For example: icac19/resnet-32.",
            numbered=True,
        )
    if is_synchronous(found):
        raise PlanError(
            f"{name} was synchronous (--mode sync), so the speed of each worker is unknown",
            fix="Name an asynchronous run. The plan itself may have --mode sync.",
        )
    store = store_of(found)
    for run in [*alike(runs, store), found]:
        learn(store, run)
    return store, found.state.spec.wire, settings(found), run_source(found)


def _together(
    workload: Workload, mode: str, backup: int, *, searched: bool, target: str | None
) -> Workload:
    """Return the workload with synchronous steps if `mode` is `sync`. Raises DeclarationError."""
    if mode not in ("async", "sync"):
        raise DeclarationError(f"Invalid --mode '{mode}'", fix="Choose async or sync.")
    if mode == "async":
        if backup:
            raise DeclarationError("--backup-workers needs --mode sync", fix="Add --mode sync.")
        return workload
    if searched or target:
        raise DeclarationError(
            "Synchronous clusters of different sizes cannot be compared by steps, because a step "
            "has a mini-batch of each worker",
            where="--mode",
            fix="Give a SPEC and --train-steps.",
        )
    return changed(workload, synchronous=True, backup_workers=backup)


def _needed(
    workload: Workload, records: list[Record], train_steps: int | None, target: str | None
) -> int | TargetSteps:
    """Return the number of steps, or the records that determine it.

    Raises DeclarationError or PlanError.
    """
    if (train_steps is None) == (target is None):
        raise DeclarationError(
            "A plan needs either --train-steps or --target",
            fix='For example: --train-steps 64000, or --target "accuracy>=0.9".',
        )
    if train_steps is not None:
        if train_steps < 1:
            raise DeclarationError(f"--train-steps must be at least 1, not {train_steps}")
        return train_steps
    from ...planner.efficiency import Target, TargetSteps

    goal = Target.parse(target or "")
    if workload.from_first_step:
        raise PlanError(
            f"The steps of {workload.name} to {goal} are unknown: a published workload has no "
            "learning curve",
            fix="Use --train-steps, or a run of yours that reached it.",
        )
    return TargetSteps(
        [record for record in records if record.mode == "async"], goal, workload.batch_size
    )


@overload
def _steps(
    workload: Workload, needed: int | TargetSteps, workers: int
) -> tuple[int, Workload, list[str]]: ...


@overload
def _steps(
    workload: Workload, needed: int | TargetSteps
) -> tuple[int | Callable[[int], int], Workload, list[str]]: ...


def _steps(
    workload: Workload, needed: int | TargetSteps, workers: int | None = None
) -> tuple[int | Callable[[int], int], Workload, list[str]]:
    """Return the steps for `workers` (None: any number), the workload with their error, notes."""
    if isinstance(needed, int):
        return needed, workload, []
    error = needed.error
    if workers:
        error = needed.need(workers).error
    if workers is None and needed.depends_on_workers:
        steps = needed.steps
    else:
        steps = needed.steps(workers or 1)
    guess = "; ".join(filter(None, [workload.guess, needed.guess(workers)]))
    return steps, changed(workload, steps_error=error, guess=guess), [needed.words(workers)]


def _model(name: str) -> str:
    if name not in MODELS:
        raise unknown("provisioning model", name, MODELS, where="--provisioning-model")
    return name


def _like(machine_type: str, gpus: tuple[str, ...], disk: str) -> Any:
    """Return the common properties of the clusters of a search. Raises DeclarationError."""
    from ...planner.choices import Choice
    from ...planner.run_records import own_starts

    if machine_type and not gpus:
        what = "A search with one machine type needs GPUs"
        raise DeclarationError(what, where="--machine-type", fix="Add them: --gpus t4,v100.")
    return Choice((), machines=worker_machines(machine_type, gpus), disk=disk, starts=own_starts())


def _choice(spec: str, ps: int, ps_cores: int, zone: tuple[str, ...], model: str) -> Any:
    from ...planner.choices import Choice

    groups = parse_groups(spec, ACCELERATORS, ZONES)
    if ps == 0 and sum(group.count for group in groups) > 1:
        raise DeclarationError(
            "A cluster with more than one worker needs a parameter server",
            where="--ps",
            fix="Use --ps 1 or more.",
        )
    if not 0 <= ps <= 16:
        raise DeclarationError("The number of parameter servers must be at most 16", where="--ps")
    if zone:
        home = zone[0]
    else:
        home = default_zone([group.accelerator for group in groups])
    refuse_on_demand(model, None, (group.accelerator for group in groups))
    for group in groups:
        check_zone(group.zone or home, group.accelerator)
    first = next(iter(zone), None)
    placed = tuple(
        WorkerGroup(group.accelerator, group.count, group.zone or first) for group in groups
    )
    return Choice(placed, ps, ps_cores, model)
