"""Declaring runs.

`train` writes the run's folder (declaration, cell, what it includes) into the cluster's and tells the controller;
should no controller hear it, the next one finds the folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ..errors import ClusterError, DeclarationError, TrainingError
from ..protocol import layout
from ..protocol.cluster_commands import Resize
from ..runtime.folder import RunFolder
from ..spec import JOBS, parse_name, run_store
from . import commands
from .cell import listed
from .declaring import claims, widened, with_preparation
from .declaring.runs import fill, specified
from .finding import cluster as find_cluster
from .finding import run
from .handles import Cluster, Run
from .planning.deadlines import moment, on_demand_wait, refuse_impossible, refuse_untimely, refuse_without_quota


def train(
    *,
    source: str,
    cluster: Cluster | str | None = None,
    name: str | None = None,
    model: str = "",
    hparams_set: str = "",
    problem: str = "",
    train_steps: int,
    workers: int | str | None = None,
    include: str | Sequence[str] = (),
    resume: str | None = None,
    finish_by: str | float | datetime | None = None,
    **options: Any,
) -> Run:
    """Declare a run of the code in `source` and return at once. Raises DeclarationError or ClusterError.

    Without `model`, `hparams_set` and `problem` it trains what the code itself defines (client.cell).
    `workers`: how many of the cluster's it takes (`2`), or with how many it begins and how many it takes at most
    (`"2:4"`); all without it. Others train beside it on those that are left.
    `finish_by`: when it has to be done, as `6h` or hours, `18:00` (the next one here) or a moment. The cluster's
    workers are changed for that (docs/deadlines.md), and nothing else begins on it meanwhile.
    `options` are the other fields of RunSpec. `include` names files and folders to send along, `pip` packages to
    install on the VMs: files are copied into the run's folder, as those of `include` are.
    """
    chosen = cluster if isinstance(cluster, Cluster) else find_cluster(cluster)
    include = listed(include)
    refuse_when_ending(chosen)
    refuse_to_train(chosen)
    name = parse_name(name, "--name") if name else None
    if name:
        claims.refuse_taken(chosen, "run", name)
    stem = "stalls" if options.get("stalls") else "run"
    expected = name or claims.free_name(chosen, "run", stem)
    if finish_by is not None:
        options["finish_by"] = moment(finish_by, chosen)
        refuse_untimely(chosen, options)
        options.setdefault("checkpoint_auto", "checkpoint_steps" not in options and "checkpoint_seconds" not in options)
    earlier = _earlier(chosen, resume, train_steps)
    if earlier and options.get("seed") is None:
        options |= _seed_of(earlier)
    registered = {"model": model, "hparams_set": hparams_set, "problem": problem}
    spec, files = specified(
        chosen.state.spec, {**options, **registered, "name": expected, "train_steps": train_steps}, workers, include,
        source,
    )  # fmt: skip
    if spec.share_input or spec.per_vm > 1:
        what = "Only trials of a study share a VM and their input"
        raise DeclarationError(what, fix="Declare a study: %%sweep --per-vm 2.")
    on_vm = earlier is not None and _reachable(chosen, earlier)
    if finish_by is not None:
        refuse_impossible(chosen, spec, source, max(earlier.state.shipped_step or 0, earlier.state.checkpoint_step or 0)
                          if earlier else 0)  # fmt: skip
        refuse_without_quota(chosen, spec)
        spec = replace(spec, on_demand_wait=on_demand_wait(chosen, spec))
        _have_prices(chosen, spec.gpus)
    if spec.preparers and (known := chosen.state.spec):
        beside = sum(run.spec.preparers > 0 for run in chosen.state.turns)
        preparers = max(spec.preparers, beside + 1)  # each run needs one, however many there are at once
        if known.preparation < preparers:
            commands.send(chosen.directory, Resize(spec=with_preparation(known, preparers).to_dict()))
    spec = replace(
        spec, resume=resume, resume_store=earlier.place[0] if earlier and on_vm and earlier.place else None,
        token=secrets.token_hex(16),
    )  # fmt: skip
    known = chosen.state.spec

    def record(chosen_name: str) -> dict[str, object]:
        store = run_store(known, chosen_name) if known and spec.store else None
        return replace(spec, name=chosen_name, store=store).to_dict()

    name = claims.declare(
        chosen,
        "run",
        name,
        stem=stem,
        record=record,
        fill=lambda folder: fill(folder, source, include, files, earlier, from_store=bool(spec.resume_store)),
    )
    claims.announce(chosen, "run", name)
    return Run(name, chosen)


def refuse_when_ending(chosen: Cluster) -> None:
    """Raise ClusterError for a cluster on which nothing begins any more, or not beside a run with a deadline."""
    state = chosen.state
    if due := state.due:
        what = f"{due.name} has a deadline, and {chosen.name} for itself until it is over"
        raise ClusterError(what, fix="Name another cluster, or wait.")
    if state.phase in ("deleting", "deleted"):
        what = "is deleted" if state.over else "is being deleted"
        raise ClusterError(f"{chosen.name} {what}", fix="Declare another cluster.")


def _have_prices(chosen: Cluster, gpus: tuple[str, ...]) -> None:
    """See that the controller knows prices and zones of these GPUs."""
    known = chosen.state.spec
    if known and not set(gpus) <= set(known.prices):
        commands.send(chosen.directory, Resize(spec=widened(known, gpus).to_dict()))


def refuse_to_train(chosen: Cluster) -> None:
    """Raise ClusterError for a cluster whose VMs have no TensorFlow."""
    spec = chosen.state.spec
    if spec and spec.purpose == JOBS:
        what = f"{chosen.name} was declared --for jobs, so its VMs have no TensorFlow"
        raise ClusterError(what, fix="Name another cluster with --cluster, or declare one without --for jobs.")


def _earlier(cluster: Cluster, resume: str | None, train_steps: int) -> Run | None:
    """The run to continue from, which has a checkpoint with fewer steps than `train_steps`."""
    if resume is None:
        return None
    found = run(resume, cluster if resume in cluster.state.runs else None)
    called = f"{found.name} of {found.cluster.name}"
    if not found.state.shipped and not any((found.directory / layout.CHECKPOINTS).glob("model.ckpt-*.index")):
        raise DeclarationError(f"{called} has no checkpoint to continue from", where="--resume")
    if (made := max(found.state.checkpoint_step or 0, found.state.shipped_step or 0)) >= train_steps:
        what = f"{called} has made {made:,} steps already, which count"
        raise DeclarationError(what, where="--train-steps", fix=f"To go on from there, name more than {made}.")
    return found


def _seed_of(earlier: Run) -> dict[str, int]:
    """The option by which a cell that draws a split draws the same one as in the run that is resumed.

    Empty where the declaration of that run is not on this machine.
    """
    try:
        return {"drawn_seed": RunFolder(earlier.directory).spec().program_seed}
    except TrainingError:
        return {}


def _reachable(cluster: Cluster, earlier: Run) -> bool:
    """Whether VMs of `cluster` can get the checkpoints of `earlier` from their bucket themselves."""
    spec, other = cluster.state.spec, earlier.cluster.state.spec
    return bool(earlier.state.shipped and spec and other and spec.bucket and spec.project == other.project)
