"""Declaring a measure of stalls: a run that trains nothing, with the cell and the options of what is to be trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DeclarationError, UnknownWorkError
from ..journal import RunState
from ..journal.declared import declared_run, is_brought
from ..protocol import layout
from ..protocol.measures.stalls import MEASURES
from . import finding
from .handles import Cluster, Run, Stalls
from .training import train

REPEATS, SECONDS = 5, 2.0
LEAST_REPEATS = 3
_OF_A_RUN = (
    "model", "hparams_set", "problem", "hparams", "data_dir", "params", "pip_build", "wire", "ps_shards",
    "pace_seconds",
)  # fmt: skip
"""What of a run decides how long its steps take."""


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
    """Measure where the time of a step goes, of the model and data of `run`, or of the code in `source`; returns at
    once.

    `options` are those of a run that say what is trained and with what: `model`, `hparams_set`, `problem`, `hparams`,
    `data_dir`, `params`, `include`, `pip`, `wire`, `workers`. Each of the eight measures is taken `repeats` times, for
    so many `seconds`, on the cluster's own VMs, which it has as a run has them: it waits until some are free. Raises
    DeclarationError or ClusterError.
    """
    if repeats < LEAST_REPEATS:
        what = f"{repeats} repeats tell no stall from noise"
        raise DeclarationError(what, where="--repeats", fix=f"Take {LEAST_REPEATS} or more.")
    if run is not None:
        source, options = _of_run(run, cluster, source, options)
        chosen = _cluster_of(run, cluster)
    else:
        chosen = cluster if isinstance(cluster, Cluster) else finding.cluster(cluster)
    if not source and not options.get("model"):
        what = "What is to be measured is not named"
        fix = "Name a run, or --model, --hparams-set and --problem, or write the model's cell below %%transient_stalls."
        raise DeclarationError(what, fix=fix)
    declared = train(
        source=source, cluster=chosen, name=name, train_steps=repeats * len(MEASURES),
        **{**options, "stalls": repeats, "stall_seconds": seconds, "checkpoint_steps": None, "checkpoint_seconds": None,
           "noise_share": 0.0, "alarm_below": 0.0, "eval_steps": None},
    )  # fmt: skip
    return Stalls(declared.name, declared.cluster)


def stalls(name: str | None = None, cluster: Cluster | str | None = None) -> Stalls:
    """Return the measurement of stalls called `name`, as `run` finds a run; without a name the latest one.

    Raises UnknownWorkError and ClusterError.
    """

    def measured(candidate: Cluster) -> bool:
        return any(run.spec.stalls and name in (None, run.name) for run in candidate.state.of(RunState).values())

    if cluster is not None:
        chosen = cluster if isinstance(cluster, Cluster) else finding.cluster(cluster)
    else:
        chosen = finding.holding(measured)
    if chosen is None:
        what = f"There is no measurement of stalls {name}" if name else "There is no measurement of stalls yet"
        raise UnknownWorkError(what, fix="Start one: %transient_stalls RUN")
    return chosen.stalls(name)


def _cluster_of(run: Run | str, cluster: Cluster | str | None) -> Cluster:
    """Where it is measured: on the cluster that is named, else on the one where the run is, if that lives."""
    if cluster is not None:
        return cluster if isinstance(cluster, Cluster) else finding.cluster(cluster)
    its = run.cluster if isinstance(run, Run) else finding.run(run).cluster
    return finding.cluster() if its.state.over else its


def _of_run(
    run: Run | str, cluster: Cluster | str | None, source: str, options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The code of a run and the options with which it is measured."""
    if source or options.get("model"):
        raise DeclarationError("A run, or a model of its own, is measured, not both", fix="Leave one of the two out.")
    known = run if isinstance(run, Run) else _known(run, cluster)
    if is_brought(known.cluster.directory, known.name):
        what = f"{known.name} was declared on another machine, whose code is not run here for a measure"
        raise DeclarationError(what, fix="Measure it there, or write its cell below %%transient_stalls.")
    spec = declared_run(known.cluster.directory, known.state).spec
    there = known.directory
    kept = {name: value for name in _OF_A_RUN if (value := getattr(spec, name))}
    files = {each.name for each in (there / layout.PIP).glob("*")}
    pip = tuple(str(there / layout.PIP / each) if each in files else each for each in spec.pip)
    include = tuple(str(there / layout.INCLUDE / each) for each in spec.include)
    given = {name: value for name, value in options.items() if value}
    return (there / layout.CELL).read_text(encoding="utf-8"), {**kept, "pip": pip, "include": include, **given}


def _known(name: str, cluster: Cluster | str | None) -> Run:
    """The run of that name, of the cluster that is named if it has such a run."""
    if cluster is not None:
        there = cluster if isinstance(cluster, Cluster) else finding.cluster(cluster)
        if name in there.state.of(RunState):
            return there.run(name)
    return finding.run(name)
