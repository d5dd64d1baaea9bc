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
            "the workers of the cluster, such as k80x4: without a cluster, one is declared for the "
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
            "how many of the cluster's workers the run takes, or with how many it starts and how "
            "many it takes at most; other runs train on the rest",
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
        flag("--keep-cluster", "keep the cluster that was declared for the run"),
        PROJECT,
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
            "the folder of the TFRecords: one that every VM has, or gs://BUCKET/FOLDER, where "
            "they are generated once for all clusters",
            str,
            metavar="PLACE",
        ),
        flag(
            "--cache",
            "how much of large records a worker stores near it, and where: 2GB, 2GB:memory, "
            "2GB:shm, or 0 for none. Nothing is evicted",
            cache,
            default="half of the free space of its disk",
            metavar="SIZE[:memory|:shm|:disk]",
        ),
        flag(
            "--prep",
            "prepare mini-batches on up to this number of Spot VMs without a GPU when steps wait "
            "for them: cpux4",
            preparation,
            default="none, the workers prepare them",
            metavar="cpuxN",
        ),
        flag(
            "--seed",
            "the seed of initial values and of what the cell draws, in every process. With one "
            "worker on CPUs and a model of the cell, examples, dropout and losses follow from it "
            "too; several workers take turns in any order, and Tensor2Tensor draws its own "
            "examples. With it, the noise of gradients is measured only if --set noise_share is "
            "given",
            whole("--seed", 0),
            default="drawn",
            metavar="N",
        ),
        flag(
            "--check",
            "build one step of the graph before any worker starts",
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
            "--eval-every",
            "evaluate every N steps",
            evaluate_every,
            default="end",
            name="eval_steps",
            metavar="N|end",
        ),
        flag(
            "--eval-batches",
            "how many batches of the dev split an evaluation uses, from the first one",
            evaluation_batches,
            choices=("100", "all"),
            metavar="N|all",
            default="100 for Tensor2Tensor's models; all for a cell's own, or, where all take "
            "more than a minute and a tenth of the run's time, a part drawn once at random",
        ),
        flag(
            "--keep-best",
            "also keep the checkpoint of the best evaluation: accuracy, or min distance where the "
            "name does not say which way is better. It makes --eval-every a tenth of the steps",
            objective("--keep-best"),
            choices=("accuracy", "loss"),
            metavar="METRIC",
        ),
        flag(
            "--stop-when",
            "end the run early, and keep its best checkpoint: 'accuracy no better in 3 "
            "evaluations'",
            condition,
            choices=("accuracy no better in 3 evaluations",),
            metavar="CONDITION",
        ),
    )


def _checkpoints() -> tuple[Option, ...]:
    return (
        flag(
            "--checkpoint-every",
            "save in steps or time: 500, 5m; auto: as often as saving takes 1% of the time, and "
            "at least every 10 min",
            interval,
            default="1000 steps, and at least every 10 min",
            choices=("auto",),
            metavar="STEPS|TIME|auto",
        ),
        flag(
            "--keep",
            "the number of latest checkpoints to keep",
            whole("--keep"),
            default="5",
            metavar="N",
        ),
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
            "finish the run by this time: in 6h, or at the next 18:00 of this machine's clock. The "
            "controller adds and releases Spot workers for it, and rents workers on demand as "
            "late as possible",
            deadline,
            metavar="TIME|CLOCK",
        ),
        max_cost(
            "with --finish-by, the most that the run may cost, in US dollars; it is late where "
            "both cannot be met. With SPEC, the limit of the cluster that is declared",
            "the rest of the cluster's limit",
        ),
        max_hours("with SPEC, delete the cluster that is declared after this time"),
        flag(
            "--gpus",
            "with --finish-by, the GPUs of its workers",
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
            "with --finish-by, who changes the workers: auto: the controller; ask: it proposes "
            "changes; off: it only reports",
            default="auto",
            **one_of("--adapt", choices("adapt")),
        ),
    )


def _research() -> tuple[Option, ...]:
    return (
        flag(
            "--lr-policy",
            "the n of the learning rate's 1/sqrt(n): active: the workers that train (with --mode "
            "sync: 1); slots: --max-workers; fixed: 1",
            default="active",
            **one_of("--lr-policy", choices("lr_policy")),
        ),
        flag(
            "--damping",
            "staleness: a gradient that comes N steps late has 1/N of the learning rate, on top "
            "of --lr-policy",
            default="none",
            **one_of("--damping", choices("damping")),
        ),
        settings_option(SETTINGS),
        flag(
            "--pace",
            "the shortest step of a worker; with published GPU speeds in the weather, that of a "
            "K80",
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
            word("folder", "FOLDER", "the folder of the model, new or empty", completes="path"),
            OF_CLUSTER,
            flag(
                "--data-dir",
                "where the problem's vocabulary is on this machine, if it has one",
                str,
                metavar="FOLDER",
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
            word(
                "folder",
                "FOLDER",
                "the folder of the event files",
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
                f"{option} belongs to a cluster that the run declares",
                where=option,
                fix="Name its workers, as in %%train k80x4.",
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
    return {name: run.fit_history()} if name else {}


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
            "the run whose model and data are measured; without it, a model of Tensor2Tensor or "
            "the cell's own",
            many="?",
            completes="run",
        ),
        *group(
            "Measures",
            flag(
                "--repeats",
                "how often to take each measure, 3 or more",
                whole("--repeats", 3),
                default="5",
                metavar="N",
            ),
            flag(
                "--seconds",
                "how long a measure takes each time",
                duration("--seconds", "s"),
                default="2",
                metavar="SECONDS",
            ),
        ),
        *(declared[name] for name in _OF_A_RUN),
        *group(
            CLUSTER,
            name_of("measure", "stalls-1, stalls-2, ..."),
            wait_until("all is measured"),
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
            "Train a model on a cluster: one of Tensor2Tensor, or the one that the code defines. "
            "The code runs on the VMs, so it must import what it uses."
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
            "Without --model, --hparams-set and --problem the code defines:\n"
            '  input_fn(mode)   (features, labels) for "train" or "eval": arrays, or a '
            "tf.data.Dataset "
            "of single examples\n"
            "                   (of batches for a model that begins with keras.Input); a Keras "
            "model takes weights as third;\n"
            "                   each is one value or a structure of several, with any names; "
            "arrays are shuffled, a dataset\n"
            "                   shuffles itself; every worker begins somewhere else in them, each "
            "time that it begins\n"
            "  model            a compiled Keras model, or model_fn(features, labels, mode), which "
            "returns a dict with\n"
            "                   loss, optimizer (makes one of a learning rate), learning_rate, "
            "predictions, eval_metric_ops\n"
            "  batch_size       examples of a worker's step (32)"
        ),
    ),
    WorkCommand(
        "stalls",
        stalls,
        _declare_stalls,
        guide="stalls",
        description=(
            "Measure on a cluster where the time of a step goes: computing, serialisation, "
            "network, contention of workers, preparation of examples, their fetching. It measures "
            "the model and data of a run, of Tensor2Tensor, or of the code below. Nothing is "
            "trained."
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
            "It uses workers like a run, for about --repeats x --seconds x (3 for each worker, "
            "and 5) in all."
        ),
        research=True,
        from_file=False,
    ),
)
