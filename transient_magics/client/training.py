"""Declaring runs.

`train` writes the run's folder (declaration, cell, what it includes) into the cluster's and tells the controller;
should no controller hear it, the next one finds the folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import CloudError, ClusterError, DeclarationError
from ..protocol import layout
from ..protocol.cluster_commands import Resize, Train
from ..runtime.training.t2t import hyperparameters
from ..spec import (
    JOBS,
    ClusterSpec,
    RunSpec,
    check_run,
    make_run,
    parse_name,
    parse_records,
    parse_workers,
    run_store,
)
from . import commands, text
from .cell import as_declared, check_hyperparameters, files_of, packages
from .declaring import widened
from .finding import cluster as find_cluster
from .finding import run
from .handles import Cluster, Run
from .planning.deadlines import moment, refuse_impossible, refuse_untimely, refuse_without_quota
from .programs import fetch

EVALUATIONS = 10
"""Of a run that is judged by them, where its declaration does not say how often."""


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
    include: tuple[str, ...] = (),
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
    folders = chosen.directory / layout.RUNS
    refuse_when_ending(chosen)
    refuse_to_train(chosen)
    folder = folders / (parse_name(name, "--name") if name else free_name(folders, "run"))
    if folder.exists():
        raise ClusterError(f"{chosen.name} has a run {folder.name} already", fix="Choose another --name.")
    if (chosen.directory / layout.JOBS / folder.name).exists():
        raise ClusterError(f"{chosen.name} has a job {folder.name} already", fix="Choose another --name.")
    if finish_by is not None:
        options["finish_by"] = moment(finish_by, chosen)
        refuse_untimely(chosen, options)
        options.setdefault("checkpoint_auto", "checkpoint_steps" not in options and "checkpoint_seconds" not in options)
    registered = {"model": model, "hparams_set": hparams_set, "problem": problem}
    spec, files = specified(
        chosen.state.spec, {**options, **registered, "name": folder.name, "train_steps": train_steps}, workers, include,
        source,
    )  # fmt: skip
    if study := _whose(chosen, folder.name):
        what = f"{folder.name} is what a run of the study {study} is called"
        raise ClusterError(what, fix="Choose another --name.")
    earlier = _earlier(chosen, resume, train_steps)
    on_vm = earlier is not None and _reachable(chosen, earlier)
    if finish_by is not None:
        refuse_impossible(chosen, spec, source, max(earlier.state.shipped_step or 0, earlier.state.checkpoint_step or 0)
                          if earlier else 0)  # fmt: skip
        refuse_without_quota(chosen, spec)
        _have_prices(chosen, spec.gpus)
    spec = replace(
        spec, resume=resume, resume_store=earlier.place[0] if earlier and on_vm and earlier.place else None,
        token=secrets.token_hex(16),
    )  # fmt: skip
    write(folder, layout.RUN, spec.to_dict(), source, include, files, earlier)
    commands.send(chosen.directory, Train(run=folder.name))
    return Run(folder.name, chosen)


def specified(
    cluster: ClusterSpec | None,
    options: dict[str, Any],
    workers: int | str | None,
    include: tuple[str, ...],
    source: str,
) -> tuple[RunSpec, Mapping[str, Path]]:
    """The declaration of a run of the code in `source` with these `options` (fields of RunSpec) on this cluster, but
    for its token, and the files of packages that go with it. Raises DeclarationError."""
    options = {**options, **(parse_workers(str(workers)) if workers is not None else {})}
    if options.get("seed") is not None:  # what is measured beside the steps takes examples when it has the time
        options.setdefault("noise_share", 0.0)
    if (options.get("keep_best") or options.get("stop_when")) and "eval_steps" not in options:
        options["eval_steps"] = max(1, options["train_steps"] // EVALUATIONS)
    check_run(options)
    if options.get("model") and not include:
        check_hyperparameters(hyperparameters.typed(str(options.get("hparams") or "")), source, where="--hparams")
    wanted = packages(options.get("pip") or (), build=bool(options.get("pip_build")))
    files = files_of(wanted)
    options["pip"] = as_declared(wanted, files)
    if options.get("mode") == "sync" and cluster and cluster.chief == "worker":
        what = (
            f"{cluster.name} was declared with --chief worker, and a worker saves between two asynchronous steps only"
        )
        raise DeclarationError(what, where="--mode", fix="Use --mode async, or a cluster with --chief ps.")
    if cluster and (options.get("least_workers") or 0) > cluster.worker_count:
        what = f"{cluster.name} has {text.count(cluster.worker_count, 'worker')}, not {options['least_workers']}"
        raise DeclarationError(what, where="--workers", fix="Take fewer, or resize the cluster first.")
    if str(options.get("data_dir")).startswith("gs://"):
        options["data_dir"] = parse_records(options["data_dir"], cluster)
    spec = make_run({
        **{key: value for key, value in options.items() if value is not None},
        "include": tuple(Path(each).name for each in include), "declared_at": time.time(),
        "store": run_store(cluster, options["name"]) if cluster else None,
        "max_workers": cluster.max_workers if cluster else 0,
        "workers": options.get("most_workers") or (cluster.worker_count if cluster else 0),
        "chief": cluster.chief if cluster else "ps",
    })  # fmt: skip
    return spec, files


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


def free_name(folders: Path, kind: str) -> str:
    """The first of `run-1`, `run-2`, ... that no folder has."""
    number = 1
    while (folders / f"{kind}-{number}").exists():
        number += 1
    return f"{kind}-{number}"


def _whose(chosen: Cluster, run: str) -> str:
    """The study whose runs have such a name, if there is one."""
    studies = (path.parent.name for path in (chosen.directory / layout.STUDIES).glob(f"*/{layout.STUDY}"))
    return next((name for name in studies if re.fullmatch(rf"{re.escape(name)}-\d+(-\d+)?", run)), "")


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


def _reachable(cluster: Cluster, earlier: Run) -> bool:
    """Whether VMs of `cluster` can get the checkpoints of `earlier` from their bucket themselves."""
    spec, other = cluster.state.spec, earlier.cluster.state.spec
    return bool(earlier.state.shipped and spec and other and spec.bucket and spec.project == other.project)


def write(
    folder: Path,
    record: str,
    declaration: Mapping[str, Any],
    source: str,
    include: tuple[str, ...],
    packages: Mapping[str, Path],
    earlier: Run | None = None,
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Write the folder of a run, whole or not at all; its declaration into the file called `record`, `more` beside it.

    With the checkpoints of `earlier`, which it resumes. Raises ClusterError or CloudError.
    """
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        (fresh / layout.INCLUDE).mkdir(parents=True, mode=0o700)
        fresh.chmod(0o700)
        (fresh / layout.CELL).write_text(source)
        for each in include:
            path = Path(each).expanduser()
            if path.is_dir():
                shutil.copytree(path, fresh / layout.INCLUDE / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(path, fresh / layout.INCLUDE / path.name)
        (fresh / layout.PIP).mkdir(mode=0o700)
        for name, path in packages.items():
            shutil.copyfile(path, fresh / layout.PIP / name)
        if earlier and (earlier.directory / layout.CHECKPOINTS).exists():
            shutil.copytree(earlier.directory / layout.CHECKPOINTS, fresh / layout.CHECKPOINTS)
        if earlier and earlier.state.shipped and not declaration.get("resume_store") and (place := earlier.place):
            fetch(*place, fresh, results=False)
        for name, content in (more or {}).items():
            (fresh / name).write_bytes(content)
        handle = os.open(fresh / record, os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(declaration, file, indent=1)
        fresh.rename(folder)
    except CloudError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ClusterError(f"The run's folder cannot be made: {error.strerror or error}", where=str(folder)) from error
