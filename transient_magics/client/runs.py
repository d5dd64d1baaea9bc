"""Declaring runs and finding them again.

`train` writes the run's folder (declaration, cell, what it includes) into the cluster's and tells the controller;
should no controller hear it, the next one finds the folder.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

from ..errors import ClusterError, DeclarationError
from ..spec import TrainSpec, parse_name
from . import commands
from .clusters import cluster as find_cluster
from .clusters import clusters
from .handles import Cluster, Run

_CHOICES = {
    "mode": ("async",),
    "batching": ("uniform",),
    "lr_policy": ("active", "slots", "fixed"),
    "wire": ("fp32",),
    "when_done": ("keep", "workers", "cluster"),
}


def train(
    *,
    source: str,
    cluster: Cluster | str | None = None,
    name: str | None = None,
    model: str,
    hparams_set: str,
    problem: str,
    train_steps: int,
    include: tuple[str, ...] = (),
    resume: str | None = None,
    **options: Any,
) -> Run:
    """Declare a run of the Tensor2Tensor code in `source` and return at once. Raises DeclarationError or ClusterError.

    `options` are the other fields of TrainSpec. `include` names files and folders to send along.
    """
    chosen = cluster if isinstance(cluster, Cluster) else find_cluster(cluster)
    state = chosen.state
    if state.phase in ("deleting", "deleted"):
        raise ClusterError(f"{chosen.name} is being deleted", fix="Declare another cluster.")
    if train_steps < 1:
        raise DeclarationError("A run has at least one step", where="--train-steps")
    for option, choices in _CHOICES.items():
        if (value := options.get(option)) is not None and value not in choices:
            what = f"'{value}' is not to be had"
            raise DeclarationError(
                what, where=f"--{option.replace('_', '-')}", fix=f"Choose from {', '.join(choices)}."
            )
    folders = chosen.directory / "runs"
    folder = folders / (parse_name(name, "--name") if name else _free_name(folders))
    if folder.exists():
        raise ClusterError(f"{chosen.name} has a run {folder.name} already", fix="Choose another --name.")
    spec = TrainSpec(
        name=folder.name, model=model, hparams_set=hparams_set, problem=problem, train_steps=train_steps,
        include=tuple(Path(each).name for each in include), resume=resume, declared_at=time.time(),
        token=secrets.token_hex(16), max_workers=state.spec.max_workers if state.spec else 0,
        **{key: value for key, value in options.items() if value is not None},
    )  # fmt: skip
    _write(folder, spec, source, include, _checkpoints(chosen, resume))
    commands.send(chosen.directory, {"do": "train", "run": folder.name})
    return Run(folder.name, chosen)


def run(name: str | None = None, cluster: Cluster | str | None = None) -> Run:
    """The run called `name` (of `cluster`, else of whichever has it last), or the latest. Raises ClusterError."""
    if cluster is not None:
        return (cluster if isinstance(cluster, Cluster) else find_cluster(cluster)).run(name)
    for each in reversed(clusters(all=True)):
        found = each.state.runs
        if (name in found) if name else found:
            return each.run(name)
    raise ClusterError(f"There is no run{f' {name}' if name else ' yet'}")


def runs(cluster: Cluster | str | None = None) -> list[Run]:
    """All runs (of `cluster`, else of every one), oldest first."""
    if cluster is not None:
        chosen = [cluster if isinstance(cluster, Cluster) else find_cluster(cluster)]
    else:
        chosen = clusters(all=True)
    return [Run(name, each) for each in chosen for name in each.state.runs]


def _free_name(folders: Path) -> str:
    number = 1
    while (folders / f"run-{number}").exists():
        number += 1
    return f"run-{number}"


def _checkpoints(cluster: Cluster, resume: str | None) -> Path | None:
    if resume is None:
        return None
    folder = run(resume, cluster if resume in cluster.state.runs else None).directory / "checkpoints"
    if not any(folder.glob("model.ckpt-*.index")):
        raise DeclarationError(f"{resume} has no checkpoint to continue from", where="--resume")
    return folder


def _write(folder: Path, spec: TrainSpec, source: str, include: tuple[str, ...], checkpoints: Path | None) -> None:
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        (fresh / "include").mkdir(parents=True, mode=0o700)
        fresh.chmod(0o700)
        (fresh / "cell.py").write_text(source)
        for each in include:
            path = Path(each).expanduser()
            if path.is_dir():
                shutil.copytree(path, fresh / "include" / path.name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(path, fresh / "include" / path.name)
        if checkpoints:
            shutil.copytree(checkpoints, fresh / "checkpoints")
        handle = os.open(fresh / "run.json", os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(spec.to_dict(), file, indent=1)
        fresh.rename(folder)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ClusterError(f"The run's folder cannot be made: {error.strerror or error}", where=str(folder)) from error
