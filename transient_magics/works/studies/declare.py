"""The declaration of a study."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ... import places
from ...client import commands, lookup
from ...client.cell import check_hyperparameters
from ...client.cluster_handle import Cluster
from ...client.declaring import Declaration, claims, refuse_unreachable
from ...client.declaring.declaration import option_error
from ...client.declaring.payload import Payload
from ...client.declaring.runs import EVALUATIONS, specified
from ...client.launch import is_free, make
from ...client.lookup import clusters
from ...client.new_work import NewWork
from ...errors import ClusterError, DeclarationError, NameTakenError, TransientError, install_extra
from ...protocol import layout
from ...protocol.space import Dimension, count_points, parse_space
from ...spec import parse_name
from ...spec.namespace import refusal
from .configurations import Part, StudyPreview, cluster_name, parse_configurations, parts
from .handle import Study
from .sampling import missing
from .spec import StudySpec

_TRIALS = 20
_ATTEMPTS = 20
"""Attempts with automatic names, in case other processes take them first."""
_LIMITS = ("max_cost", "max_hours", "give_up_seconds")
_Arguments = ParamSpec("_Arguments")
_Declared = TypeVar("_Declared")


def _with_free_name(declare: Callable[_Arguments, _Declared]) -> Callable[_Arguments, _Declared]:
    """Call `declare` again if another process has taken the automatic name that it chose."""

    @wraps(declare)
    def declare_again(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Declared:
        for _ in range(_ATTEMPTS - 1 if kwargs.get("name") is None else 0):
            try:
                return declare(*args, **kwargs)
            except NameTakenError:
                continue
        return declare(*args, **kwargs)

    return declare_again


@_with_free_name
def declare_study(
    *,
    source: str,
    train_steps: int,
    over: str = "",
    trials: int | None = None,
    sampler: str | None = None,
    pruner: str = "none",
    objective: str = "",
    repeat: int = 1,
    workers: int | None = None,
    per_vm: int = 1,
    on: str | Sequence[str] = (),
    seed: int | None = None,
    cluster: Cluster | str | None = None,
    name: str | None = None,
    include: str | Sequence[str] = (),
    dry_run: bool = False,
    **options: Any,
) -> Study | StudyPreview:
    """Declare a study of the code in `source` and return immediately.

    Configurations that fit into the cluster use its workers. For each other configuration, the
    study declares a cluster, one after another.

    Parameters
    ----------
    source : str
        The code, as in the cell of `%%sweep`.
    train_steps : int
        The steps of each run.
    over : str
        The space, such as `"lr=1e-3:1e-1:log"`.
    trials : int, optional
        The number of points (default: all of a grid, else 20).
    sampler, pruner, objective : str
        How points are chosen, which trials end early, and the metric that rates them.
    repeat : int
        The runs of each point, with different seeds.
    workers, per_vm : int
        The workers of each run, and the runs on each VM.
    on : str or sequence of str
        Configurations of machines on which each point is tried.
    seed : int, optional
        The seed of the points.
    cluster : Cluster or str, optional
        The cluster (default: the current one).
    name : str, optional
        The name of the study (default: `study-1`, `study-2`, ...).
    include : str or sequence of str
        Files and folders to send along.
    dry_run : bool
        Return a preview with clusters and prices, and declare nothing.
    options
        `max_cost` in US dollars, `max_hours`, `give_up_seconds`, and options of a run (`train`),
        which apply to all runs of the study.

    Returns
    -------
    Study or StudyPreview
        The handle, or the preview.

    Raises
    ------
    DeclarationError
        An option is invalid.
    ClusterError
        There is no cluster for it, or its controller cannot be started.

    Examples
    --------
    >>> study = tm.declare_study(source=code, train_steps=500, over="lr=0.01,0.1")
    >>> study.wait()
    """
    payload = Payload.of(
        source, include, options.pop("pip", None) or (), build=bool(options.get("pip_build"))
    )
    configurations = _configurations(on, workers)
    new = None
    if cluster is not None or not configurations or clusters():
        new = NewWork("study", cluster, name, trains=True)
    chosen = new.cluster if new else None
    running = chosen.state.spec if chosen else None
    elsewhere = [
        machines for machines in configurations if not (running and running.holds(machines))
    ]
    if elsewhere and trials is not None:
        what = "A study on several clusters always tries each point on each configuration"
        raise DeclarationError(what, where="--trials", fix="Leave out --trials.")
    if name:
        name = parse_name(name, "--name")
    else:
        name = _free_name(chosen, elsewhere)
    if why := refusal("", "study", name, {}):
        raise NameTakenError(why, fix="Choose another --name.")
    limits = {key: options.pop(key) for key in _LIMITS if options.get(key) is not None}
    max_cost = limits.get("max_cost")
    max_hours = limits.get("max_hours", Declaration.max_hours)
    found = parts(configurations, running, name, max_cost=max_cost, max_hours=max_hours)
    if not found and running:
        found = [Part(running, (), own=False)]
    if not found:
        raise ClusterError(
            f"{chosen.name if chosen else 'The cluster'} is not declared yet",
            fix="Try again in a moment.",
        )
    if pruner != "none" and options.get("eval_steps") is None:
        options["eval_steps"] = max(1, train_steps // EVALUATIONS)
    if repeat > 1:
        # Every run with a seed has this default.
        options.setdefault("noise_share", 0.0)
    options |= {
        "name": name,
        "train_steps": train_steps,
        "seed": seed,
        "drawn_seed": secrets.randbelow(2**31),
    }
    if configurations:
        of_each = None
    else:
        of_each = workers or 1
    own_end = {**options, "when_done": "cluster"}
    runs = [
        specified(part.spec, own_end if part.own else options, of_each, payload) for part in found
    ]
    run = runs[0]
    space = _space(over)
    if run.model and not payload.include:
        check_hyperparameters([dimension.name for dimension in space], source, where="--over")
    ordered = tuple(configuration for part in found for configuration in part.configurations)
    try:
        sampler = sampler or _usual_sampler(space, configurations)
        points = count_points(space) * max(1, len(configurations))
        if sampler in ("random", "tpe", "gp"):
            usual = _TRIALS
        else:
            usual = max(1, points)
        spec = StudySpec.from_dict(
            {
                "name": name,
                "run": run.without_token(),
                "objective": objective or str(run.objective or ""),
                "space": [asdict(dimension) for dimension in space],
                "trials": trials or usual,
                "sampler": sampler,
                "pruner": pruner,
                "repeat": repeat,
                "workers": workers or 1,
                "per_vm": per_vm,
                "on": ordered,
                "seed": secrets.randbelow(2**31) if seed is None else seed,
                "declared_at": time.time(),
                **limits,
                "parts": [part.spec.name for part in found] if elsewhere else (),
            }
        )
    except ValueError as error:
        raise option_error(error) from None
    if package := missing(spec):
        if package == "optuna":
            fix = install_extra("sweep")
        else:
            fix = f"Run: pip install {package}"
        raise DeclarationError(f"The study needs {package}, which is not installed", fix=fix)
    if dry_run:
        return StudyPreview(spec, tuple(found), source)
    each_tries = max(1, count_points(space))
    specs = []
    first = 0
    for part, its_run in zip(found, runs, strict=True):
        if elsewhere:
            many = len(part.configurations) * each_tries
        else:
            many = spec.trials
        specs.append(replace(spec, run=its_run, first=first, trials=many))
        first += many

    def write_study(cluster: Path, its_spec: StudySpec) -> None:
        folder = places.private(cluster / layout.STUDIES / name)
        payload.fill(folder)
        claims.write_record(folder / layout.STUDY, its_spec.to_dict())

    own = [(part, its_spec) for part, its_spec in zip(found, specs, strict=True) if part.own]
    made = list[Path]()
    try:
        # In reverse order, so that the first cluster only refers to existing ones.
        for part, its_spec in reversed(own):
            refuse_unreachable(part.spec)
            made.append(make(part.spec, partial(write_study, its_spec=its_spec)))
        if chosen and not found[0].own:
            claims.declare(
                chosen, "study", name, record=lambda _: specs[0].to_dict(), fill=payload.fill
            )
    except TransientError:
        # Their controllers were not started.
        for directory in made:
            shutil.rmtree(directory, ignore_errors=True)
        raise
    if chosen and not found[0].own:
        claims.announce(chosen, "study", name)
    for part, _ in own:
        commands.start_controller(places.cluster(part.spec.name))
        lookup.set_current(Cluster(part.spec.name))
    return Study(name, Cluster(found[0].spec.name))


def _free_name(chosen: Cluster | None, lacking: Sequence[str]) -> str:
    """Return the first of `study-1`, `study-2`, ... that is free, for its own clusters, too."""
    number = 1
    while True:
        if chosen is None:
            name = f"study-{number}"
        else:
            name = claims.free_name(chosen, "study", "study", first=number)
        if all(
            is_free(cluster_name(name, configuration, place))
            for place, configuration in enumerate(lacking, 1)
        ):
            return name
        number = int(name.rpartition("-")[2]) + 1


def _space(over: str) -> tuple[Dimension, ...]:
    try:
        if over:
            return parse_space(over)
        return ()
    except ValueError as error:
        raise DeclarationError(f"Invalid --over: {error}") from None


def _configurations(on: str | Sequence[str], workers: int | None) -> tuple[str, ...]:
    """Return the machines of each configuration as text. Raises DeclarationError."""
    if not on:
        return ()
    if workers is not None:
        what = "--on and --workers cannot be used together"
        raise DeclarationError(
            what, where="--workers", fix="Leave out --workers, or write --on k80x4."
        )
    return parse_configurations(on)


def _usual_sampler(space: tuple[Dimension, ...], configurations: tuple[str, ...]) -> str:
    if not space and not configurations:
        return "none"
    if all(dimension.kind == "choice" for dimension in space):
        return "grid"
    return "tpe"
