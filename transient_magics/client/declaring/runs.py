"""Declarations of runs from options."""

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
"""The number of evaluations of a run that is judged by them, if the declaration sets none."""


def specified(
    cluster: ClusterSpec | None,
    options: dict[str, Any],
    workers: int | str | None,
    payload: Payload,
) -> RunSpec:
    """Return the declaration of a run, without its token.

    Parameters
    ----------
    cluster
        The declaration of its cluster; None for a plan.
    options
        Fields of RunSpec by name.
    workers
        The value of `--workers`.
    payload
        The code, files and packages.

    Raises
    ------
    DeclarationError
        An option is invalid, or the cluster cannot have such a run.
    """
    options = dict(options)
    if workers is not None:
        options |= parse_workers(str(workers))
    if options.get("seed") is not None:
        # Noise is measured beside the steps on examples that depend on the timing.
        options.setdefault("noise_share", 0.0)
    if (options.get("keep_best") or options.get("stop_when")) and "eval_steps" not in options:
        options["eval_steps"] = max(1, options["train_steps"] // EVALUATIONS)
    check_run(options)
    if options.get("model") and not payload.include:
        hparams = hyperparameters.typed(str(options.get("hparams") or ""))
        check_hyperparameters(hparams, payload.source, where="--hparams")
    if options.get("mode") == "sync" and cluster and cluster.chief == "worker":
        what = (
            f"{cluster.name} was declared with --chief worker, which works with asynchronous "
            "steps only"
        )
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
    fields = {key: value for key, value in options.items() if value is not None}
    fields |= payload.fields
    fields |= {
        "declared_at": time.time(),
        "store": None,
        "max_workers": 0,
        "workers": options.get("most_workers") or 0,
        "chief": "ps",
    }
    if cluster:
        fields |= {
            "store": run_store(cluster, options["name"]),
            "max_workers": cluster.max_workers,
            "workers": options.get("most_workers") or cluster.worker_count,
            "chief": cluster.chief,
        }
    return make_run(fields)


def refuse_unknown_speeds(cluster: ClusterSpec, most_workers: int = 0) -> None:
    """Refuse static mini-batches on different GPUs whose relative speed is unknown.

    Parameters
    ----------
    cluster
        The declaration of the cluster.
    most_workers
        The maximum number of workers of the run; 0: all. A single worker needs no speed.

    Raises
    ------
    DeclarationError
        The speed of a GPU is unknown.
    """
    if most_workers == 1:
        return
    kinds = {group.accelerator for group in cluster.groups}
    unknown = sorted(kind for kind in kinds if not known_speed(kind))
    if unknown and len(kinds) > 1:
        named = ", ".join(
            "workers without a GPU" if kind == "cpu" else kind.upper() for kind in unknown
        )
        what = (
            f"--batching static needs the relative speeds of GPUs, but that of {named} is unknown"
        )
        raise DeclarationError(
            what, where="--batching", fix="Use --batching dynamic, which measures it."
        )
