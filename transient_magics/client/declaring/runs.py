"""Declarations of runs and of other work of VMs: the record made from what was typed, and the files beside it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DeclarationError
from ...protocol import layout
from ...runtime.training.batching import known_speed
from ...runtime.training.t2t import hyperparameters
from ...spec import ClusterSpec, RunSpec, check_run, make_run, parse_records, parse_workers, run_store
from .. import text
from ..cell import as_declared, check_hyperparameters, files_of, packages
from ..programs import fetch
from .including import copy

if TYPE_CHECKING:
    from ..handles import Run

EVALUATIONS = 10
"""Of a run that is judged by them, where its declaration does not say how often."""


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
    if cluster and options.get("batching") == "static":
        _refuse_unknown_speeds(cluster)
    if cluster and (options.get("least_workers") or 0) > cluster.worker_count:
        what = f"{cluster.name} has {text.count(cluster.worker_count, 'worker')}, not {options['least_workers']}"
        raise DeclarationError(what, where="--workers", fix="Take fewer, or resize the cluster first.")
    if str(options.get("data_dir")).startswith("gs://"):
        options["data_dir"] = parse_records(options["data_dir"], cluster)
    options.setdefault("drawn_seed", secrets.randbelow(2**31))
    spec = make_run({
        **{key: value for key, value in options.items() if value is not None},
        "include": tuple(Path(each).name for each in include), "declared_at": time.time(),
        "store": run_store(cluster, options["name"]) if cluster else None,
        "max_workers": cluster.max_workers if cluster else 0,
        "workers": options.get("most_workers") or (cluster.worker_count if cluster else 0),
        "chief": cluster.chief if cluster else "ps",
    })  # fmt: skip
    return spec, files


def _refuse_unknown_speeds(cluster: ClusterSpec) -> None:
    """Raise DeclarationError where workers are unequal, and nothing tells how fast some of them are."""
    kinds = {group.accelerator for group in cluster.groups}
    unknown = sorted(kind for kind in kinds if not known_speed(kind))
    if unknown and len(kinds) > 1:
        named = ", ".join("workers without a GPU" if kind == "cpu" else kind.upper() for kind in unknown)
        what = f"--batching static divides by known speeds, and the speed of {named} is not known beside other GPUs"
        raise DeclarationError(what, where="--batching", fix="Use --batching dynamic, which measures it.")


def fill(
    folder: Path,
    source: str,
    include: tuple[str, ...],
    packages: Mapping[str, Path],
    earlier: Run | None = None,
    *,
    from_store: bool = False,
    more: Mapping[str, bytes] | None = None,
) -> None:
    """Write everything of new work but its declaration into its folder.

    Raises OSError, CloudError, or DeclarationError where the files to include cannot be copied.

    Parameters
    ----------
    earlier
        The run that this one resumes, whose checkpoints are copied.
    from_store
        Whether the VMs get these checkpoints from their bucket.
    more
        The contents of further files, by name.
    """
    (folder / layout.INCLUDE).mkdir(mode=0o700)
    (folder / layout.CELL).write_text(source, encoding="utf-8")
    copy(include, folder / layout.INCLUDE)
    (folder / layout.PIP).mkdir(mode=0o700)
    for name, path in packages.items():
        shutil.copyfile(path, folder / layout.PIP / name)
    if earlier and (earlier.directory / layout.CHECKPOINTS).exists():
        shutil.copytree(earlier.directory / layout.CHECKPOINTS, folder / layout.CHECKPOINTS)
    if earlier and earlier.state.shipped and not from_store and (place := earlier.place):
        fetch(*place, folder, results=False)
    for name, content in (more or {}).items():
        (folder / name).write_bytes(content)


def write_record(path: Path, declaration: Mapping[str, Any]) -> None:
    """Write a declaration that this user alone can read. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(declaration, file, indent=1)
