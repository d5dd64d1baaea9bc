"""RunSpec: everything that was declared about one run: what the client writes, and controller,
chief and workers read.

One record for all of them, as JSON in `run.json`. What may stand in a field, its annotation says;
which options exclude each other, `contradiction`.
"""

from __future__ import annotations

import keyword
import re
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Literal, Self, get_args

from . import checks
from .checks import Amount, Count, Name, NameOrNone, at_least, within
from .literals import CheckedValue, Value, all_as_json
from .machines import machines_or_none, parse_preparation, preparation_or_none
from .objective import Objective, Patience, objective_or_none, patience_or_none

_AtLeastOne = Annotated[int, at_least(1)]

SETTINGS: Mapping[str, str] = {
    "deadband": "with --batching dynamic, keep mini-batches unless one changes by more than this share",
    "batch_smoothing": "with --batching dynamic, the weight of the newest time in a worker's moving average",
    "step_time": "with --batching dynamic, affine: a step has a fixed part and a part for each example; "
    "proportional: as published",
    "alarm_below": "notify when the run is slower than this share of its workers' best speeds; 0: never",
    "alarm_after": "the seconds of a worker's warm-up before its speed counts for that",
    "noise_share": "the share of its time in which a worker measures the noise of its gradients, for plans with a "
    "target; 0: none; 1: beside every step. With --seed it is measured only if this is set",
    "prep_threads": "how many threads of a worker, or with --prep of a preparation VM, decode records; 0: one for "
    "each core for large records, else 1",
    "confidence": "with --finish-by, how cautious the estimate of speeds is: at a lower end of what was measured",
}
"""The fields of RunSpec that `--set NAME=VALUE` sets, because few runs need them, and what they
mean.
"""

Place = Literal["memory", "shm", "disk"]
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(KB|MB|GB|TB)?(?::(\w+))?", re.ASCII)


def parameter_name(text: str) -> str:
    """A check: a name under which a cell can read a value. Raises ValueError."""
    if not text.isidentifier() or not text.isascii() or len(text) > 60:
        raise ValueError(f"'{text:.40}' is no name that a cell can read")
    if keyword.iskeyword(text) or text.startswith("__"):
        raise ValueError(f"'{text}' is one of Python's own names")
    return text


def cache_or_none(text: str) -> str:
    """A check: what `Cache.parse` reads, or the empty text. Raises ValueError."""
    if text:
        Cache.parse(text)
    return text


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A declared run: which model on which problem (none: the cell's own), how long, and how.

    What is trained: `model`, `hparams_set` and `problem` of Tensor2Tensor's registry, or none of
    them; `hparams` overrides. `data_dir` is where the records are: a folder that every VM has, or a
    place in a bucket (`gs://`). `include` names files sent along, `pip` packages as pip reads them
    (files among them are in the run's folder `pip`); `line_offset` is the line of the notebook's
    cell at which its body begins, so that errors name the user's lines.

    `cache` says how much of records that come in blocks a worker keeps near it, and where (run.py;
    empty: half of what is free on its disk); with it, few records come in blocks as well.
    `prep_threads` decode them at once (0: as many as there are cores for records in blocks, else
    1). `prep` names VMs that prepare mini-batches for the workers (machines.py; empty: none): then
    the threads are theirs, and no records come in blocks. With `share_input` one process on a VM
    prepares them for all trials there.

    `train_steps` is the number of steps of all workers together; 0: as the cell's `model.fit`
    declares, which the check of the run finds out.

    Saving: every `checkpoint_steps` steps and `checkpoint_seconds` seconds (None: not by that);
    `checkpoint_auto` plans the seconds from what checkpoints were measured to cost; the last `keep`
    stay. `chief` is who saves. `store` is the run's place in a bucket (`gs://bucket/path`),
    `resume_store` that of the run it resumes from.

    Steps: `mode`; `backup_workers` are those whose gradients a synchronous step does not wait for.
    `lr_policy` says what divides the learning rate; `damping` staleness lowers that of late
    gradients. `wire` is how numbers cross, `ps_shards` into how many parts large variables are cut.
    `pace_seconds` is the least time of one worker's step, `notice_seconds` lie between the notice
    that a VM is taken and its end (None: what the VM's own scheduling says). `max_workers` and
    `workers` are how many the run may have, and had by declaration; it begins with `least_workers`
    of the cluster's and takes `most_workers` (0: all); or exactly these `machines`, as
    `k80x2+p100x1` (machines.py). Its worker's VM has so many runs of its study (`per_vm`).

    Batching: `deadband`, `batch_smoothing` and `step_time` say how mini-batches follow measured
    times (runtime/training/batching.py); `batch_least` and `batch_most` bound them, in examples or
    tokens (0: 2, and 8 times the declared mini-batch).

    Alarm: `alarm_below` is the share of the workers' own speed below which the run is called slow
    (0: never), `alarm_after` the seconds that each of them warms up before.

    Chance: from `program_seed`, which is `seed` or, where none was declared, `drawn_seed`, follows
    what the cell draws while it is executed, in every process of the run alike
    (runtime/training/reproducibility.py). From a declared `seed` follow the initial values, too, and in
    a graph that a worker builds for a model of the cell's own the order of its examples and its
    dropout (None: these are drawn).

    Measuring: `noise_share` is the share of a worker's time that measures the noise of its
    gradients (0: none; 1: beside every step). An evaluation is made every `eval_steps` (None: at
    the end) of `eval_batches` batches (0: all; None: of a model of the cell's own, all or as much
    as time allows, and 100 of one of Tensor2Tensor).

    Deadline: the run is to be done by `finish_by` (seconds since 1970; 0: whenever), with workers
    of `gpus` in `zones` (empty: as the cluster's), for `max_cost` US dollars at most (None: the
    cluster's limit). `adapt` says who changes the workers for it; speeds are counted at their lower
    bound with this `confidence`. `on_demand_wait`: the longest that a VM on demand was waited for
    there, by what was seen before it was declared (seconds).

    `params`: values that a model of the cell's own reads by their names.

    Stalls: a run with `stalls` trains nothing, but takes the measures of protocol/step_parts.py so many
    times, each for `stall_seconds`.

    Study: the run is the `repeat`-th of trial `trial` of `study` (empty: of none), which judges it
    by `judged_by`.

    Judging: the checkpoint of the best evaluation by `keep_best` stays too, and the run ends under
    the condition `stop_when` (objective.py); empty: neither.
    """

    name: Name
    train_steps: Count
    model: str = ""
    hparams_set: str = ""
    problem: str = ""
    hparams: str = ""
    data_dir: str | None = None
    cache: Annotated[str, cache_or_none] = ""
    prep_threads: Count = 0
    prep: Annotated[str, preparation_or_none] = ""
    share_input: bool = False
    include: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    pip_build: bool = False
    checkpoint_steps: _AtLeastOne | None = 1000
    checkpoint_seconds: Amount | None = 600.0
    checkpoint_auto: bool = False
    keep: _AtLeastOne = 5
    ps_shards: _AtLeastOne = 1
    mode: Literal["async", "sync"] = "async"
    backup_workers: Count = 0
    batching: Literal["uniform", "static", "dynamic"] = "uniform"
    deadband: Annotated[float, within(0, 1)] = 0.05
    batch_smoothing: Annotated[float, within(0, 1)] = 0.3
    batch_least: Count = 0
    batch_most: Count = 0
    step_time: Literal["affine", "proportional"] = "affine"
    lr_policy: Literal["active", "slots", "fixed"] = "active"
    damping: Literal["none", "staleness"] = "none"
    max_workers: Count = 0
    workers: Count = 0
    least_workers: Count = 0
    most_workers: Count = 0
    machines: Annotated[str, machines_or_none] = ""
    per_vm: _AtLeastOne = 1
    chief: Literal["ps", "worker"] = "ps"
    wire: Literal["fp32", "bf16"] = "fp32"
    alarm_below: Annotated[float, within(0, 1)] = 0.8
    alarm_after: Amount = 30.0
    noise_share: Annotated[float, within(0, 1)] = 0.008
    eval_steps: _AtLeastOne | None = None
    eval_batches: Count | None = None
    seed: Annotated[int, within(0, 2**31 - 1)] | None = None
    drawn_seed: Annotated[int, within(0, 2**31 - 1)] = 0
    keep_best: Annotated[str, objective_or_none] = ""
    stop_when: Annotated[str, patience_or_none] = ""
    params: Mapping[Annotated[str, parameter_name], CheckedValue] = field(
        default_factory=dict[str, Value]
    )
    stalls: Count = 0
    stall_seconds: Annotated[float, within(0.05, 600)] = 2.0
    study: NameOrNone = ""
    trial: Count = 0
    repeat: Count = 0
    judged_by: Annotated[str, objective_or_none] = ""
    finish_by: Amount = 0.0
    confidence: Annotated[float, within(0.5, 0.999)] = 0.95
    gpus: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    adapt: Literal["auto", "ask", "off"] = "auto"
    max_cost: Amount | None = None
    on_demand_wait: Amount = 0.0
    resume: str | None = None
    pace_seconds: Amount | None = None
    notice_seconds: Amount | None = None
    when_done: Literal["keep", "workers", "cluster"] = "keep"
    check: bool = True
    line_offset: int = 1
    declared_at: float = 0.0
    store: str | None = None
    resume_store: str | None = None
    threads: Count = 0
    """Of TensorFlow's pools in each process; 0: as many as there are cores."""
    token: str = field(default="", repr=False)

    @property
    def records(self) -> str | None:
        """The place in a bucket where the problem's records are, or go when they are made."""
        if (self.data_dir or "").startswith("gs://"):
            return self.data_dir
        return None

    @property
    def data_folder(self) -> str | None:
        """The folder of every VM in which the records are; None: they come from the chief."""
        return None if self.records else self.data_dir

    @property
    def preparers(self) -> int:
        """How many VMs prepare its mini-batches at most; 0: its workers do."""
        if self.prep:
            return parse_preparation(self.prep)
        return 0

    @property
    def reads_records(self) -> bool:
        """Whether its workers do, and no other process prepares their mini-batches."""
        return not (self.prep or self.share_input)

    @property
    def objective(self) -> Objective | None:
        """By what the best checkpoint is found that stays; of a run that ends early, by what that
        is judged.
        """
        if self.keep_best:
            return Objective.parse(self.keep_best)
        return self.patience.objective if self.patience else None

    @property
    def patience(self) -> Patience | None:
        """When the run ends before its steps are made."""
        if self.stop_when:
            return Patience.parse(self.stop_when)
        return None

    @property
    def program_seed(self) -> int:
        """The seed of what the cell draws while it is executed."""
        return self.drawn_seed if self.seed is None else self.seed

    @property
    def alone(self) -> bool:
        """Whether the one worker that it ever has may keep the variables itself
        (runtime/training/graph/worker.py).
        """
        one = self.most_workers == 1 and not self.stalls
        return one and self.mode == "async" and self.chief == "ps" and self.ps_shards == 1

    @property
    def damped(self) -> bool:
        """Whether late gradients are applied with a lower learning rate."""
        return self.damping == "staleness"

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; `from_dict` reads them back as an equal spec."""
        return {**asdict(self), "params": all_as_json(self.params)}

    def without_token(self) -> dict[str, object]:
        """The same without what only VMs of the run may know."""
        return {name: value for name, value in self.to_dict().items() if name != "token"}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote, of other versions too: unknown fields are ignored, null may
        stand for a default.

        Raises ValueError with the field that is not as it should be.
        """
        may_be_none = {
            each.name for each in fields(cls) if type(None) in typing.get_args(_hints()[each.name])
        }
        given = {
            name: value
            for name, value in values.items()
            if value is not None or name in may_be_none
        }
        return checks.built(cls, given)


@dataclass(frozen=True, slots=True)
class FitDeclaration:
    """The fields of a RunSpec that the cell's `model.fit` declares; 0 or empty: it does not.

    `steps` is the number of steps of all workers together, `epoch_steps` that of an epoch.
    """

    steps: Count = 0
    epoch_steps: Count = 0
    keep_best: Annotated[str, objective_or_none] = ""
    stop_when: Annotated[str, patience_or_none] = ""

    def applied(self, spec: RunSpec) -> RunSpec:
        """Return the declaration of a run with what it leaves to the cell."""
        if spec.train_steps:
            return spec
        keep_best = spec.keep_best or self.keep_best
        stop_when = spec.stop_when or self.stop_when
        eval_steps = spec.eval_steps
        if eval_steps is None and (keep_best or stop_when) and self.epoch_steps:
            eval_steps = self.epoch_steps
        return replace(
            spec,
            train_steps=self.steps,
            keep_best=keep_best,
            stop_when=stop_when,
            eval_steps=eval_steps,
        )

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Read an answer of the check of a run. Raises ValueError."""
        return checks.built(cls, checks.an_object(values))


def choices(name: str, of: type | None = None) -> tuple[str, ...]:
    """The words from which one is chosen in this field (of a run, or `of` another record); none if
    it takes others.
    """
    hint = (typing.get_type_hints(of, include_extras=True) if of else _hints()).get(name)
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return ()


@cache
def _hints() -> Mapping[str, object]:
    return typing.get_type_hints(RunSpec, include_extras=True)


def contradiction(given: Mapping[str, object]) -> tuple[str, str]:
    """Which options that were given (not left out) exclude each other, and what to do; else two
    empty texts.
    """
    missing = [name for name in ("model", "hparams_set", "problem") if not given.get(name)]
    if len(missing) not in (0, 3):
        what = f"A model of Tensor2Tensor needs {' and '.join(map(option, missing))} too"
        return (
            what,
            "Without --model, --hparams-set and --problem, the model that the cell defines is trained.",
        )
    for name in ("hparams", "data_dir", "cache", "prep_threads", "prep", "share_input"):
        if missing and given.get(name):
            what = f"Only a model of Tensor2Tensor takes {option(name)}"
            return what, "A cell with a model of its own says it in the cell."
    if given.get("cache") and str(given.get("data_dir") or "gs://").partition("gs://")[0]:
        return (
            "--cache needs records that workers copy",
            "A folder that every VM has (--data-dir) is read as it is.",
        )
    for name in ("prep", "share_input"):
        if given.get("cache") and given.get(name):
            return (
                f"--cache and {option(name)} cannot be used together",
                f"With {option(name)} no worker reads records.",
            )
    if given.get("params") and not missing:
        what = "Only a cell with a model of its own takes --param"
        return what, "Name hyper-parameters of Tensor2Tensor's models with --hparams."
    sync = given.get("mode") == "sync"
    batching = given.get("batching") or "uniform"
    if given.get("backup_workers") and not sync:
        return "--backup-workers needs --mode sync", "Without it, no step waits for anybody."
    if given.get("damping") == "staleness" and sync:
        return (
            "--damping staleness needs --mode async",
            "No gradient of a synchronous step is late.",
        )
    for name in ("deadband", "batch_smoothing", "step_time"):
        if given.get(name) is not None and batching != "dynamic":
            what = f"{option(name)} needs --batching dynamic"
            return what, "Without it, mini-batches do not follow what is measured."
    judged = next((name for name in ("stop_when", "keep_best") if given.get(name)), "")
    if judged and given.get("eval_steps", 1) in (0, None):
        what = f"{option(judged)} needs evaluations, and --eval-every end makes one"
        return what, "Leave --eval-every out: then there is one every tenth of the steps."
    if given.get("finish_by") and sync:
        return "--finish-by needs --mode async", "More workers make no more synchronous steps."
    for name in ("confidence", "gpus", "zones", "adapt", "max_cost"):
        if given.get(name) and not given.get("finish_by"):
            return f"{option(name)} needs --finish-by", "Add --finish-by 6h, or --finish-by 18:00."
    if (given.get("batch_least") or given.get("batch_most")) and batching == "uniform":
        what = "--batch-bounds needs --batching static or dynamic"
        return what, "Without it, all mini-batches are the declared one."
    return "", ""


def option(name: str) -> str:
    """Return the option that sets this field: `--set deadband`, `--train-steps`."""
    if name in SETTINGS:
        return f"--set {name}"
    return f"--{name.replace('_', '-')}"


# What `--cache 2GB:disk` says: how much of the records a worker keeps near it, and where.


@dataclass(frozen=True)
class Cache:
    """So many `bytes` at most: in the worker's own `memory`, which ends with its process, in `shm`
    (/dev/shm), where its successor on the VM finds them again, or on the VM's `disk`, where it
    finds them as well.
    """

    bytes: int
    place: Place = "disk"

    @classmethod
    def parse(cls, text: str) -> Cache:
        """`2GB`, `500MB:memory`, `0`. Raises ValueError for anything else."""
        found = _FORM.fullmatch(text)
        if found:
            size = float(found[1]) * _UNITS.get(found[2] or "", 0)
        else:
            size = -1.0
        if not found or (not found[2] and float(found[1])) or size >= 2**62:
            raise ValueError(f"'{text:.40}' is no size: write 2GB or 500MB:memory")
        for place in get_args(Place):
            if place == (found[3] or "disk"):
                return cls(int(size), place)
        raise ValueError(
            f"'{text:.40}' has an unknown place: write one of {', '.join(get_args(Place))}"
        )
