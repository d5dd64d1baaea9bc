"""Declarations of runs, made of the options that the user gave."""

from __future__ import annotations

import secrets
import time
from typing import Any

from ...errors import DeclarationError
from ...runtime.training.batching import known_speed
from ...runtime.training.t2t import hyperparameters
from ...spec import (
    ClusterSpec,
    RunSpec,
    check_run,
    make_run,
    parse_records,
    parse_workers,
    run_store,
)
from ..cell import check_hyperparameters
from .declaration import refuse_more_workers
from .payload import Payload

EVALUATIONS = 10
"""Of a run that is judged by them, where its declaration does not say how often."""


def specified(
    cluster: ClusterSpec | None,
    options: dict[str, Any],
    workers: int | str | None,
    payload: Payload,
) -> RunSpec:
    """Return the declaration of a run with these options (fields of RunSpec) on a cluster, without
    its token.

    Raises DeclarationError.
    """
    options = {**options, **(parse_workers(str(workers)) if workers is not None else {})}
    if (
        options.get("seed") is not None
    ):  # what is measured beside the steps takes examples when it has the time
        options.setdefault("noise_share", 0.0)
    if (options.get("keep_best") or options.get("stop_when")) and "eval_steps" not in options:
        options["eval_steps"] = max(1, options["train_steps"] // EVALUATIONS)
    check_run(options)
    if options.get("model") and not payload.include:
        hparams = hyperparameters.typed(str(options.get("hparams") or ""))
        check_hyperparameters(hparams, payload.source, where="--hparams")
    if options.get("mode") == "sync" and cluster and cluster.chief == "worker":
        what = f"{cluster.name} was declared with --chief worker, and a worker saves between two asynchronous steps only"
        raise DeclarationError(
            what, where="--mode", fix="Use --mode async, or a cluster with --chief ps."
        )
    if cluster and options.get("batching") == "static":
        refuse_unknown_speeds(cluster, options.get("most_workers") or 0)
    if cluster:
        refuse_more_workers(cluster, options.get("least_workers") or 0)
    if str(options.get("data_dir")).startswith("gs://"):
        options["data_dir"] = parse_records(options["data_dir"], cluster)
    options.setdefault("drawn_seed", secrets.randbelow(2**31))
    return make_run(
        {
            **{key: value for key, value in options.items() if value is not None},
            **payload.fields,
            "declared_at": time.time(),
            "store": run_store(cluster, options["name"]) if cluster else None,
            "max_workers": cluster.max_workers if cluster else 0,
            "workers": options.get("most_workers") or (cluster.worker_count if cluster else 0),
            "chief": cluster.chief if cluster else "ps",
        }
    )


def refuse_unknown_speeds(cluster: ClusterSpec, most_workers: int = 0) -> None:
    """Refuse static mini-batches on unequal workers where the speed of some of them is not known.

    Parameters
    ----------
    most_workers
        The number of workers that the run takes at most; 0: all. One worker has nothing to divide.

    Raises
    ------
    DeclarationError
        The speed of some of the workers is not known.
    """
    if most_workers == 1:
        return
    kinds = {group.accelerator for group in cluster.groups}
    unknown = sorted(kind for kind in kinds if not known_speed(kind))
    if unknown and len(kinds) > 1:
        named = ", ".join(
            "workers without a GPU" if kind == "cpu" else kind.upper() for kind in unknown
        )
        what = f"--batching static divides by known speeds, and the speed of {named} is not known beside other GPUs"
        raise DeclarationError(
            what, where="--batching", fix="Use --batching dynamic, which measures it."
        )
