"""The declarations of a run and of a measurement of stalls.

A measurement is a run that trains nothing, with the cell and the options of what is measured.
"""

from __future__ import annotations

import ast
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...client import commands, keras_cell, lookup
from ...client.cluster_handle import Cluster
from ...client.commands import fetch
from ...client.declaring import widened, with_preparation
from ...client.declaring.payload import Payload
from ...client.declaring.runs import specified
from ...client.new_work import NewWork
from ...client.planning.deadlines import (
    moment,
    on_demand_wait,
    refuse_impossible,
    refuse_untimely,
    refuse_without_quota,
)
from ...errors import DeclarationError, TrainingError
from ...journal import RunState
from ...journal.declared import declared_run, is_brought
from ...protocol import layout
from ...protocol.cluster_commands import Resize
from ...protocol.step_parts import MEASURES
from ...runtime.folder import RunFolder
from ...spec import run_store
from .handle import Run
from .handle import run as run_called
from .stalls.handle import Stalls

REPEATS = 5
SECONDS = 2.0
LEAST_REPEATS = 3
_OF_A_RUN = (
    "model",
    "hparams_set",
    "problem",
    "hparams",
    "data_dir",
    "params",
    "pip_build",
    "wire",
    "ps_shards",
    "pace_seconds",
)
"""What of a run decides how long its steps take."""


def train(
    *,
    source: str,
    cluster: Cluster | str | None = None,
    name: str | None = None,
    model: str = "",
    hparams_set: str = "",
    problem: str = "",
    train_steps: int = 0,
    workers: int | str | None = None,
    include: str | Sequence[str] = (),
    resume: str | None = None,
    finish_by: str | float | datetime | None = None,
    **options: Any,
) -> Run:
    """Declare a run of the code in `source` and return at once. Raises DeclarationError or
    ClusterError.

    Without `model`, `hparams_set` and `problem` it trains what the code itself defines
    (client.cell). `workers`: how many of the cluster's it takes (`2`), or with how many it begins
    and how many it takes at most (`"2:4"`); all without it. Others train beside it on those that
    are left. `finish_by`: when it has to be done, as `6h` or hours, `18:00` (the next one here) or
    a moment. The cluster's workers are changed for that (docs/deadlines.md), and nothing else
    begins on it meanwhile. `options` are the other fields of RunSpec. `include` names files and
    folders to send along, `pip` packages to install on the VMs: files are copied into the run's
    folder, as those of `include` are.
    """
    if not train_steps:
        _refuse_without_steps(source, {"model": model, "finish_by": finish_by, **options})
    new = NewWork("run", cluster, name, stem="stalls" if options.get("stalls") else "", trains=True)
    chosen = new.cluster
    payload = Payload.of(
        source, include, options.pop("pip", None) or (), build=bool(options.get("pip_build"))
    )
    if finish_by is not None:
        options["finish_by"] = moment(finish_by, chosen)
        refuse_untimely(chosen, options)
        options.setdefault(
            "checkpoint_auto",
            "checkpoint_steps" not in options and "checkpoint_seconds" not in options,
        )
    earlier = _earlier(chosen, resume, train_steps)
    if earlier and options.get("seed") is None:
        options |= _seed_of(earlier)
    registered = {"model": model, "hparams_set": hparams_set, "problem": problem}
    fields = {**options, **registered, "name": new.expected_name, "train_steps": train_steps}
    spec = specified(chosen.state.spec, fields, workers, payload)
    if spec.share_input or spec.per_vm > 1:
        what = "Only trials of a study share a VM and their input"
        raise DeclarationError(what, fix="Declare a study: %%sweep --per-vm 2.")
    on_vm = earlier is not None and _reachable(chosen, earlier)
    if finish_by is not None:
        refuse_impossible(
            chosen,
            spec,
            source,
            max(earlier.state.shipped_step or 0, earlier.state.checkpoint_step or 0)
            if earlier
            else 0,
        )
        refuse_without_quota(chosen, spec)
        spec = replace(spec, on_demand_wait=on_demand_wait(chosen, spec))
        _have_prices(chosen, spec.gpus)
    if spec.preparers and (known := chosen.state.spec):
        beside = sum(run.spec.preparers > 0 for run in chosen.state.turns)
        preparers = max(
            spec.preparers, beside + 1
        )  # each run needs one, however many there are at once
        if known.preparation < preparers:
            commands.send(
                chosen.directory, Resize(spec=with_preparation(known, preparers).to_dict())
            )
    spec = replace(
        spec,
        resume=resume,
        resume_store=earlier.place[0] if earlier and on_vm and earlier.place else None,
        token=secrets.token_hex(16),
    )
    known = chosen.state.spec

    def record(chosen_name: str) -> dict[str, object]:
        if known and spec.store:
            store = run_store(known, chosen_name)
        else:
            store = None
        return replace(spec, name=chosen_name, store=store).to_dict()

    def fill(folder: Path) -> None:
        payload.fill(folder)
        if earlier:
            _copy_checkpoints(earlier, folder, from_store=bool(spec.resume_store))

    return Run(new.declare(record, fill), chosen)


def declare_stalls(
    run: Run | str | None = None,
    *,
    source: str = "",
    cluster: Cluster | str | None = None,
    name: str | None = None,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    **options: Any,
) -> Stalls:
    """Measure where the time of a step goes, of the model and data of `run`, or of the code in
    `source`; returns at once.

    `options` are those of a run that say what is trained and with what: `model`, `hparams_set`,
    `problem`, `hparams`, `data_dir`, `params`, `include`, `pip`, `wire`, `workers`. Each of the
    eight measures is taken `repeats` times, for so many `seconds`, on the cluster's own VMs, which
    it has as a run has them: it waits until some are free. Raises DeclarationError or ClusterError.
    """
    if repeats < LEAST_REPEATS:
        what = f"{repeats} repeats tell no stall from noise"
        raise DeclarationError(what, where="--repeats", fix=f"Take {LEAST_REPEATS} or more.")
    if run is not None:
        source, options = _of_run(run, cluster, source, options)
        chosen = _cluster_of(run, cluster)
    else:
        if isinstance(cluster, Cluster):
            chosen = cluster
        else:
            chosen = lookup.cluster(cluster)
    if not source and not options.get("model"):
        what = "What is to be measured is not named"
        fix = "Name a run, or --model, --hparams-set and --problem, or write the model's cell below %%transient_stalls."
        raise DeclarationError(what, fix=fix)
    declared = train(
        source=source,
        cluster=chosen,
        name=name,
        train_steps=repeats * len(MEASURES),
        **{
            **options,
            "stalls": repeats,
            "stall_seconds": seconds,
            "checkpoint_steps": None,
            "checkpoint_seconds": None,
            "noise_share": 0.0,
            "alarm_below": 0.0,
            "eval_steps": None,
        },
    )
    return Stalls(declared.name, declared.cluster)


def _have_prices(chosen: Cluster, gpus: tuple[str, ...]) -> None:
    """See that the controller knows prices and zones of these GPUs."""
    known = chosen.state.spec
    if known and not set(gpus) <= set(known.prices):
        commands.send(chosen.directory, Resize(spec=widened(known, gpus).to_dict()))


def _copy_checkpoints(earlier: Run, folder: Path, *, from_store: bool) -> None:
    """Copy the checkpoints of the run that is resumed into the folder of the new one. Raises
    OSError or CloudError.

    `from_store`: whether the VMs get them from their bucket.
    """
    if (earlier.directory / layout.CHECKPOINTS).exists():
        shutil.copytree(earlier.directory / layout.CHECKPOINTS, folder / layout.CHECKPOINTS)
    if earlier.state.shipped and not from_store and (place := earlier.place):
        fetch(*place, folder, results=False)


def _refuse_without_steps(source: str, options: Mapping[str, Any]) -> None:
    """Raise DeclarationError unless the cell's `model.fit` can say how many steps there are."""
    where = "--train-steps"
    if options.get("model"):
        raise DeclarationError(
            "A run of a Tensor2Tensor model needs --train-steps",
            where=where,
            fix="Give the number of steps that all workers make together.",
        )
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return  # the check of the run reports it with its line
    if not keras_cell.trains(tree):
        raise DeclarationError(
            "Only a cell that calls model.fit says how many steps there are",
            where=where,
            fix="Give --train-steps N, or train with model.fit(..., epochs=N).",
        )
    needing = {
        "finish_by": "--finish-by",
        "keep_best": "--keep-best",
        "stop_when": "--stop-when",
    }
    for name, option in needing.items():
        if options.get(name) and not (name != "finish_by" and options.get("eval_steps")):
            raise DeclarationError(
                f"{option} needs --train-steps", where=where, fix="Give the number of steps."
            )
    if options.get("check") is False:
        raise DeclarationError(
            "--no-check needs --train-steps: the check finds out what model.fit declares",
            where=where,
            fix="Leave --no-check out, or give the number of steps.",
        )


def _earlier(cluster: Cluster, resume: str | None, train_steps: int) -> Run | None:
    """The run to continue from, which has a checkpoint with fewer steps than `train_steps`."""
    if resume is None:
        return None
    found = run_called(resume, cluster if resume in cluster.state.of(RunState) else None)
    called = f"{found.name} of {found.cluster.name}"
    if not found.state.shipped and not any(
        (found.directory / layout.CHECKPOINTS).glob("model.ckpt-*.index")
    ):
        raise DeclarationError(f"{called} has no checkpoint to continue from", where="--resume")
    made = max(found.state.checkpoint_step or 0, found.state.shipped_step or 0)
    if train_steps and made >= train_steps:
        what = f"{called} has made {made:,} steps already, which count"
        raise DeclarationError(
            what, where="--train-steps", fix=f"To go on from there, name more than {made}."
        )
    return found


def _seed_of(earlier: Run) -> dict[str, int]:
    """The option by which a cell that draws a split draws the same one as in the run that is
    resumed.

    Empty where the declaration of that run is not on this machine.
    """
    try:
        return {"drawn_seed": RunFolder(earlier.directory).spec().program_seed}
    except TrainingError:
        return {}


def _reachable(cluster: Cluster, earlier: Run) -> bool:
    """Whether VMs of `cluster` can get the checkpoints of `earlier` from their bucket themselves."""
    spec = cluster.state.spec
    other = earlier.cluster.state.spec
    return bool(
        earlier.state.shipped and spec and other and spec.bucket and spec.project == other.project
    )


def _cluster_of(run: Run | str, cluster: Cluster | str | None) -> Cluster:
    """Where it is measured: on the cluster that is named, else on the one where the run is, if that
    lives.
    """
    if cluster is not None:
        if isinstance(cluster, Cluster):
            return cluster
        return lookup.cluster(cluster)
    if isinstance(run, Run):
        its = run.cluster
    else:
        its = run_called(run).cluster
    if its.state.over:
        return lookup.cluster()
    return its


def _of_run(
    run: Run | str, cluster: Cluster | str | None, source: str, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The code of a run and the options with which it is measured."""
    if source or options.get("model"):
        raise DeclarationError(
            "A run, or a model of its own, is measured, not both", fix="Leave one of the two out."
        )
    if isinstance(run, Run):
        known = run
    else:
        known = _known(run, cluster)
    if is_brought(known.cluster.directory, known.name):
        what = f"{known.name} was declared on another machine, whose code is not run here for a measure"
        raise DeclarationError(
            what, fix="Measure it there, or write its cell below %%transient_stalls."
        )
    spec = declared_run(known.cluster.directory, known.state).spec
    there = known.directory
    kept = {name: value for name in _OF_A_RUN if (value := getattr(spec, name))}
    files = {each.name for each in (there / layout.PIP).glob("*")}
    pip = tuple(str(there / layout.PIP / each) if each in files else each for each in spec.pip)
    include = tuple(str(there / layout.INCLUDE / each) for each in spec.include)
    given = {name: value for name, value in options.items() if value}
    return (there / layout.CELL).read_text(encoding="utf-8"), {
        **kept,
        "pip": pip,
        "include": include,
        **given,
    }


def _known(name: str, cluster: Cluster | str | None) -> Run:
    """The run of that name, of the cluster that is named if it has such a run."""
    if cluster is not None:
        if isinstance(cluster, Cluster):
            there = cluster
        else:
            there = lookup.cluster(cluster)
        if name in there.state.of(RunState):
            return there.run(name)
    return run_called(name)
