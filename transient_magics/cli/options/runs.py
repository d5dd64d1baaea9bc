"""What may be said of a run, of a study, and of their results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...protocol.run import choices
from ...protocol.study import StudySpec
from ...spec import check_run, parse_name, parse_workers
from ..option import (
    Option,
    batch_bounds,
    cache,
    condition,
    confidence,
    configurations,
    deadline,
    duration,
    evaluate_every,
    evaluation_batches,
    flag,
    gpus,
    hours,
    interval,
    objective,
    one_of,
    overrides,
    parameter,
    positive,
    preparation,
    share,
    share_of_time,
    space,
    speed_alarm,
    which_checkpoint,
    whole,
    word,
    zones,
)
from .shared import LITERALS, OF_CLUSTER, OUTPUT, OWN_CLUSTER, RUN, WAIT

OF_DEADLINES = ("finish_by", "max_cost", "confidence", "gpus", "zones", "adapt")
"""The options of runs that have a cluster for themselves: none of a study's."""


def train() -> tuple[Option, ...]:
    """Of a run."""
    return (
        flag("--model", "a Tensor2Tensor model by its name in the registry (the cell's own model)", str),
        flag("--hparams-set", "its hyper-parameter set", str),
        flag("--problem", "the problem to train it on", str),
        flag("--train-steps", "how many steps, over all workers", whole("--train-steps"), metavar="N", required=True),
        flag("--cluster", f"the cluster on which it runs {OWN_CLUSTER}", str, completes="cluster", metavar="NAME"),
        flag("--name", "the run's name (run-1, run-2, ...)", lambda text: parse_name(text, "--name")),
        flag("--hparams", "overrides: batch_size=64,learning_rate=0.1", overrides, metavar="NAME=VALUE,..."),
        flag("--data-dir", "where the TFRecords are: a folder that every VM has; gs://BUCKET/FOLDER: kept there for "
              "all clusters (made once by generate_data)", str, metavar="PLACE"),
        flag("--cache", "how much of large records a worker keeps near it, and where: 2GB, 2GB:memory, 2GB:shm; 0: "
              "none. What is in stays in (half of what is free on its disk)", cache,
              metavar="SIZE[:memory|:shm|:disk]"),
        flag("--prep-threads", "how many threads of a worker decode records (as many as cores for large records, else "
              "1); with --prep, of a preparation VM", whole("--prep-threads"), metavar="N"),
        flag("--prep", "up to so many Spot VMs without a GPU prepare the mini-batches, as steps wait for them: cpux4 "
              "(none: the workers do)", preparation, metavar="cpuxN"),
        flag("--param", "values that a cell with a model of its own reads by their names: lr=0.1 units=64. " + LITERALS,
              parameter, name="params", many="extend", metavar="NAME=VALUE"),
        flag("--include", "local modules or folders to send along, 200 MB at most; of a folder all files, such as .git "
              "and .env, and what links in it lead to", str, completes="path", many="extend",
              metavar="PATH"),
        flag("--pip", "packages to install on the VMs for this run, by name or file", str, completes="path",
              many="extend", metavar="PACKAGE"),
        flag("--pip-build", "let --pip build packages without a wheel; their code then runs where the controller runs"),
        flag("--checkpoint-every", "in steps or time: 500, 5m; auto: as often as saving takes 1% of the time, and "
              "at least every 10 min (1000 steps, and at least every 10 min)", interval, choices=("auto",),
              metavar="STEPS|TIME|auto"),
        flag("--keep", "how many checkpoints stay, the last ones (5)", whole("--keep"), metavar="N"),
        flag("--ps-shards", "partitions of variables of 2 MiB and more, over the parameter servers (1)",
              whole("--ps-shards"), metavar="N"),
        flag("--workers", "how many of the cluster's workers the run takes, or with how many it begins and how many "
              "it takes at most; others train beside it on what is left (all)", parse_workers, metavar="N|LEAST:MOST"),
        flag("--mode", "async: each worker's gradient as it comes; sync: one step with the mean of all (async)",
              **one_of("--mode", choices("mode"))),
        flag("--backup-workers", "with --mode sync: a step does not wait for the N slowest workers (0)",
              whole("--backup-workers", 0), metavar="N"),
        flag("--batching", "mini-batches: all alike, by the GPUs' speeds as known, or as measured (uniform)",
              **one_of("--batching", choices("batching"))),
        flag("--batch-bounds", "with it, the least and most examples (of text: tokens) of a mini-batch (2, and 8 times "
              "the declared one)", batch_bounds, metavar="LEAST,MOST"),
        flag("--deadband", "with --batching dynamic: sizes stay unless one is to change by more than this part of it, "
              "and by more than noise explains (0.05)", share("--deadband"), metavar="SHARE"),
        flag("--batch-smoothing", "with --batching dynamic: the weight of the newest time in a worker's moving average "
              "(0.3)", share("--batch-smoothing"), metavar="SHARE"),
        flag("--step-time", "with --batching dynamic: how a step's time follows from its examples: affine: a fixed "
              "part and a part for each example; proportional: as published (affine)",
              **one_of("--step-time", choices("step_time"))),
        flag("--lr-policy", "the n of the learning rate's 1/sqrt(n): active: the workers that train (with "
              "--mode sync: 1); slots: --max-workers; fixed: 1 (active)",
              **one_of("--lr-policy", choices("lr_policy"))),
        flag("--damping", "staleness: a gradient that comes N steps late has 1/N of the learning rate, on top of "
              "--lr-policy (none)",
              **one_of("--damping", choices("damping"))),
        flag("--wire", "how numbers cross between workers and parameter servers; bf16: in half the bytes (fp32)",
              **one_of("--wire", choices("wire"))),
        flag("--speed-alarm", "tell when the run is slower than this share of its workers' best speeds, each measured "
              "after a warm-up; off (0.8,30s)", speed_alarm, choices=("off", "0.8,30s"), metavar="SHARE[,TIME]"),
        flag("--gradient-noise", "the share of its time in which a worker measures its gradients' noise, for plans "
              "with a target; off (0.008)", share_of_time("--gradient-noise"), name="noise_share",
              choices=("off", "0.008"), metavar="SHARE"),
        flag("--eval-every", "evaluate every N steps (end)", evaluate_every, name="eval_steps", metavar="N|end"),
        flag("--eval-batches", "how many batches of the dev split an evaluation takes, the first ones (of a cell's own "
              "model: all, or, where they take more than a minute and a tenth of the run's time, a part drawn at "
              "random, the same at every step; of Tensor2Tensor's: 100)", evaluation_batches,
             choices=("100", "all"), metavar="N|all"),
        flag("--keep-best", "the checkpoint of the best evaluation stays too: accuracy, or min distance where the name "
              "does not say which way is better; --eval-every is then a tenth of the steps", objective("--keep-best"),
              choices=("accuracy", "loss"), metavar="METRIC"),
        flag("--stop-when", "the run ends by itself, with its best checkpoint kept: 'accuracy no better in 3 "
              "evaluations'", condition, choices=("accuracy no better in 3 evaluations",), metavar="CONDITION"),
        flag("--finish-by", "when it has to be done: 6h, or 18:00, the next one on this machine's clock. Spot workers "
              "are added and given up for it, and held on demand as late as that can be (docs: deadlines)", deadline,
              metavar="TIME|CLOCK"),
        flag("--max-cost", "with it, what the run may cost, in US dollars: where both cannot be, it is late "
              "(what is left of the cluster's limit)", positive("--max-cost"), metavar="DOLLARS"),
        flag("--confidence", "with it, how cautiously speeds count: at a lower end of what was measured, an estimate "
              "(0.95)", confidence, metavar="SHARE"),
        flag("--gpus", "with it, the GPUs that workers may have (the cluster's)", gpus, metavar="GPU,..."),
        flag("--zones", "with it, where they may be (where the cluster's may)",
              lambda text: zones(text, "--zones"), completes="zone", metavar="ZONE,..."),
        flag("--adapt", "with it, who changes the workers: auto: the controller; ask: it proposes that; off: it only "
              "tells (auto)", **one_of("--adapt", choices("adapt"))),
        flag("--seed", "seed of what the cell draws in every process, and of initial values; with one worker on CPUs "
              "and a cell's own model also of examples, dropout and every loss. Several take turns as they "
              "come; Tensor2Tensor draws its examples all the same. With it, the noise of gradients is measured only "
              "if --gradient-noise is given (drawn)",
              whole("--seed", 0), metavar="N"),
        flag("--resume", "go on from the latest checkpoint of that run; --train-steps counts its steps too", str,
              completes="run", metavar="RUN"),
        flag("--check", "build one step of the graph before any worker starts (on)", negated=True),
        flag("--when-done", "what goes when the run ends (keep)",
              **one_of("--when-done", choices("when_done"))),
        flag("--pace", "least seconds of a worker's step (of a K80's, with GPU speeds as published in the weather)",
              positive("--pace"), name="pace_seconds", metavar="SECONDS"),
        flag("--wait", WAIT.format("the run is over")),
        OUTPUT,
    )  # fmt: skip


def study() -> tuple[Option, ...]:
    """Those of a study, and of its runs all that are not its own."""
    own = (
        flag("--over", "what is tried: NAME=A,B,C chooses, NAME=LOW:HIGH is a range, with :log evenly in its "
              f"logarithm, with :int in whole numbers. {LITERALS} Of Tensor2Tensor's models these are "
              "hyper-parameters, a cell's own reads them by their names", space, metavar="'NAME=VALUES ...'"),
        flag("--trials", "how many points are tried (all of a grid, else 20)", whole("--trials"), metavar="N"),
        flag("--sampler", "how points are chosen: grid tries each once; random draws them; tpe and gp, Optuna's, learn "
              "from earlier trials; gp needs torch (grid where only choices are given, else tpe)",
              **one_of("--sampler", choices("sampler", StudySpec))),
        flag("--pruner", "ends trials early whose evaluations say that they will not be the best: median: worse than "
              "half of the others were then; hyperband: by rounds (none)",
              **one_of("--pruner", choices("pruner", StudySpec))),
        flag("--objective", "by what trials are judged: 'max accuracy', 'min loss', of the last evaluation, with "
              "--keep-best or --stop-when of the best one (that of --keep-best or --stop-when)",
              objective("--objective"), choices=("max accuracy", "min loss"), metavar="METRIC"),
        flag("--repeat", "train each point so many times, each with a seed of its own; its value is their mean (1)",
              whole("--repeat"), metavar="N"),
        flag("--workers", "how many workers each run takes; others train at the same time on those that are left (1)",
              whole("--workers"), metavar="N"),
        flag("--per-vm", "how many runs of the study train on one VM at a time: they share its GPU, its memory and its "
              "cores (1)", whole("--per-vm"), metavar="N"),
        flag("--share-input", "with --per-vm, one process on a VM reads, decodes and batches a problem's records "
              "once, and all runs there take the same mini-batches, each at most once"),
        flag("--on", "try each point on each of these machines: k80x1,k80x4,k80x2+p100x2. Those that the cluster holds "
              "are parts of it; each other one has a cluster of its own, one after the other, within --max-cost and "
              "--max-hours", configurations, metavar="MACHINES,..."),
        flag("--max-cost", "the study ends when its trials have cost so many US dollars; what is done is kept",
              positive("--max-cost"), metavar="DOLLARS"),
        flag("--max-hours", "it ends after that time", hours("--max-hours"), metavar="TIME"),
        flag("--give-up-after", "a trial that makes no step for so long has failed (15m)",
              duration("--give-up-after", "m"), name="give_up_seconds", metavar="TIME"),
        flag("--seed", "from it follow the points, and the seeds of repeated runs (drawn)", whole("--seed", 0),
              metavar="N"),
        flag("--name", "the study's name (study-1, study-2, ...); its runs are NAME-0, NAME-1, ...",
              lambda text: parse_name(text, "--name")),
        flag("--dry-run", "show on which machines and clusters it would train and their price; declare nothing"),
        flag("--wait", WAIT.format("the study is over")),
    )  # fmt: skip
    said = {each.name for each in own} | {"resume", "when_done", "prep", *OF_DEADLINES}
    when_done = next(each for each in train() if each.name == "when_done")
    return (*own, *(each for each in train() if each.name not in said), replace(when_done, help="what goes when the "
            "study ends (keep)"))  # fmt: skip


def results() -> dict[str, tuple[Option, ...]]:
    """Of what is done with a run's results, by sub-command."""
    return {
        "export": (
            RUN,
            word("folder", "FOLDER", "where the model goes; new or empty", completes="path"),
            OF_CLUSTER,
            flag("--data-dir", "where the problem's vocabulary is on this machine, if it has one", str,
                  metavar="FOLDER"),
            flag("--checkpoint", "which one: last, best (of a run with --keep-best), or that of a step (last)",
                  which_checkpoint, choices=("last", "best"), metavar="last|best|STEP"),
            flag("--trust", "run the code of a run that another machine declared"),
        ),
        "tensorboard": (
            RUN,
            word("folder", "FOLDER", "where they go (the run's own)", many="?", completes="path"),
            OF_CLUSTER,
        ),
    }  # fmt: skip


def check_study(values: dict[str, Any], called: str) -> None:
    """As of a run, but for what a study has its own words for."""
    own = {name: values.pop(name) for name in ("workers", "max_cost") if name in values}
    check_train(values, called)
    values |= own


def check_train(values: dict[str, Any], called: str) -> None:
    """What several options of a run say together."""
    if "params" in values:
        values["params"] = dict(values["params"])
    for option in ("checkpoint_every", "speed_alarm", "batch_bounds", "workers"):  # one option, several fields
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
