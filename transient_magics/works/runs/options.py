"""The options of runs, of studies, and of their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.run import SETTINGS, RunSpec, choices
from ...protocol.study import StudySpec
from ...spec import check_run, parse_workers
from ...cli.option import (
    Option,
    batch_bounds,
    cache,
    condition,
    configurations,
    deadline,
    duration,
    evaluate_every,
    evaluation_batches,
    field,
    flag,
    gpus,
    group,
    interval,
    new_name,
    objective,
    one_of,
    positive,
    preparation,
    setting,
    settings_help,
    which_checkpoint,
    whole,
    word,
    zones,
)
from ...cli.options.shared import (
    BACKUP_WORKERS,
    CHECKPOINTS,
    CLUSTER,
    COST,
    DATA,
    EVALUATION,
    HPARAMS,
    HPARAMS_SET,
    INCLUDE,
    MODE,
    MODEL,
    OF_CLUSTER,
    ON_CLUSTER,
    OUTPUT,
    PARAM,
    PIP,
    PIP_BUILD,
    PROBLEM,
    RESEARCH,
    RUN,
    STEPS,
    TRAIN_STEPS,
    max_cost,
    max_hours,
    name_of,
    over,
    seed,
    wait_until,
    when_done,
)

TRIALS = "Trials"

OF_DEADLINES = ("finish_by", "max_cost", "confidence", "gpus", "zones", "adapt")
"""Options of runs that have a cluster for themselves. A study does not take them."""


def train() -> tuple[Option, ...]:
    """Return the options of a run."""
    return (
        *group(CLUSTER, *_cluster()),
        *group(DATA, *_data()),
        *group(STEPS, *_steps()),
        *group(EVALUATION, *_evaluation()),
        *group(CHECKPOINTS, *_checkpoints()),
        *group(COST, *_deadline()),
        *group(RESEARCH, *_research()),
    )


def _cluster() -> tuple[Option, ...]:
    return (
        ON_CLUSTER,
        name_of("run"),
        flag(
            "--workers",
            "how many of the cluster's workers the run takes, or with how many it starts and how many it "
            "takes at most; other runs train on the rest",
            parse_workers,
            default="all",
            metavar="N|LEAST:MOST",
        ),
        flag(
            "--ps-shards",
            "partitions of variables of 2 MiB and more, over the parameter servers",
            whole("--ps-shards"),
            default="1",
            metavar="N",
        ),
        when_done("run"),
        wait_until("the run is over"),
        OUTPUT,
    )


def _data() -> tuple[Option, ...]:
    return (
        MODEL,
        HPARAMS_SET,
        PROBLEM,
        HPARAMS,
        PARAM,
        INCLUDE,
        PIP,
        PIP_BUILD,
        flag(
            "--data-dir",
            "where the TFRecords are: a folder that every VM has, or gs://BUCKET/FOLDER, where they are "
            "generated once for all clusters",
            str,
            metavar="PLACE",
        ),
        flag(
            "--cache",
            "how much of large records a worker stores near it, and where: 2GB, 2GB:memory, 2GB:shm, or 0 "
            "for none. Nothing is evicted",
            cache,
            default="half of the free space of its disk",
            metavar="SIZE[:memory|:shm|:disk]",
        ),
        flag(
            "--prep",
            "prepare mini-batches on up to this number of Spot VMs without a GPU when steps wait for them: cpux4",
            preparation,
            default="none, the workers prepare them",
            metavar="cpuxN",
        ),
        flag(
            "--seed",
            "the seed of initial values and of what the cell draws, in every process. With one worker on "
            "CPUs and a model of the cell, examples, dropout and losses follow from it too; several workers take "
            "turns in any order, and Tensor2Tensor draws its own examples. With it, the noise of gradients is "
            "measured only if --set noise_share is given",
            whole("--seed", 0),
            default="drawn",
            metavar="N",
        ),
        flag("--check", "build one step of the graph before any worker starts", negated=True, default="on"),
    )


def _steps() -> tuple[Option, ...]:
    return (
        replace(TRAIN_STEPS, required=True),
        MODE,
        BACKUP_WORKERS,
        flag(
            "--batching",
            "size mini-batches: all alike, by the GPUs' known speeds, or by measured speeds",
            default="uniform",
            **one_of("--batching", choices("batching")),
        ),
        flag(
            "--batch-bounds",
            "with --batching, the least and most examples (of text: tokens) of a mini-batch",
            batch_bounds,
            default="2, and 8 times the declared size",
            metavar="LEAST,MOST",
        ),
        flag(
            "--wire",
            "how numbers travel between workers and parameter servers; bf16 halves the bytes",
            default="fp32",
            **one_of("--wire", choices("wire")),
        ),
    )


def _evaluation() -> tuple[Option, ...]:
    return (
        flag(
            "--eval-every", "evaluate every N steps", evaluate_every, default="end", name="eval_steps", metavar="N|end"
        ),
        flag(
            "--eval-batches",
            "how many batches of the dev split an evaluation takes, the first ones",
            evaluation_batches,
            choices=("100", "all"),
            metavar="N|all",
            default="100 for Tensor2Tensor's models; all for a cell's own, or, where all take more than a minute and "
            "a tenth of the run's time, a part drawn once at random",
        ),
        flag(
            "--keep-best",
            "also keep the checkpoint of the best evaluation: accuracy, or min distance where the name "
            "does not say which way is better. It makes --eval-every a tenth of the steps",
            objective("--keep-best"),
            choices=("accuracy", "loss"),
            metavar="METRIC",
        ),
        flag(
            "--stop-when",
            "end the run early, and keep its best checkpoint: 'accuracy no better in 3 evaluations'",
            condition,
            choices=("accuracy no better in 3 evaluations",),
            metavar="CONDITION",
        ),
    )


def _checkpoints() -> tuple[Option, ...]:
    return (
        flag(
            "--checkpoint-every",
            "save in steps or time: 500, 5m; auto: as often as saving takes 1% of the time, and at least every 10 min",
            interval,
            default="1000 steps, and at least every 10 min",
            choices=("auto",),
            metavar="STEPS|TIME|auto",
        ),
        flag("--keep", "how many of the last checkpoints to keep", whole("--keep"), default="5", metavar="N"),
        flag(
            "--resume",
            "continue from the latest checkpoint of that run; --train-steps counts its steps too",
            str,
            completes="run",
            metavar="RUN",
        ),
    )


def _deadline() -> tuple[Option, ...]:
    return (
        flag(
            "--finish-by",
            "when the run has to be done: 6h, or 18:00, the next one on this machine's clock. The "
            "controller adds and releases Spot workers for it, and rents workers on demand as late as possible",
            deadline,
            metavar="TIME|CLOCK",
        ),
        max_cost(
            "with --finish-by, the most that the run may cost, in US dollars; it is late where both cannot be met",
            "the rest of the cluster's limit",
        ),
        flag(
            "--gpus",
            "with --finish-by, the GPUs that workers may have",
            gpus,
            default="the cluster's",
            metavar="GPU,...",
        ),
        flag(
            "--zones",
            "with --finish-by, the zones of its workers",
            _zones,
            default="those of the cluster",
            completes="zone",
            metavar="ZONE,...",
        ),
        flag(
            "--adapt",
            "with --finish-by, who changes the workers: auto: the controller; ask: it proposes changes; "
            "off: it only reports",
            default="auto",
            **one_of("--adapt", choices("adapt")),
        ),
    )


def _research() -> tuple[Option, ...]:
    return (
        flag(
            "--lr-policy",
            "the n of the learning rate's 1/sqrt(n): active: the workers that train (with --mode sync: "
            "1); slots: --max-workers; fixed: 1",
            default="active",
            **one_of("--lr-policy", choices("lr_policy")),
        ),
        flag(
            "--damping",
            "staleness: a gradient that comes N steps late has 1/N of the learning rate, on top of --lr-policy",
            default="none",
            **one_of("--damping", choices("damping")),
        ),
        _settings(SETTINGS),
        flag(
            "--pace",
            "the least seconds of a worker's step; with published GPU speeds in the weather, of a K80's",
            positive("--pace"),
            name="pace_seconds",
            metavar="SECONDS",
        ),
    )


def _settings(settings: Mapping[str, str]) -> Option:
    return flag(
        "--set",
        settings_help(settings, RunSpec),
        setting(settings, field(RunSpec)),
        name="settings",
        many="extend",
        choices=tuple(f"{name}=" for name in settings),
        metavar="NAME=VALUE",
    )


def study() -> tuple[Option, ...]:
    """Return the options of a study, and those of its runs that it takes too."""
    own = (
        *group(TRIALS, *_trials()),
        *group(
            CLUSTER,
            flag(
                "--on",
                "try each point on each of these machines: k80x1,k80x4,k80x2+p100x2. Those that the cluster "
                "has are parts of it. Each other one is a cluster of its own, one after the other, within --max-cost "
                "and --max-hours",
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
                "how many runs of the study train on one VM at a time: they share its GPU, its memory and its cores",
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
            max_cost("end the study when its trials have cost this many US dollars, and keep what is done"),
            max_hours("end the study after this time"),
        ),
    )
    left_out = {option.name for option in own} | {"resume", "prep", "settings", *OF_DEADLINES}
    settings = {name: meaning for name, meaning in SETTINGS.items() if name not in OF_DEADLINES}
    shared = [option for option in train() if option.name not in left_out]
    return (*own, *shared, *group(RESEARCH, _settings(settings)))


def _trials() -> tuple[Option, ...]:
    return (
        over(
            "what to try; a Tensor2Tensor model takes them as hyper-parameters, a cell's own model reads them by "
            "their names"
        ),
        flag("--trials", "how many points to try", whole("--trials"), default="all of a grid, else 20", metavar="N"),
        flag(
            "--sampler",
            "how to choose points: grid tries each once; random draws them; Optuna's tpe and gp learn "
            "from earlier trials; gp needs torch",
            default="grid for choices alone, else tpe",
            **one_of("--sampler", choices("sampler", StudySpec)),
        ),
        flag(
            "--pruner",
            "end trials early that will not be the best: median: worse than half of the others at the "
            "same step; hyperband: in rounds",
            default="none",
            **one_of("--pruner", choices("pruner", StudySpec)),
        ),
        flag(
            "--objective",
            "what trials are judged by: 'max accuracy', 'min loss'; of the last evaluation, with "
            "--keep-best or --stop-when of the best one",
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
            "a trial that makes no step for this time has failed",
            duration("--give-up-after", "m"),
            default="15m",
            name="give_up_seconds",
            metavar="TIME",
        ),
    )


def results() -> dict[str, tuple[Option, ...]]:
    """Return the options of what is done with a run's results, by sub-command."""
    return {
        "export": (
            RUN,
            word("folder", "FOLDER", "where the model goes; new or empty", completes="path"),
            OF_CLUSTER,
            flag(
                "--data-dir", "where the problem's vocabulary is on this machine, if it has one", str, metavar="FOLDER"
            ),
            flag(
                "--checkpoint",
                "which one: last, best (of a run with --keep-best), or a step",
                which_checkpoint,
                default="last",
                choices=("last", "best"),
                metavar="last|best|STEP",
            ),
            flag("--trust", "run the code of a run that another machine declared"),
        ),
        "tensorboard": (
            RUN,
            word("folder", "FOLDER", "where they go", many="?", completes="path", default="the run's own folder"),
            OF_CLUSTER,
        ),
    }


def _zones(text: str) -> tuple[str, ...]:
    return zones(text, "--zones")


def check_study(values: dict[str, Any], called: str) -> None:
    """As of a run, but for what a study has its own words for."""
    own = {name: values.pop(name) for name in ("workers", "max_cost") if name in values}
    check_train(values, called)
    values |= own


def check_train(values: dict[str, Any], called: str) -> None:
    """What several options of a run say together."""
    if "params" in values:
        values["params"] = dict(values["params"])
    for option in ("checkpoint_every", "batch_bounds", "workers", "settings"):  # one option, several fields
        values.update(values.pop(option, {}))
    check_run(values)
    if values.get("eval_steps") == 0:  # as without it
        del values["eval_steps"]
    split_paths(values)


def split_paths(values: dict[str, Any]) -> None:
    """`--include` and `--pip`, each path by itself."""
    for key in ("include", "pip"):
        if key in values:
            # With commas in a TOML list or by habit; a path that has a comma in its name exists as it stands.
            pieces = (each for text in values[key] for each in ([text] if Path(text).exists() else text.split(",")))
            values[key] = tuple(piece for piece in pieces if piece)
