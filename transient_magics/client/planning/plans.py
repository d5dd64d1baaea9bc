"""Plans: what a cluster that is not declared yet would take and cost for a run."""

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
from ...errors import DeclarationError, PlanError, unknown
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
"""What may be asked to be another than it was measured with, that no option of a cluster says."""


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
    """What the cluster SPEC would take for `train_steps` steps; without a SPEC, the best clusters
    of the catalog, of one GPU or of two (of `gpus`, else of all with a known speed that Google
    sells, at list prices).

    `workload`: a published one (`icac19/resnet-32`: its speeds, its prices of 2019, counted from
    the first step) or the name of a run (what its model's runs were measured at, today's prices);
    or `model` and `problem` of such runs, or the `source` of a cell (in a file: `cell`) with a
    model of its own. A model that never ran is counted (`planner.speeds.counted`), as it is with
    `hparams`, `params` and what is to `include`, where the training stack is on this machine.
    `project`: the plan is for VMs of that project, and takes seconds only from runs on Compute
    Engine. Without one it is for VMs like those of the run that was named (of a `model` or cell: of
    its newest run), which may be emulated ones; its first line says where they were measured.
    `target` as `accuracy>=0.9` takes the steps from runs that got there (planner.efficiency).
    `revocations`: `published` lifetimes, those of your `own` VMs, of a CSV file, `none`, or how
    many workers are lost; `replace` them or not (default: yes, but not for a count, as the papers
    count). `ps` (1; of a search: 1, 2 and 4) of 0: a single worker without a parameter server; each
    has `ps_cores` (4). `mode` of `sync`: a step has a mini-batch of every worker, but for the
    slowest `backup_workers`; of one SPEC only. `provisioning_model` (spot; of a search: spot and
    standard). `machine_type`, `disk` and `ps_zone` are those of a declaration; a search looks at
    larger machines by itself where measured steps waited for their mini-batches. `what_if`: another
    `cache` (a share of the data) or `link` (how many times as fast) than a measure of stalls was
    taken with. `max_cost` in US dollars. `finish_by`: what that deadline costs, and others, of one
    SPEC; hours, `6h`, or `18:00`: the next one on this machine's clock. It is simulated on the
    `availability` in a CSV file (catalog.traces), else on a market like the published ones. Of a
    `bag`, `jobs` and what follows are those of `works.bags.plans.bag_plan`, whose plan it returns.
    Raises DeclarationError, ClusterError or PlanError.
    """
    if bag:
        if workload or model or cell or source or train_steps is not None or target is not None:
            raise DeclarationError(
                "A bag has jobs, and no workload", where="--bag", fix="Give --jobs and --job-time."
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
        raise DeclarationError("Jobs are those of a bag", fix="Add --bag.")
    from ...planner.efficiency import Accuracies
    from ...planner.plan import make_plan
    from ...planner.run_records import own_starts
    from ...planner.search import search

    within = _within(finish_by, spec, availability)
    if disk:
        parse_disk(disk)
    if ps_zone and not (spec and ps != 0):
        what = "A zone for parameter servers needs a cluster with some"
        raise DeclarationError(what, where="--ps-zone", fix="Name a SPEC, and --ps from 1 on.")
    if cell:
        source = _file(cell, "--cell")[0]
    else:
        source = source
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
                "A number of revocations needs a cluster to plan for",
                where="--revocations",
                fix="Name a SPEC, or use published or none.",
            )
        if ps is not None:
            limits: dict[str, Any] = {"servers": (ps,)}
        else:
            limits = {}
        limits |= {"models": (_model(provisioning_model),)} if provisioning_model else {}
        refuse_on_demand(
            provisioning_model or "spot", None, [accelerator(gpu).name for gpu in gpus]
        )
        steps, chosen, notes = _steps(chosen, needed)
        told = None if callable(steps) else steps
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
            "train_steps": told,
            "target": None if told else target,
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
    choice = _choice(
        spec,
        1 if ps is None else ps,
        ps_cores or _SERVER_CORES,
        zone,
        _model(provisioning_model or "spot"),
    )
    machines = worker_machines(machine_type, [group.accelerator for group in choice.groups])
    refuse_far(ps_zone, [group.zone or "" for group in choice.placed])
    choice = changed(choice, machines=machines, server_zone=ps_zone, disk=disk, starts=own_starts())
    if not choice.transient:
        lost = None
        risk = "on demand, no revocations"
    steps, chosen, notes = _steps(chosen, needed, choice.workers)
    if replace is None:
        replaced = lost is None
    else:
        replaced = replace
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

        if availability:
            traces = _traces(availability, seed)
        else:
            traces = ()
        told = deadline_cost(choice, chosen, steps, within, traces, Path(availability).name, seed)
        found = changed(found, deadline=told)
    if max_hours or max_cost:
        share = found.within(max_hours, max_cost)
        found = changed(
            found, notes=(*found.notes, f"{share:.0%} of the courses keep within the limits.")
        )
    return found


def _asked(workload: Workload, what_if: Mapping[str, float]) -> Any:
    """Raises DeclarationError for what is no change, or where no stalls were measured that it would
    change.
    """
    from ...planner.stalls.terms import Change

    if others := sorted({*what_if} - {*WHAT_IF}):
        fix = f"Choose from {', '.join(WHAT_IF)}. Cores, disks and servers are those of --machine-type, --disk and --ps."
        raise unknown("change", others[0], WHAT_IF, where="--what-if", otherwise=fix)
    if not workload.stalls:
        raise DeclarationError(
            f"No stalls of {workload.name} were measured",
            where="--what-if",
            fix="Measure them first: %transient_stalls RUN.",
        )
    return Change(**what_if)


def _within(finish_by: float | str | None, spec: str, availability: str) -> float | None:
    """The hours until a deadline. Raises DeclarationError."""
    if finish_by is None:
        if availability:
            raise DeclarationError("--availability needs --finish-by", fix="Add --finish-by 6h.")
        return None
    if not spec:
        raise DeclarationError(
            "--finish-by needs a cluster to plan for", fix="Name a SPEC, or use --max-hours."
        )
    if isinstance(finish_by, str):
        return parse_deadline(finish_by, "--finish-by", time.time()) / 3600
    if not 0 < finish_by < float("inf"):
        raise DeclarationError("A deadline must be later than now", where="--finish-by")
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
        raise DeclarationError(f"{name} cannot be read: {error}", where=option) from None


def _workload(
    name: str,
    named: Mapping[str, Any],
    code: str,
    include: tuple[str, ...],
    line_offset: int,
    project: str | None,
) -> tuple[Workload, dict[str, Record], str]:
    """The workload, what its own runs tell, and the settings of the run that was named, else of the
    newest.
    """
    from ...planner.speeds.workloads import PUBLISHED, published

    if name and (found := published(name)):
        return found, {}, ""
    if name and "/" in name:
        raise unknown("published workload", name.lower(), PUBLISHED, where="--workload")
    if not name and not named["model"] and not code:
        raise DeclarationError(
            "A plan needs a workload", fix=f"--workload RUN, or {', '.join(PUBLISHED)}."
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
    if project:
        where = "own"
    else:
        where = store.newest_source or "own"
    records = store.records(where)
    if records:
        like = list(records.values())[-1].settings
    else:
        like = ""
    if not store.has_seconds(where):
        return _never_run(spec, code, include), records, like
    return store.workload(spec.model or _OWN, where), records, like


def _not_there(name: str, store: ModelStore, records: Mapping[str, Record]) -> Workload:
    """Return the counted workload of a model that trained on the emulator only, for a plan for
    Compute Engine.
    """
    from ...planner.model_store import family_of
    from ...planner.speeds.workloads import counted_workload

    sizes = {
        "parameters": max((record.parameters for record in records.values()), default=0),
        "gigaflops": max((each.gigaflops for each in records.values()), default=0.0),
        "batch_size": max((each.batch_size for each in records.values()), default=0),
    }
    if not sizes["gigaflops"]:
        raise PlanError(
            f"{name} was measured on the emulator alone, whose seconds say nothing about a project's VMs",
            fix="Train it there for a minute, or leave out --project.",
        )
    return counted_workload(name, sizes, family_of(store.key["model"]))


def _never_run(spec: RunSpec, source: str, include: tuple[str, ...]) -> Workload:
    """What its graph tells of a model that never ran on this machine for long enough."""
    from ...planner.model_store import family_of
    from ...planner.speeds.workloads import counted_workload

    return counted_workload(
        spec.model or _OWN, count_graph(source, spec, include), family_of(spec.model)
    )


def _learnt_from(name: str, runs: list[KnownRun]) -> tuple[ModelStore, str, str, Source]:
    """The store of the model that the run trains, with all runs that this machine still has; how
    its numbers cross; its settings; where it was measured.
    """
    found = next((run for run in reversed(runs) if run.state.name == name), None)
    if found is None:
        names = [run.state.name for run in runs]
        fix = "For example: icac19/resnet-32."
        raise unknown(
            "run or published workload",
            name,
            names,
            where="--workload",
            otherwise=fix,
            numbered=True,
        )
    if is_synchronous(found):
        raise PlanError(
            f"{name} took its steps together (--mode sync), which does not tell how fast each worker is",
            fix="Name an asynchronous run; the plan itself may be of --mode sync.",
        )
    store = store_of(found)
    for run in [*alike(runs, store), found]:
        learn(store, run)
    return store, found.state.spec.wire, settings(found), run_source(found)


def _together(
    workload: Workload, mode: str, backup: int, *, searched: bool, target: str | None
) -> Workload:
    """The workload with its steps taken together, where that is the `mode`. Raises
    DeclarationError.
    """
    if mode not in ("async", "sync"):
        raise DeclarationError(f"Invalid --mode '{mode}'", fix="Choose async or sync.")
    if mode == "async":
        if backup:
            raise DeclarationError("--backup-workers needs --mode sync", fix="Add --mode sync.")
        return workload
    if searched or target:
        raise DeclarationError(
            "Synchronous clusters of different sizes cannot be compared by steps: a step has a "
            "mini-batch of each worker",
            where="--mode",
            fix="Name a SPEC, and its --train-steps.",
        )
    return changed(workload, synchronous=True, backup_workers=backup)


def _needed(
    workload: Workload, records: list[Record], train_steps: int | None, target: str | None
) -> int | TargetSteps:
    """How many steps are to be made, or which of the records tell them. Raises DeclarationError or
    PlanError.
    """
    if (train_steps is None) == (target is None):
        raise DeclarationError(
            "A plan needs either the steps or a target",
            fix='--train-steps 64000, or --target "accuracy>=0.9".',
        )
    if train_steps is not None:
        if train_steps < 1:
            raise DeclarationError("--train-steps must be at least 1")
        return train_steps
    from ...planner.efficiency import Target, TargetSteps

    wanted = Target.parse(target or "")
    if workload.from_first_step:
        raise PlanError(
            f"When {workload.name} gets to {wanted} is not known: a published workload has no curve here",
            fix="Plan with --train-steps, or with a run of yours that got there.",
        )
    return TargetSteps(
        [record for record in records if record.mode == "async"], wanted, workload.batch_size
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
    """The steps of so many workers (None: for any number), the workload with how far off they may
    be, and where they come from.
    """
    if isinstance(needed, int):
        return needed, workload, []
    if workers:
        error = needed.need(workers).error
    else:
        error = needed.error
    depends = workers is None and needed.depends_on_workers
    if depends:
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
    """What all clusters of a search are declared with. Raises DeclarationError."""
    from ...planner.choices import Choice
    from ...planner.run_records import own_starts

    if machine_type and not gpus:
        what = "A search in one machine needs to know with which GPUs"
        raise DeclarationError(what, where="--machine-type", fix="Name them: --gpus t4,v100.")
    return Choice((), machines=worker_machines(machine_type, gpus), disk=disk, starts=own_starts())


def _choice(spec: str, ps: int, ps_cores: int, zone: tuple[str, ...], model: str) -> Any:
    from ...planner.choices import Choice

    groups = parse_groups(spec, ACCELERATORS, ZONES)
    if ps == 0 and sum(group.count for group in groups) > 1:
        raise DeclarationError("Several workers need a parameter server", where="--ps")
    if not 0 <= ps <= 16:
        raise DeclarationError("A cluster has up to 16 parameter servers", where="--ps")
    if zone:
        home = zone[0]
    else:
        home = default_zone([group.accelerator for group in groups])
    refuse_on_demand(model, None, (group.accelerator for group in groups))
    for group in groups:
        check_zone(group.zone or home, group.accelerator)
    placed = tuple(
        WorkerGroup(each.accelerator, each.count, each.zone or (zone[0] if zone else None))
        for each in groups
    )
    return Choice(placed, ps, ps_cores, model)
