"""Declaring studies: as `training` declares a run, once for all that are to follow."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..errors import ClusterError, DeclarationError
from ..protocol import layout
from ..protocol.cluster_commands import Study as Begin
from ..protocol.study import Dimension, StudySpec, count_points, parse_space
from ..spec import parse_name
from ..trials.optuna_study import missing
from . import commands
from .cell import check_hyperparameters
from .configurations import all_of, parse_configurations
from .finding import cluster as find_cluster
from .handles import Cluster, Study
from .training import EVALUATIONS, free_name, refuse_to_train, refuse_when_ending, specified, write

_TRIALS = 20
_LIMITS = ("max_cost", "max_hours", "give_up_seconds")


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
    on: str | Sequence[str] = (),
    seed: int | None = None,
    cluster: Cluster | str | None = None,
    name: str | None = None,
    include: tuple[str, ...] = (),
    **options: Any,
) -> Study:
    """Declare a study of the code in `source` and return at once. Raises DeclarationError or ClusterError.

    What is tried and how is named as the options of `%%sweep`; `on` is its text, or a list of configurations. `options`
    are `max_cost` in US dollars, `max_hours`, `give_up_seconds`, and those of a run (`train`), which hold for all runs
    of the study.
    """
    configurations = _configurations(on, workers)
    chosen = cluster if isinstance(cluster, Cluster) else find_cluster(cluster)
    refuse_when_ending(chosen)
    refuse_to_train(chosen)
    _refuse_what_it_lacks(configurations, chosen)
    folders = chosen.directory / layout.STUDIES
    name = parse_name(name, "--name") if name else free_name(folders, "study")
    if (folders / name).exists():
        raise ClusterError(f"{chosen.name} has a study {name} already", fix="Choose another --name.")
    if name == "run":
        raise ClusterError("Runs without a name are called run-1, run-2 and so on", fix="Choose another --name.")
    if taken := next(iter((chosen.directory / layout.RUNS).glob(f"{name}-[0-9]*")), None):
        raise ClusterError(f"{chosen.name} has a run {taken.name} already", fix="Choose another --name.")
    limits = {key: options.pop(key) for key in _LIMITS if options.get(key) is not None}
    if pruner != "none" and options.get("eval_steps") is None:
        options["eval_steps"] = max(1, train_steps // EVALUATIONS)
    if repeat > 1:
        options.setdefault("noise_share", 0.0)  # as of every run with a seed
    options |= {"name": name, "train_steps": train_steps, "seed": seed}
    run, files = specified(chosen, options, None if configurations else workers or 1, include, source)
    space = _space(over)
    if run.model and not include:
        check_hyperparameters([each.name for each in space], source, where="--over")
    try:
        sampler = sampler or _usual_sampler(space, configurations)
        points = count_points(space) * max(1, len(configurations))
        usual = _TRIALS if sampler in ("random", "tpe", "gp") else max(1, points)
        spec = StudySpec.from_dict({
            "name": name, "run": run.without_token(), "objective": objective or str(run.objective or ""),
            "space": [asdict(each) for each in space], "trials": trials or usual, "sampler": sampler, "pruner": pruner,
            "repeat": repeat, "workers": workers or 1, "on": configurations,
            "seed": secrets.randbelow(2**31) if seed is None else seed,
            "declared_at": time.time(), **limits,
        })  # fmt: skip
    except ValueError as error:
        option, _, why = str(error).partition(": ")
        raise DeclarationError(f"Invalid --{option.replace('_', '-')}: {why}" if why else str(error)) from None
    if package := missing(spec):
        fix = "pip install 'transient-magics[sweep]'" if package == "optuna" else f"pip install {package}"
        raise DeclarationError(f"{package} is not installed", where="this study needs it", fix=f"{fix}.")
    write(folders / name, layout.STUDY, spec.to_dict(), source, include, files)
    commands.send(chosen.directory, Begin(study=name))
    return Study(name, chosen)


def _space(over: str) -> tuple[Dimension, ...]:
    try:
        return parse_space(over) if over else ()
    except ValueError as error:
        raise DeclarationError(f"Invalid --over: {error}") from None


def _configurations(on: str | Sequence[str], workers: int | None) -> tuple[str, ...]:
    """The machines of each configuration, in their written form. Raises DeclarationError."""
    if not on:
        return ()
    if workers is not None:
        what = "--on says how many workers each run takes"
        raise DeclarationError(what, where="--workers", fix="Leave out --workers, or write --on k80x4.")
    return parse_configurations(on)


def _refuse_what_it_lacks(configurations: tuple[str, ...], chosen: Cluster) -> None:
    spec = chosen.state.spec
    if spec and (lacking := [each for each in configurations if not spec.holds(each)]):
        what = f"{chosen.name} is {spec.spec}, and holds no {' and no '.join(lacking)}"
        fix = f"Resize it first: %transient_cluster resize {chosen.name} {all_of([spec.spec, *lacking])}"
        raise DeclarationError(what, where="--on", fix=fix)


def _usual_sampler(space: tuple[Dimension, ...], configurations: tuple[str, ...]) -> str:
    if not space and not configurations:
        return "none"
    return "grid" if all(each.kind == "choice" for each in space) else "tpe"
