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
"""Fields of a run that affect the duration of its steps."""


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
    """Declare a run of the code in `source` and return immediately.

    Without `model`, `hparams_set` and `problem` the run trains what the code defines. Other runs
    train beside it on workers that are left.

    Parameters
    ----------
    source : str
        The code, as in the cell of `%%train`.
    cluster : Cluster or str, optional
        The cluster (default: the current one).
    name : str, optional
        The name of the run (default: `run-1`, `run-2`, ...).
    model, hparams_set, problem : str
        A model of Tensor2Tensor, its hyperparameters and its data.
    train_steps : int
        The number of steps (default: what the cell's `model.fit` declares).
    workers : int or str, optional
        The number of workers, or the first and the largest number, as in `"2:4"` (default: all).
    include : str or sequence of str
        Files and folders to send along; `pip` in `options` names packages for the VMs.
    resume : str, optional
        The name of a run whose latest checkpoint is continued.
    finish_by : str, float or datetime, optional
        The deadline: hours, `"6h"`, the next `"18:00"`, or a moment. The cluster's workers change
        for it, and nothing else begins on the cluster meanwhile.
    options
        Other fields of RunSpec.

    Returns
    -------
    Run
        The handle.

    Raises
    ------
    DeclarationError
        An option is invalid.
    ClusterError
        There is no cluster for it, or its controller cannot be reached.

    Examples
    --------
    >>> run = tm.train(source=code, train_steps=1000)
    >>> run.wait()
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
        what = "Only trials of a study can share a VM and their input"
        raise DeclarationError(what, fix="Declare a study: %%sweep --per-vm 2.")
    on_vm = earlier is not None and _reachable(chosen, earlier)
    if finish_by is not None:
        made = 0
        if earlier:
            made = max(earlier.state.shipped_step or 0, earlier.state.checkpoint_step or 0)
        refuse_impossible(chosen, spec, source, made)
        refuse_without_quota(chosen, spec)
        spec = replace(spec, on_demand_wait=on_demand_wait(chosen, spec))
        _have_prices(chosen, spec.gpus)
    declared = chosen.state.spec
    if spec.preparers and declared:
        beside = sum(run.spec.preparers > 0 for run in chosen.state.turns)
        # Each of the runs needs at least one.
        preparers = max(spec.preparers, beside + 1)
        if declared.preparation < preparers:
            resized = with_preparation(declared, preparers)
            commands.send(chosen.directory, Resize(spec=resized.to_dict()))
    spec = replace(
        spec,
        resume=resume,
        resume_store=earlier.place[0] if earlier and on_vm and earlier.place else None,
        token=secrets.token_hex(16),
    )
    declared = chosen.state.spec

    def record(chosen_name: str) -> dict[str, object]:
        store = run_store(declared, chosen_name) if declared and spec.store else None
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
    """Measure where the time of a step goes, and return immediately.

    Each of the eight measurements is repeated on VMs of the cluster. Like a run, the
    measurement waits until workers are free.

    Parameters
    ----------
    run : Run or str, optional
        The run whose model and data are measured.
    source : str
        Code that defines the model instead.
    cluster : Cluster or str, optional
        The cluster (default: that of the run, else the current one).
    name : str, optional
        The name of the measurement (default: `stalls-1`, `stalls-2`, ...).
    repeats : int
        The number of times to repeat each measurement.
    seconds : float
        The duration of each measurement, in seconds.
    options
        Options of a run that define the model and the data: `model`, `hparams_set`, `problem`,
        `hparams`, `data_dir`, `params`, `include`, `pip`, `wire`, `workers`.

    Returns
    -------
    Stalls
        The handle.

    Raises
    ------
    DeclarationError
        An option is invalid, or no run or model is given.
    ClusterError
        There is no cluster for it.

    Examples
    --------
    >>> print(tm.declare_stalls("run-1").wait())
    """
    if repeats < LEAST_REPEATS:
        what = f"{repeats} repeats are too few to separate stalls from noise"
        raise DeclarationError(what, where="--repeats", fix=f"Use {LEAST_REPEATS} or more.")
    if run is not None:
        source, options = _of_run(run, cluster, source, options)
        chosen = _cluster_of(run, cluster)
    else:
        chosen = cluster if isinstance(cluster, Cluster) else lookup.cluster(cluster)
    if not source and not options.get("model"):
        what = "The measurement needs a run or a model"
        fix = (
            "Name a run, or --model, --hparams-set and --problem, or write the model's cell "
            "below %%transient_stalls."
        )
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
    """Request prices and zones of these GPUs from the controller, if it lacks them."""
    spec = chosen.state.spec
    if spec and not set(gpus) <= set(spec.prices):
        commands.send(chosen.directory, Resize(spec=widened(spec, gpus).to_dict()))


def _copy_checkpoints(earlier: Run, folder: Path, *, from_store: bool) -> None:
    """Copy the checkpoints of a resumed run to the folder of the new one.

    `from_store`: the VMs read them from their bucket. Raises OSError or CloudError.
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
            fix="Write the number of steps that all workers make together.",
        )
    try:
        tree = ast.parse(source)
    except SyntaxError:
        # The check of the run reports it with its line.
        return
    if not keras_cell.trains(tree):
        raise DeclarationError(
            "The number of steps is unknown, because the cell does not call model.fit",
            where=where,
            fix="Use --train-steps N, or train with model.fit(..., epochs=N).",
        )
    needing = {
        "finish_by": "--finish-by",
        "keep_best": "--keep-best",
        "stop_when": "--stop-when",
    }
    for name, option in needing.items():
        if options.get(name) and not (name != "finish_by" and options.get("eval_steps")):
            raise DeclarationError(
                f"{option} needs --train-steps", where=where, fix="Add the number of steps."
            )
    if options.get("check") is False:
        raise DeclarationError(
            "--no-check needs --train-steps, because only the check reads the steps of model.fit",
            where=where,
            fix="Leave out --no-check, or add the number of steps.",
        )


def _earlier(cluster: Cluster, resume: str | None, train_steps: int) -> Run | None:
    """Return the run to continue from, whose checkpoint has fewer than `train_steps` steps."""
    if resume is None:
        return None
    earlier = run_called(resume, cluster if resume in cluster.state.of(RunState) else None)
    called = f"{earlier.name} of {earlier.cluster.name}"
    if not earlier.state.shipped and not any(
        (earlier.directory / layout.CHECKPOINTS).glob("model.ckpt-*.index")
    ):
        raise DeclarationError(f"{called} has no checkpoint to continue from", where="--resume")
    made = max(earlier.state.checkpoint_step or 0, earlier.state.shipped_step or 0)
    if train_steps and made >= train_steps:
        what = f"{called} has already made {made:,} steps, which count"
        raise DeclarationError(
            what, where="--train-steps", fix=f"Use more than {made:,} to continue."
        )
    return earlier


def _seed_of(earlier: Run) -> dict[str, int]:
    """Return the option by which the cell draws the same split as in the resumed run.

    It is empty if the declaration of that run is not on this machine.
    """
    try:
        return {"drawn_seed": RunFolder(earlier.directory).spec().program_seed}
    except TrainingError:
        return {}


def _reachable(cluster: Cluster, earlier: Run) -> bool:
    """Return whether VMs of `cluster` can read the checkpoints of `earlier` from their bucket."""
    spec = cluster.state.spec
    other = earlier.cluster.state.spec
    return bool(
        earlier.state.shipped and spec and other and spec.bucket and spec.project == other.project
    )


def _cluster_of(run: Run | str, cluster: Cluster | str | None) -> Cluster:
    """Return the cluster of a measurement: the named one, else that of the run if it lives."""
    if cluster is not None:
        if isinstance(cluster, Cluster):
            return cluster
        return lookup.cluster(cluster)
    measured = run if isinstance(run, Run) else run_called(run)
    if measured.cluster.state.over:
        return lookup.cluster()
    return measured.cluster


def _of_run(
    run: Run | str, cluster: Cluster | str | None, source: str, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the code of a run and the options with which it is measured."""
    if source or options.get("model"):
        raise DeclarationError(
            "A measurement needs a run or a model, not both", fix="Leave out one of them."
        )
    if not isinstance(run, Run):
        run = _find_run(run, cluster)
    if is_brought(run.cluster.directory, run.name):
        what = f"{run.name} was declared on another machine, so its code cannot be measured here"
        raise DeclarationError(
            what, fix="Measure it there, or write its cell below %%transient_stalls."
        )
    spec = declared_run(run.cluster.directory, run.state).spec
    folder = run.directory
    fields = {name: getattr(spec, name) for name in _OF_A_RUN}
    files = {path.name for path in (folder / layout.PIP).glob("*")}
    # A package is either a file in the run's folder, or a name.
    pip = tuple(str(folder / layout.PIP / name) if name in files else name for name in spec.pip)
    include = tuple(str(folder / layout.INCLUDE / name) for name in spec.include)
    measured = {name: value for name, value in fields.items() if value}
    measured |= {"pip": pip, "include": include}
    measured |= {name: value for name, value in options.items() if value}
    return (folder / layout.CELL).read_text(encoding="utf-8"), measured


def _find_run(name: str, cluster: Cluster | str | None) -> Run:
    """Return a run by its name, of the named cluster if that has such a run."""
    if cluster is not None:
        named = cluster if isinstance(cluster, Cluster) else lookup.cluster(cluster)
        if name in named.state.of(RunState):
            return named.run(name)
    return run_called(name)
