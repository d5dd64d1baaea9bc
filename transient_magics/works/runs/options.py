"""The options of runs, of studies, and of their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...cli.option import (
    Entry,
    Option,
    batch_bounds,
    cache,
    condition,
    deadline,
    duration,
    evaluate_every,
    evaluation_batches,
    field,
    flag,
    gpus,
    group,
    interval,
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
    PROJECT,
    RESEARCH,
    RUN,
    STEPS,
    TRAIN_STEPS,
    max_cost,
    max_hours,
    name_of,
    split_paths,
    wait_until,
    when_done,
)
from ...cli.options.work import Code, WorkCommand, with_included
from ...errors import DeclarationError
from ...protocol.run import SETTINGS, RunSpec, choices
from ...spec import check_run, parse_workers

if TYPE_CHECKING:
    from .handle import Run
    from .stalls.handle import Stalls

TRIALS = "Trials"

OF_DEADLINES = ("finish_by", "max_cost", "confidence", "gpus", "zones", "adapt")
"""Options of runs that have a cluster for themselves. A study does not take them."""


_TRAIN_STEPS = replace(TRAIN_STEPS, default="as the cell's model.fit declares")


_OF_OWN_CLUSTER = {
    "keep_cluster": "--keep-cluster",
    "project": "--project",
    "max_hours": "--max-hours",
}
"""Options that need workers to be named."""


def train(steps: Option = _TRAIN_STEPS) -> tuple[Option, ...]:
    """Return the options of a run; `steps` is that of its number of steps."""
    return (
        word(
            "spec",
            "SPEC",
            "the workers, such as k80x4. If the notebook has no cluster, one is declared for the "
            "run and deleted afterwards",
            many="?",
            completes="gpu",
        ),
        *group(CLUSTER, *_cluster()),
        *group(DATA, *_data()),
        *group(STEPS, steps, *_steps()),
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
            "number of workers that the run uses; LEAST:MOST: it starts with LEAST workers, and "
            "uses at most MOST. Other runs can use the remaining workers",
            parse_workers,
            default="all workers",
            metavar="N|LEAST:MOST",
        ),
        flag(
            "--ps-shards",
            "number of parts into which variables of 2 MiB or more are split, over the parameter "
            "servers",
            whole("--ps-shards"),
            default="1",
            metavar="N",
        ),
        when_done("run"),
        flag("--keep-cluster", "with SPEC, keep the cluster that was declared for the run"),
        PROJECT,
        wait_until("the run has ended"),
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
            "the folder with the TFRecord files: a folder that exists on every VM, or "
            "gs://BUCKET/FOLDER, where they are generated once for all clusters",
            str,
            metavar="PLACE",
        ),
        flag(
            "--cache",
            "how much data each worker stores, and where: 2GB, 2GB:memory or 2GB:shm; 0: nothing",
            cache,
            default="half of the free space on the worker's disk",
            metavar="SIZE[:memory|:shm|:disk]",
        ),
        flag(
            "--prep",
            "prepare mini-batches on additional Spot VMs without a GPU, at most this number, if "
            "steps wait for mini-batches: cpux4",
            preparation,
            default="the workers prepare them",
            metavar="cpuxN",
        ),
        flag(
            "--seed",
            "the seed of the initial values, and of the random numbers that the cell draws in "
            "every process. With one worker on CPUs and a cell's model, the examples, dropout and "
            "losses are also reproducible. With --seed, the noise of gradients is measured only if "
            "--set noise_share is given",
            whole("--seed", 0),
            default="random",
            metavar="N",
        ),
        flag(
            "--check",
            "build one step of the graph before workers start, to find errors early. Without the "
            "check, --train-steps is needed, and cells with callbacks or several calls of "
            "model.fit are rejected",
            negated=True,
            default="on",
        ),
    )


def _steps() -> tuple[Option, ...]:
    return (
        MODE,
        BACKUP_WORKERS,
        flag(
            "--batching",
            "how to size mini-batches. uniform: all workers alike; static: by the known speeds of "
            "their GPUs; dynamic: by measured speeds",
            default="uniform",
            **one_of("--batching", choices("batching")),
        ),
        flag(
            "--batch-bounds",
            "with --batching, the smallest and the largest mini-batch, in examples (for text: in "
            "tokens)",
            batch_bounds,
            default="2, and 8 times the declared size",
            metavar="LEAST,MOST",
        ),
        flag(
            "--wire",
            "the number format between workers and parameter servers. bf16 halves the traffic",
            default="fp32",
            **one_of("--wire", choices("wire")),
        ),
    )


def _evaluation() -> tuple[Option, ...]:
    return (
        flag(
            "--eval-every",
            "evaluate every N steps; end: only at the end. If model.fit has validation data, end "
            "has no effect",
            evaluate_every,
            default="each epoch if model.fit has validation data, else end",
            name="eval_steps",
            metavar="N|end",
        ),
        flag(
            "--eval-batches",
            "number of batches of the dev split in an evaluation, from the first one",
            evaluation_batches,
            choices=("100", "all"),
            metavar="N|all",
            default="100 for a Tensor2Tensor model. For a cell's model: all, or a random part if "
            "all take more than a minute and a tenth of the run's time",
        ),
        flag(
            "--keep-best",
            "also keep the checkpoint with the best evaluation of this metric, such as accuracy. "
            "If the name does not show which direction is better, write min distance or max "
            "agreement. Without --eval-every, the option needs --train-steps, and the run "
            "evaluates ten times",
            objective("--keep-best"),
            choices=("accuracy", "loss"),
            metavar="METRIC",
        ),
        flag(
            "--stop-when",
            "end the run early on this condition, and keep its best checkpoint: 'accuracy no "
            "better in 3 evaluations'. With several calls of model.fit, only the present call "
            "ends. The option needs --train-steps or --eval-every",
            condition,
            choices=("accuracy no better in 3 evaluations",),
            metavar="CONDITION",
        ),
    )


def _checkpoints() -> tuple[Option, ...]:
    return (
        flag(
            "--checkpoint-every",
            "save a checkpoint after this number of steps or this time: 500, 5m; auto: as often "
            "as saving takes 1% of the time, and at least every 10 min",
            interval,
            default="1000 steps, and at least every 10 min",
            choices=("auto",),
            metavar="STEPS|TIME|auto",
        ),
        flag(
            "--keep",
            "number of latest checkpoints to keep",
            whole("--keep"),
            default="5",
            metavar="N",
        ),
        flag(
            "--resume",
            "continue from the latest checkpoint of this run. --train-steps includes its steps",
            str,
            completes="run",
            metavar="RUN",
        ),
    )


def _deadline() -> tuple[Option, ...]:
    return (
        flag(
            "--finish-by",
            "finish the run within this time, such as 6h, or by the next 18:00 on this machine's "
            "clock. The controller adds and releases Spot workers, and rents on-demand workers as "
            "late as possible. The option needs --train-steps",
            deadline,
            metavar="TIME|CLOCK",
        ),
        max_cost(
            "with --finish-by, the highest cost of the run in US dollars, even if it is then "
            "late. With SPEC, the limit of the cluster that is declared",
            "the rest of the cluster's limit",
        ),
        max_hours("with SPEC, delete the cluster that is declared after this time"),
        flag(
            "--gpus",
            "with --finish-by, the GPUs that workers can have",
            gpus,
            default="the GPUs of the cluster",
            metavar="GPU,...",
        ),
        flag(
            "--zones",
            "with --finish-by, the zones in which workers can be",
            _zones,
            default="the zones of the cluster",
            completes="zone",
            metavar="ZONE,...",
        ),
        flag(
            "--adapt",
            "with --finish-by, how workers are changed. auto: by the controller; ask: the "
            "controller proposes changes; off: it only reports",
            default="auto",
            **one_of("--adapt", choices("adapt")),
        ),
    )


def _research() -> tuple[Option, ...]:
    return (
        flag(
            "--lr-policy",
            "divide the learning rate by the square root of n. active: n is the number of workers "
            "that train (with --mode sync: 1); slots: n is --max-workers; fixed: n is 1",
            default="active",
            **one_of("--lr-policy", choices("lr_policy")),
        ),
        flag(
            "--damping",
            "staleness: divide the learning rate of a gradient that is N steps late by N, in "
            "addition to --lr-policy",
            default="none",
            **one_of("--damping", choices("damping")),
        ),
        settings_option(SETTINGS),
        flag(
            "--pace",
            "the shortest duration of a step; if the weather sets GPU speeds, that of a K80",
            positive("--pace"),
            name="pace_seconds",
            metavar="SECONDS",
        ),
    )


def settings_option(settings: Mapping[str, str]) -> Option:
    """Return the option `--set`, with these settings and their meanings."""
    return flag(
        "--set",
        settings_help(settings, RunSpec),
        setting(settings, field(RunSpec)),
        name="settings",
        many="extend",
        choices=tuple(f"{name}=" for name in settings),
        metavar="NAME=VALUE",
    )


def results() -> dict[str, tuple[Option, ...]]:
    """Return the options of sub-commands that use the results of a run, by sub-command."""
    return {
        "export": (
            RUN,
            word("folder", "FOLDER", "the folder for the model, new or empty", completes="path"),
            OF_CLUSTER,
            flag(
                "--data-dir",
                "the folder on this machine with the problem's vocabulary, if it has one",
                str,
                metavar="FOLDER",
            ),
            flag(
                "--checkpoint",
                "the checkpoint to export: last; best, if the run has --keep-best; or a step",
                which_checkpoint,
                default="last",
                choices=("last", "best"),
                metavar="last|best|STEP",
            ),
            flag("--trust", "allow code of a run that another machine declared to run here"),
        ),
        "tensorboard": (
            RUN,
            word(
                "folder",
                "FOLDER",
                "the folder for the event files",
                many="?",
                completes="path",
                default="the run's own folder",
            ),
            OF_CLUSTER,
        ),
    }


def _zones(text: str) -> tuple[str, ...]:
    return zones(text, "--zones")


def check_train(values: dict[str, Any], called: str) -> None:
    """Check the options of a run together, and convert them to its fields."""
    if "params" in values:
        values["params"] = dict(values["params"])
    # Each of these options sets several fields.
    for option in ("checkpoint_every", "batch_bounds", "workers", "settings"):
        values.update(values.pop(option, {}))
    limit = None
    if values.get("spec") and not values.get("finish_by"):
        # The limit of the cluster that is declared.
        limit = values.pop("max_cost", None)
    check_run(values)
    if limit is not None:
        values["max_cost"] = limit
    if values.get("eval_steps") == 0:
        # `--eval-every end` is the default.
        del values["eval_steps"]
    split_paths(values)


def _declare(values: dict[str, Any], code: Code) -> Run:
    """Declare a run of the code."""
    from .declare import train
    from .own_cluster import train_on

    values = with_included(values)
    code.check(values)
    workers = values.pop("spec", None)
    if workers:
        return train_on(workers, source=code.source, line_offset=code.line_offset, **values)
    for name, option in _OF_OWN_CLUSTER.items():
        if name in values:
            raise DeclarationError(
                f"{option} is allowed only if the run declares its own cluster",
                fix="Name the workers of that cluster, such as %%train k80x4.",
            )
    return train(source=code.source, line_offset=code.line_offset, **values)


def _notes(values: Mapping[str, Any], code: Code) -> list[str]:
    """Return sentences about the lines of a cell that the run ignores."""
    from ...client import keras_cell

    if values.get("model"):
        return []
    return keras_cell.notes(code.source, code.line_offset)


def _names(run: Run, code: Code) -> dict[str, object]:
    """Return the result of `model.fit` under the name to which the cell binds it."""
    from ...client import keras_cell

    name = keras_cell.history_name(code.source)
    if not name:
        return {}
    return {name: run.fit_history()}


_OF_A_RUN = (
    "model",
    "hparams_set",
    "problem",
    "cluster",
    "hparams",
    "data_dir",
    "params",
    "include",
    "pip",
    "pip_build",
    "ps_shards",
    "workers",
    "wire",
    "pace_seconds",
)


def stalls() -> tuple[Option, ...]:
    """Return the options of a measurement, and those of a run that affect a step's duration."""
    declared = {option.name: option for option in train()}
    return (
        word(
            "run",
            "RUN",
            "the run whose model and data to measure; without it, a Tensor2Tensor model or the "
            "model of the cell",
            many="?",
            completes="run",
        ),
        *group(
            "Measures",
            flag(
                "--repeats",
                "number of times to repeat each measurement, at least 3",
                whole("--repeats", 3),
                default="5",
                metavar="N",
            ),
            flag(
                "--seconds",
                "duration of each measurement",
                duration("--seconds", "s"),
                default="2",
                metavar="SECONDS",
            ),
        ),
        *(declared[name] for name in _OF_A_RUN),
        *group(
            CLUSTER,
            name_of("measure", "stalls-1, stalls-2, ..."),
            wait_until("all measurements are complete"),
            OUTPUT,
        ),
    )


def check_stalls(values: dict[str, Any], called: str) -> None:
    """Check the options of a measurement like those of a run."""
    own = {name: values.pop(name) for name in ("run", "repeats", "seconds") if name in values}
    check_train(values, called)
    values.update(own)


def _declare_stalls(values: dict[str, Any], code: Code) -> Stalls:
    """Declare a measurement of a run, or of what the code defines."""
    from .declare import declare_stalls

    if code.source:
        values = with_included(values)
        code.check(values, beside=False)
    return declare_stalls(source=code.source, line_offset=code.line_offset or 1, **values)


COMMANDS = (
    WorkCommand(
        "train",
        train,
        _declare,
        guide="training",
        rank=0,
        description=(
            "Train a Tensor2Tensor model, or the model that the code defines, on a cluster. The "
            "code runs on the VMs, so it must import everything that it uses."
        ),
        entries=(
            Entry(
                "train FILE.py [options]",
                "%%train [options]",
                "Train a Tensor2Tensor or Keras model on a cluster",
            ),
        ),
        check=check_train,
        notes=_notes,
        names=_names,
        example="--model resnet --hparams-set resnet_cifar_32 --problem image_digits "
        "--train-steps 2000",
        epilog=(
            "Without --model, the code calls model.fit of a Keras model, or it defines:\n"
            '  input_fn(mode)   returns (features, labels) for mode "train" or "eval"; for a Keras '
            "model, weights can be third.\n"
            "                   Each part is an array or a structure of arrays. It can also return "
            "a tf.data.Dataset\n"
            "                   of single examples (of batches if the model begins with "
            "keras.Input).\n"
            "                   Arrays are shuffled; a dataset must shuffle its elements. Each "
            "worker begins at a random position.\n"
            "  model            a compiled Keras model\n"
            "  model_fn(features, labels, mode)\n"
            "                   instead of model: returns a dict with loss, optimizer (a function "
            "of the learning rate),\n"
            "                   learning_rate, predictions and eval_metric_ops\n"
            "  batch_size       the number of examples in a step of one worker (default: 32)"
        ),
    ),
    WorkCommand(
        "stalls",
        stalls,
        _declare_stalls,
        guide="stalls",
        description=(
            "Measure on a cluster how the duration of a step divides into computing, "
            "serialization, network, contention between workers, preparation of examples, and "
            "fetching of examples. The model and the data are those of a run, of Tensor2Tensor, "
            "or of the code. Nothing is trained."
        ),
        entries=(
            Entry(
                "stalls [RUN] [options]",
                "%transient_stalls [RUN] [options]",
                "Measure where the time of a step goes, and what would help",
            ),
        ),
        check=check_stalls,
        example="run-1",
        epilog=(
            "The measurement uses workers like a run. It takes about --repeats x --seconds x (5 + "
            "3 for each worker)."
        ),
        research=True,
        from_file=False,
    ),
)
