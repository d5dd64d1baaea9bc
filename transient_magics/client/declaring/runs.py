"""What a run, or what else VMs run, is declared as: its record from what was typed, and the folder that has it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import CloudError, ClusterError, DeclarationError
from ...protocol import layout
from ...runtime.training.t2t import hyperparameters
from ...spec import ClusterSpec, RunSpec, check_run, make_run, parse_records, parse_workers, run_store
from .. import text
from ..cell import as_declared, check_hyperparameters, files_of, packages
from ..folders import remove_abandoned
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

    With the checkpoints of `earlier`, which it resumes. Raises ClusterError, CloudError, or DeclarationError where the
    files to include cannot be copied.
    """
    remove_abandoned(folder.parent)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        (fresh / layout.INCLUDE).mkdir(parents=True, mode=0o700)
        fresh.chmod(0o700)
        (fresh / layout.CELL).write_text(source)
        copy(include, fresh / layout.INCLUDE)
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
    except (CloudError, DeclarationError):
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ClusterError(f"The run's folder cannot be made: {error.strerror or error}", where=str(folder)) from error
