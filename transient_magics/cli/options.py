"""Every option that a cell or a terminal can say, declared once: its sub-command, help, and what excludes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import DeclarationError
from ..protocol.run import choices
from ..protocol.study import StudySpec
from ..spec import check_run, parse_name, parse_workers
from ..spec.grammar import nearest
from .option import (
    Option,
    address_ranges,
    batch_bounds,
    bucket,
    condition,
    duration,
    evaluate_every,
    evaluation_batches,
    event_kind,
    fallback,
    flag,
    gpu,
    gpus,
    hours,
    interval,
    known_region,
    objective,
    one_of,
    one_zone,
    overrides,
    parameter,
    positive,
    share,
    share_of_time,
    space,
    speed_alarm,
    variable,
    which_checkpoint,
    whole,
    word,
    zones,
)

CLUSTER_VERBS = ("list", "status", "attach", "resize", "revoke", "move", "stop", "logs", "events", "delete", "sweep")
IMAGE_VERBS = ("build", "list", "delete")
PROGRAM_VERBS = (
    "cluster", "train", "study", "plan", "export", "tensorboard", "weather", "lifetimes", "image", "emulator",
    "catalog", "doctor",
)  # fmt: skip


WORKLOADS = (
    "icac19/resnet-32", "cmdare/resnet-15", "cmdare/resnet-32", "cmdare/shake-shake-small", "cmdare/shake-shake-big",
)  # fmt: skip
"""The published workloads of the planner, which is not loaded to complete their names."""


def declared(verb: str, *, file: bool = False) -> tuple[Option, ...]:
    """The options of a sub-command, of `declare`, `train` or `catalog`, in the order of their help."""
    options = _table()[verb]
    return (word("source", "FILE", "the code, a Python file", completes="path"), *options) if file else options


_WAIT = "return only when {}"
_OUTPUT = flag("-o --output", "bind the handle to this name in the notebook", variable, metavar="NAME")
_CLUSTER_NAME = word("name", "NAME", "the cluster", completes="cluster")
_ANY_CLUSTER = word("name", "NAME", "the cluster (default: the latest one)", completes="cluster", many="?")
_RUN = word("run", "RUN", "the run, by its name", completes="run")
_OF_CLUSTER = flag("--cluster", "the cluster that it ran on (the latest with a run of that name)", str,
                    completes="cluster", metavar="NAME")  # fmt: skip
_PROJECT = flag("--project", "a Google Cloud project; without one it is about the emulator", str)
_WORKER = word("worker", "WORKER", "one of its VMs, as worker-1 or ps-0", completes="worker")


@cache
def _table() -> Mapping[str, tuple[Option, ...]]:
    # A function, so that importing this module costs nothing before the first cell uses it.
    return {
        "declare": _declare(),
        "train": _train(),
        "study": _study(),
        "list": (flag("--all", "deleted ones too"),),
        "status": (_ANY_CLUSTER,),
        "attach": (_ANY_CLUSTER, _PROJECT, _OUTPUT),
        "resize": (_CLUSTER_NAME, word("spec", "SPEC", "the workers that it is to have", many="+", completes="gpu")),
        "revoke": (
            _CLUSTER_NAME,
            _WORKER,
            flag("--in", "when the notice comes: 30s, 2m (default: now)", duration("--in", "s"), name="seconds",
                  metavar="TIME"),
        ),
        "move": (
            _CLUSTER_NAME,
            _RUN,
            flag("--before", "before this one that waits (default: before all of them)", str, completes="run",
                  metavar="RUN"),
        ),
        "stop": (_CLUSTER_NAME, _RUN),
        "logs": (_CLUSTER_NAME, _WORKER, flag("--lines", "how many of the last lines (200)", whole("--lines"))),
        "events": (
            _ANY_CLUSTER,
            flag("--kind", "only this kind, as vm.revoked, or a group of kinds, as vm", event_kind),
            flag("--follow", "go on until interrupted"),
        ),
        "delete": (
            word("name", "NAME", "the cluster", completes="cluster", many="?"),
            flag("--all", "every cluster"),
            flag("--by-name", "also what an earlier version declared, whose VMs are known by name and owner alone"),
        ),
        "sweep": (
            _PROJECT,
            flag("--yes", "delete them; without it they are only shown"),
            flag("--all-machines", "also those that you made from other machines, an hour after they were made"),
        ),
        "catalog": (
            word("gpu", "GPU", "all about this one: zones, prices, limits", many="?", completes="gpu"),
            flag("--project", "ask Google for today's prices first, with this project's right to", str),
        ),
        "export": (
            _RUN,
            word("folder", "FOLDER", "where the model goes; new or empty", completes="path"),
            _OF_CLUSTER,
            flag("--data-dir", "where the problem's vocabulary is on this machine, if it has one", str,
                  metavar="FOLDER"),
            flag("--checkpoint", "which one: last, best (of a run with --keep-best), or that of a step (last)",
                  which_checkpoint, choices=("last", "best"), metavar="last|best|STEP"),
            flag("--trust", "run the code of a run that another machine declared"),
        ),
        "tensorboard": (
            _RUN,
            word("folder", "FOLDER", "where they go (the run's own)", many="?", completes="path"),
            _OF_CLUSTER,
        ),
        "plan": _plan(),
        "doctor": _doctor(),
        "weather": _weather(),
        "lifetimes": _lifetimes(),
        "image": (word("verb", "|".join(IMAGE_VERBS), "what to do; each has -h", many="?"),),
        "image build": _build(),
        "image list": (_PROJECT,),
        "image delete": (word("name", "NAME", "the image", completes="image"), _PROJECT),
    }  # fmt: skip


def _declare() -> tuple[Option, ...]:
    return (
        word("spec", "SPEC", "GROUP+GROUP..., each GPU[xCOUNT][@ZONE], as k80x4", many="*", completes="gpu"),
        flag("--name", "the cluster's name, 40 characters at most (short, from SPEC)",
              lambda text: parse_name(text, "--name")),
        flag("--ps", "number of parameter servers, always on demand (1)", whole("--ps"), metavar="N"),
        flag("--ps-cores", "vCPUs of each (4)", whole("--ps-cores"), metavar="N"),
        flag("--ps-machine", "or the machine type of each: n2-standard-4, e2-standard-4, n2-custom-4-16384 (N1 with 4 "
              "GB per vCPU)", str, metavar="TYPE"),
        flag("--zone", "for groups without one; several with commas: tried in that order", zones, completes="zone"),
        flag("--provisioning-model", "how workers are rented; Compute Engine gives preemptible ones no limit but 24 "
              "hours (spot)", **one_of("--provisioning-model", ("spot", "preemptible", "standard"))),
        flag("--max-workers", "no resize goes beyond it (twice the workers); with --max-cost the cluster ends as early "
              "as so many workers would have spent the money", whole("--max-workers"), metavar="N"),
        flag("--replace", "replace revoked workers (on)", negated=True),
        flag("--fallback", "on-demand[=10m]: workers on demand after that time without Spot capacity", fallback,
              name="fallback_seconds", metavar="on-demand[=TIME]"),
        flag("--chief", "who saves checkpoints: the parameter server's VM, or a worker, and another one when that is "
              "revoked, as published systems do (ps)", **one_of("--chief", ("ps", "worker"))),
        flag("--max-hours", "hard limit, also enforced by Compute Engine: 24h (120d at most; it cannot be moved later)",
              hours("--max-hours"), metavar="TIME"),
        flag("--max-cost", "hard limit in US dollars; a resize is refused for which it would not last until the end",
              positive("--max-cost"), metavar="DOLLARS"),
        flag("--idle", "without a run for so long, workers are deleted: 30m", duration("--idle", "m"), metavar="TIME"),
        flag("--project", "a Google Cloud project; without one all is emulated and free", str),
        flag("--bucket", "where checkpoints and results live: NAME, gs://NAME/FOLDER, or none: they come to this "
              "machine (with a project one of its own, else none)", bucket),
        flag("--image", "the VMs' image: NAME or family/NAME of the project, or a URL (one that was baked for this "
              "version, else Debian 12)", str, completes="image"),
        flag("--service-account", "of the controller's VM (the others have none): NAME of the project, an address, or "
              "default (Compute Engine's own)", str),
        flag("--network", "the VMs' network", str),
        flag("--subnet", "the VMs' subnet", str),
        flag("--firewall", "rules that close the VMs to others of the project (on)", negated=True),
        flag("--ssh-from", "address ranges that SSH may come from directly, as this machine's 203.0.113.7/32 "
              "(none: it comes through Identity-Aware Proxy, from wherever you are)", address_ranges,
              metavar="RANGE,..."),
        flag("--no-external-ip", "no external address: SSH goes through Identity-Aware Proxy"),
        flag("--controller", "where the controller runs: here, or on a small VM of its own, so that this machine may "
              "be off (with a project, a service account and a bucket: cluster, else local)",
              **one_of("--controller", ("local", "cluster"))),
        flag("--dry-run", "show what would be created and its price; create nothing"),
        flag("--wait", _WAIT.format("the cluster is ready")),
        _OUTPUT,
    )  # fmt: skip


def _build() -> tuple[Option, ...]:
    return (
        word("name", "NAME", "the image's name (transient- and the time)", many="?"),
        _PROJECT,
        flag("--zone", "where the VM is that it is made with (the catalog's best)", one_zone, completes="zone"),
        flag("--base", "what it is made from: NAME or family/NAME of the project, or a URL (Debian 12)", str,
              metavar="IMAGE"),
        flag("--no-gpu", "without an NVIDIA driver"),
        flag("--machine-type", "of that VM (n1-standard-4)", str),
        flag("--disk-gb", "of its disk, and of VMs that boot from the image (50)",
              whole("--disk-gb", 10), metavar="GB"),
        flag("--network", "that VM's network", str),
        flag("--subnet", "that VM's subnet", str),
        flag("--no-external-ip", "no external address: packages come through Cloud NAT"),
        flag("--wait", _WAIT.format("the image is there")),
    )  # fmt: skip


def _train() -> tuple[Option, ...]:
    return (
        flag("--model", "a Tensor2Tensor model by its name in the registry (the cell's own model)", str),
        flag("--hparams-set", "its hyper-parameter set", str),
        flag("--problem", "the problem to train it on", str),
        flag("--train-steps", "how many steps, over all workers", whole("--train-steps"), metavar="N", required=True),
        flag("--cluster", "which cluster (the latest)", str, completes="cluster", metavar="NAME"),
        flag("--name", "the run's name (run-1, run-2, ...)", lambda text: parse_name(text, "--name")),
        flag("--hparams", "overrides: batch_size=64,learning_rate=0.1", overrides, metavar="NAME=VALUE,..."),
        flag("--data-dir", "where the TFRecords are: a folder that every VM has; gs://BUCKET/FOLDER: kept there for "
              "all clusters (made once by generate_data)", str, metavar="PLACE"),
        flag("--param", "values that a cell with a model of its own reads by their names: lr=0.1 units=64", parameter,
              name="params", many="extend", metavar="NAME=VALUE"),
        flag("--include", "local modules or folders to send along", str, completes="path", many="extend",
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
        flag("--step-time", "with --batching dynamic: what a step is taken to last: affine, a fixed part and one for "
              "each example; or proportional to its examples, as published (affine)",
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
        flag("--eval-batches", "how many batches of the dev split an evaluation takes (100)", evaluation_batches,
             choices=("100", "all"), metavar="N|all"),
        flag("--keep-best", "the checkpoint of the best evaluation stays too: accuracy, or min distance where the name "
              "does not say which way is better; --eval-every is then a tenth of the steps", objective("--keep-best"),
              choices=("accuracy", "loss"), metavar="METRIC"),
        flag("--stop-when", "the run ends by itself, with its best checkpoint kept: 'accuracy no better in 3 "
              "evaluations'", condition, choices=("accuracy no better in 3 evaluations",), metavar="CONDITION"),
        flag("--seed", "what chance follows from: initial values; with one worker on CPUs and a cell's own model "
              "also examples, dropout and every loss. Several take turns as they come; Tensor2Tensor draws its "
              "examples all the same. Gradients' noise is then measured only if --gradient-noise is given (drawn)",
              whole("--seed", 0), metavar="N"),
        flag("--resume", "go on from the latest checkpoint of that run; --train-steps counts its steps too", str,
              completes="run", metavar="RUN"),
        flag("--check", "build one step of the graph before any worker starts (on)", negated=True),
        flag("--when-done", "what goes when the run ends (keep)",
              **one_of("--when-done", choices("when_done"))),
        flag("--pace", "least seconds of a worker's step (of a K80's, with GPU speeds as published in the weather)",
              positive("--pace"), name="pace_seconds", metavar="SECONDS"),
        flag("--wait", _WAIT.format("the run is over")),
        _OUTPUT,
    )  # fmt: skip


def _plan() -> tuple[Option, ...]:
    return (
        word("spec", "[SPEC]", "a cluster, as k80x4; without one the catalog is searched", many="*", completes="gpu"),
        flag("--workload", "what is trained: a run by its name, or a published one, as icac19/resnet-32", str,
              choices=WORKLOADS, completes="workload", metavar="NAME"),
        flag("--model", "or all runs of this Tensor2Tensor model ...", str),
        flag("--hparams-set", "... with this hyper-parameter set ...", str),
        flag("--problem", "... on this problem", str),
        flag("--train-steps", "how many steps, over all workers", whole("--train-steps"), metavar="N"),
        flag("--target", 'instead of steps: "accuracy>=0.9", as runs of the workload got there', str,
              metavar="METRIC>=VALUE"),
        flag("--revocations", "published: lifetimes as measured in 2019 (default); own: those of your VMs; FILE.csv; "
              "none; or how many workers are lost",
              str, choices=("published", "own", "none", "1"), metavar="HOW|N"),
        flag("--replace", "replace revoked workers (on; off where their number is given, as the papers count)",
              negated=True),
        flag("--mode", "async; sync: steps are taken together, each with a mini-batch of every worker (async)",
              **one_of("--mode", ("async", "sync"))),
        flag("--backup-workers", "the slowest that a synchronous step does not wait for (0)",
              whole("--backup-workers", 0), metavar="N"),
        flag("--ps", "number of parameter servers; 0: one worker without any (1; searched without a SPEC)",
              whole("--ps", 0), metavar="N"),
        flag("--ps-cores", "vCPUs of each (4)", whole("--ps-cores"), metavar="N"),
        flag("--zone", "for groups without one; of a search: all that it may look at", zones, completes="zone"),
        flag("--gpus", "of a search: these, each alone and two together: k80,p100 (all whose speed is known)", gpus,
              completes="gpu", metavar="GPU,GPU"),
        flag("--provisioning-model", "how workers are rented (spot; searched without a SPEC)",
              **one_of("--provisioning-model", ("spot", "preemptible", "standard"))),
        flag("--batch-size", "examples of a worker's step (as the workload was measured)", whole("--batch-size"),
              metavar="N"),
        flag("--max-hours", "only what takes no longer: 3h", hours("--max-hours"), metavar="TIME"),
        flag("--max-cost", "only what costs no more, in US dollars", positive("--max-cost"), metavar="DOLLARS"),
        flag("--objective", "which of the best clusters is marked (knee)",
              **one_of("--objective", ("knee", "time", "cost"))),
        _OUTPUT,
    )  # fmt: skip


def _doctor() -> tuple[Option, ...]:
    return (
        word("spec", "[SPEC]", "what to look for, as t4x4 (cpu+t4: a worker without a GPU and a cheap one)", many="*",
             completes="gpu"),
        flag("--project", "a Google Cloud project; without one it is about the emulator", str),
        flag("--spend", "also go through the hour's course, which costs so many US dollars at most: a VM, an image, a "
              "GPU, a step of training, a notice, a checkpoint in the bucket, and nothing left", positive("--spend"),
              metavar="DOLLARS"),
        flag("--yes", "agree to what the course costs"),
        flag("--anyway", "go through the course also where something is not good"),
        flag("--report", "where the report goes, without any names of yours (doctor-report.json in the user's data "
              "directory)", str, name="report_to", completes="path", metavar="FILE"),
        flag("--zone", "several with commas: tried in that order", zones, completes="zone"),
        flag("--bucket", "as of a cluster", bucket),
        flag("--image", "as of a cluster", str, completes="image"),
        flag("--service-account", "as of a cluster", str),
        flag("--network", "as of a cluster", str),
        flag("--subnet", "as of a cluster", str),
        flag("--firewall", "as of a cluster (on)", negated=True),
        flag("--ssh-from", "as of a cluster", address_ranges, metavar="RANGE,..."),
        flag("--no-external-ip", "as of a cluster"),
    )  # fmt: skip


def _weather() -> tuple[Option, ...]:
    # Texts go to the emulator as they are: it alone knows what can be set.
    def several(flags: str, help: str, **more: Any) -> Option:
        return flag(flags, f"{help}; several stand one after the other; none: no more", str, many="extend", **more)

    return (
        _ANY_CLUSTER,
        flag("--revocations", "none; published: lifetimes by GPU and region, in waves; every=60s: one VM at random "
              "each minute; or a CSV file with lifetime_hours (a row per VM) or at_hours,count (a row per wave)", str,
              choices=("none", "published", "every=60s"), metavar="HOW|FILE.csv"),
        flag("--waves", "the share of the VMs with one GPU in one zone that a published wave takes (0.25)", str,
              metavar="SHARE"),
        flag("--hours-per-minute", "how fast time passes for lifetimes, boot times, limits and bills, never for "
              "work; none: as ever", str, choices=("none", "1", "60"), metavar="HOURS"),
        several("--stockout", "no capacity: ZONE[:GPU][,spot][,for=10m][,delay=7s]", completes="zone",
                metavar="ZONE"),
        several("--quota", "at most so many in a region: GPU=N, cpus=N or GPU@REGION=N", metavar="GPU=N"),
        flag("--api-errors", "the share of API requests that fail, before or after they took effect", str,
              metavar="SHARE"),
        flag("--api-latency", "how late the API answers: 100ms, or nine of ten within 50ms..400ms", str,
              choices=("none", "50ms..400ms"), metavar="TIME"),
        flag("--credentials", "accepted; expired: the API refuses every request (expired,for=60s)", str,
              choices=("accepted", "expired", "expired,for=60s"), metavar="HOW"),
        flag("--creation-preemptions", "the share of transient VMs that are preempted before they run", str,
              metavar="SHARE"),
        flag("--boot", "how long VMs take to start: 2s; published: as measured in 2019; they never answer: fails (and "
              "say so), silent", str, choices=("2s", "published", "fails", "silent"), metavar="TIME|HOW"),
        flag("--notice", "the time from the notice of a preemption to the VM's end, 120s at most (30s); scaled: 30 s "
              "of the time that --hours-per-minute makes faster", str, choices=("30s", "0s", "scaled"),
              metavar="TIME|scaled"),
        flag("--gpu-driver", "works; fails: VMs answer, and TensorFlow does not see their GPUs", str,
              choices=("works", "fails"), metavar="HOW"),
        flag("--gpu-speed", "equal; published: steps are paced as measured for the VM's GPU; or how many times as fast "
              "as a K80: k80=1,p100=2", str, choices=("equal", "published"), metavar="HOW|GPU=TIMES,..."),
        flag("--link", "what a VM's network carries each way: 100mbit, or 1gbit,far=100mbit (between regions)", str,
              choices=("none", "100mbit"), metavar="RATE"),
        flag("--seed", "what all chance follows from: the same seed, the same weather", str),
        flag("--reset", "fair weather again, before anything else that is given"),
    )  # fmt: skip


def _lifetimes() -> tuple[Option, ...]:
    formulas = ("exponential", "weibull", "early", "bathtub4", "bathtub5")
    return (
        flag("--gpu", "VMs with this GPU, or cpu (all GPUs)", gpu, completes="gpu"),
        flag("--region", "VMs in this region (all)", known_region, completes="region"),
        flag("--source", "own: your VMs on Compute Engine; emulated: those on the emulator; published: preemptible "
              "VMs of 2018 and 2019; or a CSV file with lifetime_hours, and perhaps revoked (1 or 0), gpu, zone (own "
              "where they are enough, else published)", str, choices=("own", "emulated", "published"),
              metavar="SOURCE|FILE.csv"),
        flag("--provisioning-model", "spot: without a time limit; preemptible: 24 h at most (spot)",
              **one_of("--provisioning-model", ("spot", "preemptible"))),
        flag("--fit", f"which formulas to fit: {', '.join(formulas)}; bathtubs to preemptible VMs only (all)",
              many="extend", **{**one_of("--fit", formulas), "metavar": "FORMULA"}),
        flag("--job", "plan work of that length that is lost with its VM: when to save, which VM to trust",
              duration("--job", "h"), metavar="TIME"),
        flag("--age", "of the VM on which the job would begin (0: a fresh one)", duration("--age", "h"),
              metavar="TIME"),
        flag("--checkpoint-cost", "what a checkpoint of the job takes (1m)", duration("--checkpoint-cost", "m"),
              metavar="TIME"),
        flag("--restart", "what passes until a lost job goes on from its last checkpoint (5m)",
              duration("--restart", "m"), metavar="TIME"),
    )  # fmt: skip


def _check_declare(values: dict[str, Any], called: str) -> None:
    from ..catalog import ACCELERATORS, ZONES
    from ..spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    parse_groups(values["spec"], ACCELERATORS, ZONES)


def _check_resize(values: dict[str, Any], called: str) -> None:
    _check_declare(values, called)


def _study() -> tuple[Option, ...]:
    """Those of a study, and of its runs all that are not its own."""
    own = (
        flag("--over", "what is tried: NAME=A,B,C chooses, NAME=LOW:HIGH is a range, with :log evenly in its "
              "logarithm, with :int in whole numbers. Of Tensor2Tensor's models these are hyper-parameters, a cell's "
              "own reads them by their names", space, metavar="'NAME=VALUES ...'"),
        flag("--trials", "how many points are tried (all of a grid, else 20)", whole("--trials"), metavar="N"),
        flag("--sampler", "who chooses them: grid, each once; random; tpe and gp learn from those before, by Optuna; "
              "gp needs torch, too (grid where only choices are given, else tpe)",
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
        flag("--max-cost", "the study ends when its trials have cost so many US dollars; what is done is kept",
              positive("--max-cost"), metavar="DOLLARS"),
        flag("--max-hours", "it ends after that time", hours("--max-hours"), metavar="TIME"),
        flag("--give-up-after", "a trial that makes no step for so long has failed (15m)",
              duration("--give-up-after", "m"), name="give_up_seconds", metavar="TIME"),
        flag("--seed", "from it follow the points, and the seeds of repeated runs (drawn)", whole("--seed", 0),
              metavar="N"),
        flag("--name", "the study's name (study-1, study-2, ...); its runs are NAME-0, NAME-1, ...",
              lambda text: parse_name(text, "--name")),
        flag("--wait", _WAIT.format("the study is over")),
    )  # fmt: skip
    said = {each.name for each in own} | {"resume", "when_done"}
    when_done = next(each for each in _train() if each.name == "when_done")
    return (*own, *(each for each in _train() if each.name not in said), replace(when_done, help="what goes when the "
            "study ends (keep)"))  # fmt: skip


def _check_study(values: dict[str, Any], called: str) -> None:
    workers = values.pop("workers", None)
    _check_train(values, called)
    if workers is not None:
        values["workers"] = workers


def _check_train(values: dict[str, Any], called: str) -> None:
    if "params" in values:
        values["params"] = dict(values["params"])
    for option in ("checkpoint_every", "speed_alarm", "batch_bounds", "workers"):  # one option, several fields
        values.update(values.pop(option, {}))
    check_run(values)
    if values.get("eval_steps") == 0:  # as without it
        del values["eval_steps"]
    for key in ("include", "pip"):
        if key in values:
            # With commas in a TOML list or by habit; a path that has a comma in its name exists as it stands.
            pieces = (each for text in values[key] for each in ([text] if Path(text).exists() else text.split(",")))
            values[key] = tuple(piece for piece in pieces if piece)


def _check_plan(values: dict[str, Any], called: str) -> None:
    from ..catalog import ACCELERATORS, ZONES
    from ..spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    if values["spec"]:
        parse_groups(values["spec"], ACCELERATORS, ZONES)
    if bool(values.get("workload")) == bool(values.get("model")):
        raise DeclarationError(
            f"{called} needs a --workload, or --model and --problem", fix=f"For example: {called} {EXAMPLES['plan']}"
        )
    if ("train_steps" in values) == ("target" in values):
        raise DeclarationError(
            f"{called} needs --train-steps or --target", fix=f"For example: {called} {EXAMPLES['plan']}"
        )


def _check_doctor(values: dict[str, Any], called: str) -> None:
    if values.get("spec"):
        _check_declare(values, called)
    for option in ("yes", "anyway"):
        if values.get(option) and "spend" not in values:
            raise DeclarationError(f"--{option} is about what --spend pays for", fix=f"For example: {called} --spend 1")


def _check_delete(values: dict[str, Any], called: str) -> None:
    if bool(values.get("name")) == bool(values.get("all")):
        raise DeclarationError(f"{called} needs the cluster's name, or --all", fix=f"For example: {called} k80x4")


def _check_lifetimes(values: dict[str, Any], called: str) -> None:
    if "job" not in values and (
        lonely := next((key for key in ("age", "checkpoint_cost", "restart") if key in values), "")
    ):
        raise DeclarationError(f"--{lonely.replace('_', '-')} is about a job", fix=f"For example: {called} --job 4h")


def _check_catalog(values: dict[str, Any], called: str) -> None:
    from ..catalog import ACCELERATORS

    if gpu := values.get("gpu"):
        values["gpu"] = gpu.lower()
        if values["gpu"] not in ACCELERATORS:
            raise DeclarationError(f"Unknown GPU '{gpu}'", fix=nearest(values["gpu"], ACCELERATORS))


CHECKS: Mapping[str, Callable[[dict[str, Any], str], None]] = {
    "declare": _check_declare,
    "resize": _check_resize,
    "train": _check_train,
    "study": _check_study,
    "delete": _check_delete,
    "doctor": _check_doctor,
    "plan": _check_plan,
    "catalog": _check_catalog,
    "lifetimes": _check_lifetimes,
}
EXAMPLES = {
    "train": "--model resnet --hparams-set resnet_cifar_32 --problem image_digits --train-steps 2000",
    "plan": "k80x4 --workload icac19/resnet-32 --train-steps 64000",
    "study": "--over 'lr=1e-3:1e-1:log' --trials 20 --objective 'max accuracy' --train-steps 2000",
}
DESCRIPTIONS = {
    "declare": "Declare a cluster of transient GPU servers. It is provisioned while you go on.",
    "train": "Train a model on a cluster: one of Tensor2Tensor, or the one that the code defines. "
    "The code runs on the VMs: it must import what it uses.",
    "study": "Train a model many times with different parameters, to find the best ones. Options of a run hold for all "
    "of its runs. Each trial begins as soon as workers are free; runs that wait come before.",
    "list": "The clusters of this machine.",
    "status": "How a cluster is doing, once.",
    "attach": "Show the live panel of a cluster that another notebook declared (with --controller cluster: on another "
    "machine, too), and give its handle.",
    "resize": "Give a cluster other workers.",
    "revoke": "Have a worker taken back, as Compute Engine does it: a notice, then 30 seconds.",
    "move": "Have a run that waits begin next, or before another one that waits. `status` shows their order.",
    "stop": "End a run where it stands, with a last checkpoint; one that waits is taken out of the queue. "
    "Of a study, by its name: all of its trials.",
    "logs": "The last lines that a VM logged.",
    "events": "What happened to a cluster, line by line.",
    "delete": "Delete a cluster: its VMs, disks and addresses. Results stay where they are.",
    "sweep": "Find VMs and firewall rules of yours that no cluster of this machine knows; with --yes, delete them.",
    "doctor": "See whether all is here that training on Google Cloud needs, line by line, with the command that mends "
    "what is not. Nothing is made, unless --spend says so.",
    "catalog": "GPUs that can be declared: their machines, zones and dated prices.",
    "image": "Images that VMs boot from ready to train.",
    "image build": "Bake an image: a VM installs the driver, TensorFlow and Tensor2Tensor, and its disk is the image.",
    "image list": "The images of the project that were baked here, and builds under way.",
    "image delete": "Delete an image. VMs that booted from it are left alone.",
    "export": "Write the model of a run's last checkpoint as a SavedModel. The cluster may be gone.",
    "tensorboard": "Write a run's metrics and events for TensorBoard; again: what is new.",
    "lifetimes": "How long transient VMs live: survival as observed, formulas fitted to it, which to trust how long.",
    "plan": "What a cluster would take and cost for a run, revocations included; without a SPEC, which clusters are "
    "best. Creates nothing.",
    "weather": "What the emulator does to VMs, and how fast its time passes; what is given is set, for all clusters.",
}
EPILOGS = {
    "plan": "A published workload has its own speeds and prices of 2019 and is counted from the first step.\n"
    "A run's are what it and other runs of its model were measured at; GPUs that it never ran on are estimated.",
    "train": "Without --model, --hparams-set and --problem the code defines:\n"
    '  input_fn(mode)   (features, labels) for "train" or "eval": arrays, or a tf.data.Dataset of single examples\n'
    "                   (of batches for a model that begins with keras.Input); a Keras model takes weights as third;\n"
    "                   arrays are shuffled, a dataset shuffles itself; every worker begins somewhere else in them\n"
    "  model            a compiled Keras model, or model_fn(features, labels, mode), which returns a dict with\n"
    "                   loss, optimizer (makes one of a learning rate), learning_rate, predictions, eval_metric_ops\n"
    "  batch_size       examples of a worker's step (32)",
    "study": "The code is that of a run: see %%train -h. A model of its own reads the values by their names, "
    "as in keras.optimizers.Adam(lr).",
    "image": "Sub-commands: {verbs}. `{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(IMAGE_VERBS)),
    "declare": f"Sub-commands: {', '.join(CLUSTER_VERBS)}. `{{called}} SUB-COMMAND -h` explains each.",
}
