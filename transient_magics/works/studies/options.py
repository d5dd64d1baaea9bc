"""The options of a study, and those of its runs that it takes too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...cli.option import Entry, Option, duration, flag, group, new_name, objective, one_of, whole
from ...cli.options.shared import (
    CLUSTER,
    COST,
    DATA,
    RESEARCH,
    TRAIN_STEPS,
    max_cost,
    max_hours,
    over,
    seed,
    wait_until,
    when_done,
)
from ...cli.options.work import Code, WorkCommand, with_included
from ...protocol.run import SETTINGS, choices
from ...protocol.space import parse_space
from ..runs.options import OF_DEADLINES, check_train, settings_option, train
from .spec import StudySpec

if TYPE_CHECKING:
    from .configurations import StudyPreview
    from .handle import Study

TRIALS = "Trials"


def study() -> tuple[Option, ...]:
    """Return the options of a study, and those of its runs that it takes too."""
    own = (
        *group(TRIALS, *_trials()),
        *group(
            CLUSTER,
            flag(
                "--on",
                "train each trial on each of these machines: k80x1,k80x4,k80x2+p100x2. Machines "
                "that the cluster has are used there. For the others, the study declares "
                "clusters, one after another, within --max-cost and --max-hours",
                configurations,
                metavar="MACHINES,...",
            ),
            flag(
                "--workers",
                "number of workers of each run",
                whole("--workers"),
                default="1",
                metavar="N",
            ),
            flag(
                "--per-vm",
                "number of runs of the study that train on one VM at the same time. They share "
                "its GPU, memory and cores",
                whole("--per-vm"),
                default="1",
                metavar="N",
            ),
            flag(
                "--name",
                "name of the study; its trials are NAME-0, NAME-1, ...",
                new_name,
                default="study-1, study-2, ...",
            ),
            when_done("study"),
            flag(
                "--dry-run", "show the machines, the clusters and their price, and declare nothing"
            ),
            wait_until("the study has ended"),
        ),
        *group(
            DATA,
            flag(
                "--share-input",
                "with --per-vm: one process on each VM prepares the mini-batches of a "
                "Tensor2Tensor problem for all runs there. Each run uses each mini-batch at most "
                "once",
            ),
            seed("the points and of repeated runs", "random"),
        ),
        *group(
            COST,
            max_cost(
                "end the study when its trials have cost this amount in US dollars, and keep its "
                "results"
            ),
            max_hours("end the study after this time"),
        ),
    )
    left_out = {option.name for option in own} | {
        "spec",
        "keep_cluster",
        "project",
        "resume",
        "prep",
        "settings",
        *OF_DEADLINES,
    }
    settings = {name: meaning for name, meaning in SETTINGS.items() if name not in OF_DEADLINES}
    shared = [
        option
        for option in train(replace(TRAIN_STEPS, required=True))
        if option.name not in left_out
    ]
    return (*own, *shared, *group(RESEARCH, settings_option(settings)))


def _trials() -> tuple[Option, ...]:
    return (
        over(
            "the values to try. For a Tensor2Tensor model they are hyperparameters; otherwise the "
            "cell reads them by their names"
        ),
        flag(
            "--trials",
            "number of trials",
            whole("--trials"),
            default="all points of a grid, otherwise 20",
            metavar="N",
        ),
        flag(
            "--sampler",
            "how to choose points. grid: each point once; random: at random; tpe, gp: Optuna's "
            "samplers, which learn from earlier trials (gp requires torch)",
            default="grid if --over has no ranges, otherwise tpe",
            **one_of("--sampler", choices("sampler", StudySpec)),
        ),
        flag(
            "--pruner",
            "end trials early that will probably not be the best. median: those that are worse "
            "than half of the others at the same step; hyperband: in rounds",
            default="none",
            **one_of("--pruner", choices("pruner", StudySpec)),
        ),
        flag(
            "--objective",
            "the metric that rates a trial: 'max accuracy' or 'min loss'. The last evaluation "
            "counts; with --keep-best or --stop-when, the best one",
            objective("--objective"),
            default="the metric of --keep-best or --stop-when",
            choices=("max accuracy", "min loss"),
            metavar="METRIC",
        ),
        flag(
            "--repeat",
            "train each point this number of times with different seeds, and rate it by the mean",
            whole("--repeat"),
            default="1",
            metavar="N",
        ),
        flag(
            "--give-up-after",
            "count a trial as failed if it completes no step for this time",
            duration("--give-up-after", "m"),
            default="15m",
            name="give_up_seconds",
            metavar="TIME",
        ),
    )


def check_study(values: dict[str, Any], called: str) -> None:
    """Check the options of a study like those of a run, except those that differ."""
    own = {name: values.pop(name) for name in ("workers", "max_cost") if name in values}
    check_train(values, called)
    values |= own


def _declare(values: dict[str, Any], code: Code, *, dry_run: bool = False) -> Study | StudyPreview:
    """Declare a study of the code, or preview it."""
    from .declare import declare_study

    values = with_included(values)
    over = values.get("over")
    code.check(values, [dimension.name for dimension in parse_space(over)] if over else [])
    return declare_study(
        source=code.source, line_offset=code.line_offset, dry_run=dry_run, **values
    )


def configurations(text: str) -> tuple[str, ...]:
    """Return the machines on which a study trains, checked."""
    from .configurations import parse_configurations

    return parse_configurations(text)


COMMANDS = (
    WorkCommand(
        "study",
        study,
        _declare,
        guide="sweeps",
        rank=1,
        description=(
            "Train a model many times with different parameters, to find the best ones. The "
            "options of %%train apply to all of these runs. A trial starts when workers are free "
            "and no earlier run waits."
        ),
        entries=(
            Entry(
                "sweep FILE.py [options]",
                "%%sweep [options]",
                "Train many times with different parameters, to find the best ones",
            ),
        ),
        check=check_study,
        example="--over 'lr=1e-3:1e-1:log' --trials 20 --objective 'max accuracy' --train-steps "
        "2000",
        epilog=(
            "The code is the same as for %%train: see %%train -h. The model of a cell reads the "
            "values by their names, as in keras.optimizers.Adam(lr)."
        ),
        typed="sweep",
        dry_run=True,
    ),
)
