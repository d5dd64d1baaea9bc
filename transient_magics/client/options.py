"""The table behind `arguments`: each option of each sub-command, how its text becomes a value, and what completes it.

An option says where its value goes (the name of the client's parameter), how it reads text, and which words complete
it. Values that belong to work not done yet are refused by one sentence rather than passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import DeclarationError
from ..spec import check_model, parse_duration, parse_interval, parse_name
from ..spec.grammar import nearest

CLUSTER_VERBS = ("list", "status", "attach", "resize", "revoke", "logs", "events", "delete", "sweep")
IMAGE_VERBS = ("build", "list", "delete")
PROGRAM_VERBS = (
    "cluster", "train", "plan", "export", "tensorboard", "weather", "lifetimes", "image", "emulator", "catalog",
)  # fmt: skip


WORKLOADS = (
    "icac19/resnet-32", "cmdare/resnet-15", "cmdare/resnet-32", "cmdare/shake-shake-small", "cmdare/shake-shake-big",
)  # fmt: skip
"""The published workloads of the planner, which is not loaded to complete their names."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option (`flags` begin with '-') or one word by position.

    `completes` names what completes its value: `gpu`, `zone`, `region`, `cluster`, `worker`, `run`, `image`, `path`,
    or nothing.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    read: Callable[[str], Any] | None = str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    completes: str = ""
    many: str = ""
    negated: bool = False
    required: bool = False

    @property
    def takes_value(self) -> bool:
        """False for a switch."""
        return self.read is not None

    @property
    def spellings(self) -> tuple[str, ...]:
        """All flags under which it can be given."""
        return (*self.flags, *(f"--no-{flag[2:]}" for flag in self.flags if self.negated))

    def for_argparse(self) -> dict[str, Any]:
        """The keyword arguments with which argparse declares it. Nothing is set that the user did not give."""
        import argparse

        common: dict[str, Any] = {"help": self.help.replace("%", "%%")}
        positional = not self.flags[0].startswith("-")
        if not positional:
            common |= {"dest": self.name, "default": argparse.SUPPRESS}
        if self.negated:
            return {**common, "action": argparse.BooleanOptionalAction}
        if self.read is None:
            return {**common, "action": "store_const", "const": not self.flags[0].startswith("--no-")}
        if self.many == "extend":
            common |= {"nargs": "+", "action": "extend"}
        elif self.many:
            common["nargs"] = self.many
        return {**common, "type": self.read, "metavar": self.metavar}


def declared(verb: str, *, file: bool = False) -> tuple[Option, ...]:
    """The options of a sub-command, of `declare`, `train` or `catalog`, in the order of their help."""
    options = _table()[verb]
    return (
        (_word("source", "FILE", "the Tensor2Tensor code, a Python file", completes="path"), *options)
        if file
        else options
    )


def _flag(
    flags: str, help: str, read: Callable[[str], Any] | None = None, *, name: str = "", metavar: str = "", **more: Any
) -> Option:
    spelled = tuple(flags.split())
    long = spelled[-1].removeprefix("--").removeprefix("no-" if read is None else "").replace("-", "_")
    return Option(name or long, spelled, help, read, metavar or long.rpartition("_")[2].upper(), **more)


def _word(name: str, metavar: str, help: str, **more: Any) -> Option:
    return Option(name, (name,), help, metavar=metavar, **more)


def _choice(option: str, words: Iterable[str]) -> dict[str, Any]:
    allowed = tuple(words)

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise DeclarationError(f"{option} cannot be '{text}'", fix=nearest(word, allowed))
        return word

    return {"read": read, "choices": allowed, "metavar": "|".join(allowed)}


def _whole(option: str, least: int = 1) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.strip().isdigit() or int(text) < least:
            raise DeclarationError(f"{option} takes a whole number from {least} on, not '{text}'")
        return int(text)

    return read


def _number(option: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text.strip().removeprefix("$"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise DeclarationError(f"{option} takes a number above zero, not '{text}'")
        return value

    return read


def _duration(option: str, unit: str) -> Callable[[str], float]:
    return lambda text: parse_duration(text, option, unit=unit)


def _zones(text: str) -> tuple[str, ...]:
    from ..catalog import ZONES

    zones = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    for zone in zones:
        if zone not in ZONES:
            raise DeclarationError(f"'{zone}' is no zone that we know", where="--zone", fix=nearest(zone, ZONES))
    return zones


def _one_zone(text: str) -> str:
    zones = _zones(text)
    if len(zones) != 1:
        raise DeclarationError("One zone, please", where="--zone")
    return zones[0]


def _fallback(text: str) -> float | None:
    word, _, time = text.strip().lower().partition("=")
    if word == "none" and not time:
        return None
    if word != "on-demand":
        raise DeclarationError(
            f"'{text}' is no fallback", where="--fallback", fix="Write on-demand, or on-demand=10m for another time."
        )
    return parse_duration(time, "--fallback", unit="m") if time else 600.0


def _ranges(text: str) -> tuple[str, ...]:
    import ipaddress

    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise DeclarationError(f"{error}", where="--ssh-from", fix="For example: 203.0.113.0/24.") from None
    return tuple(found)


def _bucket(text: str) -> str:
    from ..spec import parse_bucket

    return "none" if text.strip().lower() == "none" else parse_bucket(text, "--bucket")


def _variable(text: str) -> str:
    if not text.isidentifier():
        raise DeclarationError(f"-o takes a variable's name, not '{text}'")
    return text


def _overrides(text: str) -> str:
    import re

    if text and not re.match(r"\s*\w+(\[\d+\])?\s*=", text):
        raise DeclarationError(f"'{text}' overrides nothing", where="--hparams", fix="Write name=value,name=value.")
    return text


def _evaluate_every(text: str) -> int | None:
    return None if text.strip().lower() == "end" else _whole("--eval-every")(text)


def _interval(text: str) -> dict[str, Any]:
    if text.strip().lower() == "auto":
        return {"checkpoint_steps": None, "checkpoint_auto": True}
    steps, seconds = parse_interval(text, "--checkpoint-every")
    return {"checkpoint_steps": steps, "checkpoint_seconds": seconds}


def _alarm(text: str) -> dict[str, Any]:
    share, _, warm_up = text.strip().lower().partition(",")
    if share == "off" and not warm_up:
        return {"alarm_below": 0.0}
    below = _number("--speed-alarm")(share)
    if below >= 1:
        raise DeclarationError(f"--speed-alarm takes a share below 1, not '{share}'", fix="For example: 0.8,30s")
    return {"alarm_below": below, **({"alarm_after": parse_duration(warm_up, "--speed-alarm")} if warm_up else {})}


_WAIT = "return only when {}"
_OUTPUT = _flag("-o --output", "bind the handle to this name in the notebook", _variable, metavar="NAME")
_CLUSTER_NAME = _word("name", "NAME", "the cluster", completes="cluster")
_ANY_CLUSTER = _word("name", "NAME", "the cluster (default: the latest one)", completes="cluster", many="?")
_RUN = _word("run", "RUN", "the run, by its name", completes="run")
_OF_CLUSTER = _flag("--cluster", "the cluster that it ran on (the latest with a run of that name)", str,
                    completes="cluster", metavar="NAME")  # fmt: skip
_PROJECT = _flag("--project", "a Google Cloud project; without one it is about the emulator", str)
_WORKER = _word("worker", "WORKER", "one of its VMs, as worker-1 or ps-0", completes="worker")


@cache
def _table() -> Mapping[str, tuple[Option, ...]]:
    # A function, so that importing this module costs nothing before the first cell uses it.
    return {
        "declare": _declare(),
        "train": _train(),
        "list": (_flag("--all", "deleted ones too"),),
        "status": (_ANY_CLUSTER,),
        "attach": (_ANY_CLUSTER, _PROJECT, _OUTPUT),
        "resize": (_CLUSTER_NAME, _word("spec", "SPEC", "the workers that it is to have", many="+", completes="gpu")),
        "revoke": (
            _CLUSTER_NAME,
            _WORKER,
            _flag("--in", "when the notice comes: 30s, 2m (default: now)", _duration("--in", "s"), name="seconds",
                  metavar="TIME"),
        ),
        "logs": (_CLUSTER_NAME, _WORKER, _flag("--lines", "how many of the last lines (200)", _whole("--lines"))),
        "events": (
            _ANY_CLUSTER,
            _flag("--kind", "only this kind, as vm.revoked, or a group of kinds, as vm", str),
            _flag("--follow", "go on until interrupted"),
        ),
        "delete": (
            _word("name", "NAME", "the cluster", completes="cluster", many="?"),
            _flag("--all", "every cluster"),
        ),
        "sweep": (_PROJECT,),
        "catalog": (
            _word("gpu", "GPU", "all about this one: zones, prices, limits", many="?", completes="gpu"),
            _flag("--project", "ask Google for today's prices first, with this project's right to", str),
        ),
        "export": (
            _RUN,
            _word("folder", "FOLDER", "where the model goes; new or empty", completes="path"),
            _OF_CLUSTER,
            _flag("--data-dir", "where the problem's vocabulary is on this machine, if it has one", str,
                  metavar="FOLDER"),
        ),
        "tensorboard": (
            _RUN,
            _word("folder", "FOLDER", "where they go (the run's own)", many="?", completes="path"),
            _OF_CLUSTER,
        ),
        "plan": _plan(),
        "weather": _weather(),
        "lifetimes": _lifetimes(),
        "image": (_word("verb", "|".join(IMAGE_VERBS), "what to do; each has -h", many="?"),),
        "image build": _build(),
        "image list": (_PROJECT,),
        "image delete": (_word("name", "NAME", "the image", completes="image"), _PROJECT),
    }  # fmt: skip


def _declare() -> tuple[Option, ...]:
    duration, number, whole = _duration, _number, _whole
    return (
        _word("spec", "SPEC", "GROUP+GROUP..., each GPU[xCOUNT][@ZONE], as k80x4", many="*", completes="gpu"),
        _flag("--name", "the cluster's name (short, from SPEC)", lambda text: parse_name(text, "--name")),
        _flag("--ps", "number of parameter servers, always on demand (1)", whole("--ps"), metavar="N"),
        _flag("--ps-cores", "vCPUs of each (4)", whole("--ps-cores"), metavar="N"),
        _flag("--zone", "for groups without one; several with commas: tried in that order", _zones, completes="zone"),
        _flag("--provisioning-model", "how workers are rented (spot)",
              **_choice("--provisioning-model", ("spot", "preemptible", "standard"))),
        _flag("--max-workers", "no resize goes beyond it (twice the workers)", whole("--max-workers"), metavar="N"),
        _flag("--replace", "replace revoked workers (on)", negated=True),
        _flag("--fallback", "on-demand[=10m]: workers on demand after that time without Spot capacity", _fallback,
              name="fallback_seconds", metavar="on-demand[=TIME]"),
        _flag("--chief", "who saves checkpoints: the parameter server's VM, or a worker, and another one when that is "
              "revoked, as published systems do (ps)", **_choice("--chief", ("ps", "worker"))),
        _flag("--max-hours", "hard limit, also enforced by Compute Engine: 24h", duration("--max-hours", "h"),
              metavar="TIME"),
        _flag("--max-cost", "hard limit in US dollars", number("--max-cost"), metavar="DOLLARS"),
        _flag("--idle", "without a run for so long, workers are deleted: 30m", duration("--idle", "m"), metavar="TIME"),
        _flag("--project", "a Google Cloud project; without one all is emulated and free", str),
        _flag("--bucket", "where checkpoints and results live: NAME, gs://NAME/FOLDER, or none: they come to this "
              "machine (with a project one of its own, else none)", _bucket),
        _flag("--image", "the VMs' image: NAME or family/NAME of the project, or a URL (one that was baked for this "
              "version, else Debian 12)", str, completes="image"),
        _flag("--service-account", "the VMs' service account", str),
        _flag("--network", "the VMs' network", str),
        _flag("--subnet", "the VMs' subnet", str),
        _flag("--firewall", "rules that close the VMs to others of the project (on)", negated=True),
        _flag("--ssh-from", "address ranges that SSH may come from (everywhere; only keys open it)", _ranges,
              metavar="RANGE,..."),
        _flag("--no-external-ip", "no external address: SSH goes through Identity-Aware Proxy"),
        _flag("--controller", "where the controller runs: here, or on the cluster's parameter server, so that this "
              "machine may be off (with a project and a bucket: cluster, else local)",
              **_choice("--controller", ("local", "cluster"))),
        _flag("--dry-run", "show what would be created and its price; create nothing"),
        _flag("--wait", _WAIT.format("the cluster is ready")),
        _OUTPUT,
    )  # fmt: skip


def _build() -> tuple[Option, ...]:
    return (
        _word("name", "NAME", "the image's name (transient- and the time)", many="?"),
        _PROJECT,
        _flag("--zone", "where the VM is that it is made with (the catalog's best)", _one_zone, completes="zone"),
        _flag("--base", "what it is made from: NAME or family/NAME of the project, or a URL (Debian 12)", str,
              metavar="IMAGE"),
        _flag("--no-gpu", "without an NVIDIA driver"),
        _flag("--machine-type", "of that VM (n1-standard-4)", str),
        _flag("--disk-gb", "of its disk, and of VMs that boot from the image (50)",
              _whole("--disk-gb", 10), metavar="GB"),
        _flag("--network", "that VM's network", str),
        _flag("--subnet", "that VM's subnet", str),
        _flag("--no-external-ip", "no external address: packages come through Cloud NAT"),
        _flag("--wait", _WAIT.format("the image is there")),
    )  # fmt: skip


def _train() -> tuple[Option, ...]:
    return (
        _flag("--model", "a Tensor2Tensor model by its name in the registry (the cell's own model)", str),
        _flag("--hparams-set", "its hyper-parameter set", str),
        _flag("--problem", "the problem to train it on", str),
        _flag("--train-steps", "how many steps, over all workers", _whole("--train-steps"), metavar="N", required=True),
        _flag("--cluster", "which cluster (the latest)", str, completes="cluster", metavar="NAME"),
        _flag("--name", "the run's name (run-1, run-2, ...)", lambda text: parse_name(text, "--name")),
        _flag("--hparams", "overrides: batch_size=64,learning_rate=0.1", _overrides, metavar="NAME=VALUE,..."),
        _flag("--data-dir", "where the TFRecords are; gs://BUCKET/FOLDER: kept there for all clusters (made once by "
              "generate_data)", str, metavar="PLACE"),
        _flag("--include", "local modules or folders to send along", str, completes="path", many="extend",
              metavar="PATH"),
        _flag("--pip", "packages to install on the VMs for this run, by name or file", str, completes="path",
              many="extend", metavar="PACKAGE"),
        _flag("--checkpoint-every", "in steps or time: 500, 5m; auto: as often as saving takes 1 % of the time, and "
              "at least every 10 min (1000 steps, and at least every 10 min)", _interval, choices=("auto",),
              metavar="STEPS|TIME|auto"),
        _flag("--ps-shards", "partitions of large variables (one per parameter server)", _whole("--ps-shards"),
              metavar="N"),
        _flag("--mode", "async: each worker's gradient as it comes; sync: one step with the mean of all (async)",
              **_choice("--mode", ("async", "sync"))),
        _flag("--backup-workers", "with --mode sync: a step does not wait for the N slowest workers (0)",
              _whole("--backup-workers", 0), metavar="N"),
        _flag("--batching", "mini-batches: all alike, by the GPUs' speeds as known, or as measured (uniform)",
              **_choice("--batching", ("uniform", "static", "dynamic"))),
        _flag("--lr-policy", "which n divides the learning rate, as 1/sqrt(n); with --mode sync active is 1 (active)",
              **_choice("--lr-policy", ("active", "slots", "fixed"))),
        _flag("--damping", "staleness: a gradient that comes N steps late has 1/N of the learning rate (none)",
              **_choice("--damping", ("none", "staleness"))),
        _flag("--wire", "how numbers cross between workers and parameter servers; bf16: in half the bytes (fp32)",
              **_choice("--wire", ("fp32", "bf16"))),
        _flag("--speed-alarm", "tell when the run is slower than this share of its workers' best speeds, each measured "
              "after a warm-up; off (0.8,30s)", _alarm, choices=("off", "0.8,30s"), metavar="SHARE[,TIME]"),
        _flag("--eval-every", "evaluate every N steps (end)", _evaluate_every, name="eval_steps", metavar="N|end"),
        _flag("--resume", "go on from the latest checkpoint of that run", str, completes="run", metavar="RUN"),
        _flag("--check", "build one step of the graph before any worker starts (on)", negated=True),
        _flag("--when-done", "what goes when the run ends (keep)",
              **_choice("--when-done", ("keep", "workers", "cluster"))),
        _flag("--pace", "least seconds of a worker's step (of a K80's, with GPU speeds as published in the weather)",
              _number("--pace"), name="pace_seconds", metavar="SECONDS"),
        _flag("--wait", _WAIT.format("the run is over")),
        _OUTPUT,
    )  # fmt: skip


def _plan() -> tuple[Option, ...]:
    return (
        _word("spec", "[SPEC]", "a cluster, as k80x4; without one the catalog is searched", many="*", completes="gpu"),
        _flag("--workload", "what is trained: a run by its name, or a published one, as icac19/resnet-32", str,
              choices=WORKLOADS, completes="workload", metavar="NAME"),
        _flag("--model", "or all runs of this Tensor2Tensor model ...", str),
        _flag("--hparams-set", "... with this hyper-parameter set ...", str),
        _flag("--problem", "... on this problem", str),
        _flag("--train-steps", "how many steps, over all workers", _whole("--train-steps"), metavar="N"),
        _flag("--target", 'instead of steps: "accuracy>=0.9", as runs of the workload got there', str,
              metavar="METRIC>=VALUE"),
        _flag("--revocations", "published: lifetimes as measured in 2019 (default); own: those of your VMs; FILE.csv; "
              "none; or how many workers are lost",
              str, choices=("published", "own", "none", "1"), metavar="HOW|N"),
        _flag("--replace", "replace revoked workers (on; off where their number is given, as the papers count)",
              negated=True),
        _flag("--ps", "number of parameter servers; 0: one worker without any (1; searched without a SPEC)",
              _whole("--ps", 0), metavar="N"),
        _flag("--ps-cores", "vCPUs of each (4)", _whole("--ps-cores"), metavar="N"),
        _flag("--zone", "for groups without one; of a search: all that it may look at", _zones, completes="zone"),
        _flag("--provisioning-model", "how workers are rented (spot; searched without a SPEC)",
              **_choice("--provisioning-model", ("spot", "preemptible", "standard"))),
        _flag("--batch-size", "examples of a worker's step (as the workload was measured)", _whole("--batch-size"),
              metavar="N"),
        _flag("--max-hours", "only what takes no longer: 3h",
              lambda text: parse_duration(text, "--max-hours", unit="h") / 3600, metavar="TIME"),
        _flag("--max-cost", "only what costs no more, in US dollars", _number("--max-cost"), metavar="DOLLARS"),
        _flag("--objective", "which of the best clusters is marked (knee)",
              **_choice("--objective", ("knee", "time", "cost"))),
        _OUTPUT,
    )  # fmt: skip


def _weather() -> tuple[Option, ...]:
    # Texts go to the emulator as they are: it alone knows what can be set.
    def several(flags: str, help: str, **more: Any) -> Option:
        return _flag(flags, f"{help}; several stand one after the other; none: no more", str, many="extend", **more)

    return (
        _ANY_CLUSTER,
        _flag("--revocations", "none; published: lifetimes by GPU and region, in waves; every=60s: one VM at random "
              "each minute; or a CSV file with lifetime_hours (a row per VM) or at_hours,count (a row per wave)", str,
              choices=("none", "published", "every=60s"), metavar="HOW|FILE.csv"),
        _flag("--waves", "the share of the VMs with one GPU in one zone that a published wave takes (0.25)", str,
              metavar="SHARE"),
        _flag("--hours-per-minute", "how fast time passes for lifetimes, boot times, limits and bills, never for "
              "notices and work; none: as ever", str, choices=("none", "1", "60"), metavar="HOURS"),
        several("--stockout", "no capacity: ZONE[:GPU][,spot][,for=10m][,delay=7s]", completes="zone",
                metavar="ZONE"),
        several("--quota", "at most so many in a region: GPU=N, cpus=N or GPU@REGION=N", metavar="GPU=N"),
        _flag("--api-errors", "the share of API requests that fail, before or after they took effect", str,
              metavar="SHARE"),
        _flag("--api-latency", "how late the API answers: 100ms, or nine of ten within 50ms..400ms", str,
              choices=("none", "50ms..400ms"), metavar="TIME"),
        _flag("--credentials", "accepted; expired: the API refuses every request (expired,for=60s)", str,
              choices=("accepted", "expired", "expired,for=60s"), metavar="HOW"),
        _flag("--creation-preemptions", "the share of transient VMs that are preempted before they run", str,
              metavar="SHARE"),
        _flag("--boot", "how long VMs take to start: 2s; published: as measured in 2019", str,
              choices=("2s", "published"), metavar="TIME"),
        _flag("--gpu-speed", "equal; published: steps are paced as measured for the VM's GPU", str,
              choices=("equal", "published")),
        _flag("--link", "what a VM's network carries each way: 100mbit, or 1gbit,far=100mbit (between regions)", str,
              choices=("none", "100mbit"), metavar="RATE"),
        _flag("--seed", "what all chance follows from: the same seed, the same weather", str),
        _flag("--reset", "fair weather again, before anything else that is given"),
    )  # fmt: skip


def _lifetimes() -> tuple[Option, ...]:
    duration, formulas = _duration, ("exponential", "weibull", "early", "bathtub4", "bathtub5")
    return (
        _flag("--gpu", "VMs with this GPU, or cpu (all GPUs)", _gpu, completes="gpu"),
        _flag("--region", "VMs in this region (all)", _region, completes="region"),
        _flag("--source", "own: your VMs on Compute Engine; emulated: those on the emulator; published: preemptible "
              "VMs of 2018 and 2019; or a CSV file with lifetime_hours, and perhaps revoked (1 or 0), gpu, zone (own "
              "where they are enough, else published)", str, choices=("own", "emulated", "published"),
              metavar="SOURCE|FILE.csv"),
        _flag("--provisioning-model", "spot: without a time limit; preemptible: 24 h at most (spot)",
              **_choice("--provisioning-model", ("spot", "preemptible"))),
        _flag("--fit", f"which formulas to fit: {', '.join(formulas)}; bathtubs to preemptible VMs only (all)",
              many="extend", **{**_choice("--fit", formulas), "metavar": "FORMULA"}),
        _flag("--job", "plan work of that length that is lost with its VM: when to save, which VM to trust",
              duration("--job", "h"), metavar="TIME"),
        _flag("--age", "of the VM on which the job would begin (0: a fresh one)", duration("--age", "h"),
              metavar="TIME"),
        _flag("--checkpoint-cost", "what a checkpoint of the job takes (1m)", duration("--checkpoint-cost", "m"),
              metavar="TIME"),
        _flag("--restart", "what passes until a lost job goes on from its last checkpoint (5m)",
              duration("--restart", "m"), metavar="TIME"),
    )  # fmt: skip


def _gpu(text: str) -> str:
    from ..catalog import accelerator

    return accelerator(text.strip().lower()).name


def _region(text: str) -> str:
    from ..catalog import ZONES, region

    regions = {region(zone) for zone in ZONES}
    if (place := text.strip().lower()) not in regions:
        raise DeclarationError(f"'{text}' is no region that we know", where="--region", fix=nearest(place, regions))
    return place


def _check_declare(values: dict[str, Any], called: str) -> None:
    from ..catalog import ACCELERATORS, ZONES
    from ..spec import parse_groups

    values["spec"] = " ".join(values.get("spec", ()))
    parse_groups(values["spec"], ACCELERATORS, ZONES)


def _check_resize(values: dict[str, Any], called: str) -> None:
    _check_declare(values, called)


def _check_train(values: dict[str, Any], called: str) -> None:
    check_model(values)
    if values.get("backup_workers") and values.get("mode") != "sync":
        raise DeclarationError("--backup-workers needs --mode sync", fix="Without it, no step waits for anybody.")
    if values.get("damping") == "staleness" and values.get("mode") == "sync":
        raise DeclarationError(
            "--damping staleness needs --mode async", fix="No gradient of a synchronous step is late."
        )
    for option in ("checkpoint_every", "speed_alarm"):  # one option, several fields
        values.update(values.pop(option, {}))
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
            raise DeclarationError(f"'{gpu}' is no GPU that we know", fix=nearest(values["gpu"], ACCELERATORS))


CHECKS: Mapping[str, Callable[[dict[str, Any], str], None]] = {
    "declare": _check_declare,
    "resize": _check_resize,
    "train": _check_train,
    "delete": _check_delete,
    "plan": _check_plan,
    "catalog": _check_catalog,
    "lifetimes": _check_lifetimes,
}
EXAMPLES = {
    "train": "--model resnet --hparams-set resnet_cifar_32 --problem image_digits --train-steps 2000",
    "plan": "k80x4 --workload icac19/resnet-32 --train-steps 64000",
}
DESCRIPTIONS = {
    "declare": "Declare a cluster of transient GPU servers. It is provisioned while you go on.",
    "train": "Train a model on a cluster: one of Tensor2Tensor, or the one that the code defines. "
    "The code runs on the VMs: it must import what it uses.",
    "list": "The clusters of this machine.",
    "status": "How a cluster is doing, once.",
    "attach": "Show the live panel of a cluster that another notebook declared (with --controller cluster: on another "
    "machine, too), and give its handle.",
    "resize": "Give a cluster other workers.",
    "revoke": "Have a worker taken back, as Compute Engine does it: a notice, then 30 seconds.",
    "logs": "The last lines that a VM logged.",
    "events": "What happened to a cluster, line by line.",
    "delete": "Delete a cluster: its VMs, disks and addresses. Results stay where they are.",
    "sweep": "Find VMs that no cluster of this machine knows, and delete them.",
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
    "  model            a compiled Keras model, or model_fn(features, labels, mode), which returns a dict with\n"
    "                   loss, optimizer (makes one of a learning rate), learning_rate, predictions, eval_metric_ops\n"
    "  batch_size       examples of a worker's step (32)",
    "image": "Sub-commands: {verbs}. `{{called}} SUB-COMMAND -h` explains each.".format(verbs=", ".join(IMAGE_VERBS)),
    "declare": f"Sub-commands: {', '.join(CLUSTER_VERBS)}. `{{called}} SUB-COMMAND -h` explains each.",
}
