"""The declaration of a study, of which all runs are trials."""

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
from ...protocol.study import Dimension, StudySpec, count_points, parse_space
from ...spec import parse_name
from ...spec.namespace import refusal
from .configurations import Part, StudyPreview, cluster_name, parse_configurations, parts
from .handle import Study
from .sampling import missing

_TRIALS = 20
_ATTEMPTS = 20
"""Automatic names tried, where other processes take one after the other."""
_LIMITS = ("max_cost", "max_hours", "give_up_seconds")
_Arguments = ParamSpec("_Arguments")
_Declared = TypeVar("_Declared")


def _with_free_name(declare: Callable[_Arguments, _Declared]) -> Callable[_Arguments, _Declared]:
    """Call `declare` again where another process has taken the automatic name that it chose."""

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
    """Declare a study of the code in `source` and return at once. Raises DeclarationError or
    ClusterError.

    What is tried and how is named as the options of `%%sweep`; `on` is its text, or a list of
    configurations. `options` are `max_cost` in US dollars, `max_hours`, `give_up_seconds`, and
    those of a run (`train`), which hold for all runs of the study. Configurations that the cluster
    holds are tried on parts of it, each other one on a cluster of the study's own, one after the
    other. With `dry_run` nothing is declared: the answer says where each is, and the price.
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
    lacking = [each for each in configurations if not (running and running.holds(each))]
    if lacking and trials is not None:
        what = "A study on several clusters tries each point on each configuration"
        raise DeclarationError(what, where="--trials", fix="Leave out --trials.")
    if name:
        name = parse_name(name, "--name")
    else:
        name = _free_name(chosen, lacking)
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
        options.setdefault("noise_share", 0.0)  # as of every run with a seed
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
        check_hyperparameters([each.name for each in space], source, where="--over")
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
                "space": [asdict(each) for each in space],
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
                "parts": [each.spec.name for each in found] if lacking else (),
            }
        )
    except ValueError as error:
        raise option_error(error) from None
    if package := missing(spec):
        if package == "optuna":
            fix = install_extra("sweep")
        else:
            fix = f"Run: pip install {package}"
        raise DeclarationError(f"{package} is not installed", where="this study needs it", fix=fix)
    if dry_run:
        return StudyPreview(spec, tuple(found), source)
    each_tries = max(1, count_points(space))
    specs = []
    first = 0
    for part, its_run in zip(found, runs, strict=True):
        if lacking:
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
        for part, its_spec in reversed(
            own
        ):  # so that the first one knows of none that is not there
            refuse_unreachable(part.spec)
            made.append(make(part.spec, partial(write_study, its_spec=its_spec)))
        if chosen and not found[0].own:
            claims.declare(
                chosen, "study", name, record=lambda _: specs[0].to_dict(), fill=payload.fill
            )
    except TransientError:
        for directory in made:  # no controller was started on them
            shutil.rmtree(directory, ignore_errors=True)
        raise
    if chosen and not found[0].own:
        claims.announce(chosen, "study", name)
    for part, _ in own:
        commands.start_controller(places.cluster(part.spec.name))
        lookup.set_current(Cluster(part.spec.name))
    return Study(name, Cluster(found[0].spec.name))


def _free_name(chosen: Cluster | None, lacking: Sequence[str]) -> str:
    """The first of `study-1`, `study-2`, ... that no study here is called, and no cluster of its
    own would be.
    """
    number = 1
    while True:
        if chosen is None:
            name = f"study-{number}"
        else:
            name = claims.free_name(chosen, "study", "study", first=number)
        if all(is_free(cluster_name(name, each, place)) for place, each in enumerate(lacking, 1)):
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
    """The machines of each configuration, in their written form. Raises DeclarationError."""
    if not on:
        return ()
    if workers is not None:
        what = "--on says how many workers each run takes"
        raise DeclarationError(
            what, where="--workers", fix="Leave out --workers, or write --on k80x4."
        )
    return parse_configurations(on)


def _usual_sampler(space: tuple[Dimension, ...], configurations: tuple[str, ...]) -> str:
    if not space and not configurations:
        return "none"
    if all(each.kind == "choice" for each in space):
        return "grid"
    return "tpe"
