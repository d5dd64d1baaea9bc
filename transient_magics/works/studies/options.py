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
                "try each point on each of these machines: k80x1,k80x4,k80x2+p100x2. Those that "
                "the cluster has are parts of it. Each other one is a cluster of its own, one "
                "after the other, within --max-cost and --max-hours",
                configurations,
                metavar="MACHINES,...",
            ),
            flag(
                "--workers",
                "how many workers each run takes; other runs train on the rest",
                whole("--workers"),
                default="1",
                metavar="N",
            ),
            flag(
                "--per-vm",
                "how many runs of the study train on one VM at a time: they share its GPU, its "
                "memory and its cores",
                whole("--per-vm"),
                default="1",
                metavar="N",
            ),
            flag(
                "--name",
                "the study's name; its runs are NAME-0, NAME-1, ...",
                new_name,
                default="study-1, study-2, ...",
            ),
            when_done("study"),
            flag("--dry-run", "show its machines, clusters and their price; declare nothing"),
            wait_until("the study is over"),
        ),
        *group(
            DATA,
            flag(
                "--share-input",
                "with --per-vm, one process on a VM reads, decodes and batches a problem's records "
                "once; all runs there take the same mini-batches, each at most once",
            ),
            seed("the points, and of repeated runs", "drawn"),
        ),
        *group(
            COST,
            max_cost(
                "end the study when its trials have cost this many US dollars, and keep what is "
                "done"
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
            "what to try; a Tensor2Tensor model takes them as hyper-parameters, a cell's own "
            "model reads them by their names"
        ),
        flag(
            "--trials",
            "how many points to try",
            whole("--trials"),
            default="all of a grid, else 20",
            metavar="N",
        ),
        flag(
            "--sampler",
            "how to choose points: grid tries each once; random draws them; Optuna's tpe and gp "
            "learn from earlier trials; gp needs torch",
            default="grid for choices alone, else tpe",
            **one_of("--sampler", choices("sampler", StudySpec)),
        ),
        flag(
            "--pruner",
            "end trials early that will not be the best: median: worse than half of the others at "
            "the same step; hyperband: in rounds",
            default="none",
            **one_of("--pruner", choices("pruner", StudySpec)),
        ),
        flag(
            "--objective",
            "the metric that rates trials, 'max accuracy' or 'min loss': that of the last "
            "evaluation, with --keep-best or --stop-when that of the best one",
            objective("--objective"),
            default="that of --keep-best or --stop-when",
            choices=("max accuracy", "min loss"),
            metavar="METRIC",
        ),
        flag(
            "--repeat",
            "train each point this many times, each with its own seed; its value is their mean",
            whole("--repeat"),
            default="1",
            metavar="N",
        ),
        flag(
            "--give-up-after",
            "count a trial as failed if it makes no step for this time",
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
            "Train a model many times with different parameters, to find the best ones. Options "
            "of a run apply to all of its runs. Each trial starts as soon as workers are free; "
            "runs that wait already start before it."
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
            "The code is that of a run: see %%train -h. A model of its own reads the values by "
            "their names, as in keras.optimizers.Adam(lr)."
        ),
        typed="sweep",
        dry_run=True,
    ),
)
