"""RunSpec: the complete declaration of one run, written by the client and read by all others.

Controller, chief and workers read the same record, as JSON in `run.json`. The annotation of a field
defines its valid values; `contradiction` defines which options exclude each other.
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
    "deadband": "with --batching dynamic, change mini-batches only if one of them changes by more "
    "than this share",
    "batch_smoothing": "with --batching dynamic, the weight of the latest step in the moving "
    "average of a worker's step times",
    "step_time": "with --batching dynamic, the model of step times. affine: a constant and a time "
    "per example; proportional: only a time per example, as published",
    "alarm_below": "report when the run is slower than this share of its workers' best speeds; 0: "
    "never",
    "alarm_after": "the warm-up of a worker in seconds, after which alarm_below applies",
    "noise_share": "the share of its time in which a worker measures the noise of its gradients, "
    "for plans with a target; 0: none; 1: at every step. With --seed, this must be "
    "set to measure the noise",
    "prep_threads": "the number of threads that decode the records of a worker (with --prep, of a "
    "preparation VM); 0: one per core if records are read in blocks, otherwise one",
    "confidence": "with --finish-by, the confidence with which the speed is at least its estimate",
}
"""Fields of RunSpec that `--set NAME=VALUE` sets, because few runs need them, and their help."""

Place = Literal["memory", "shm", "disk"]
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FORM = re.compile(r"(\d+(?:\.\d+)?)(KB|MB|GB|TB)?(?::(\w+))?", re.ASCII)


def parameter_name(text: str) -> str:
    """Check a name under which a cell can read a value. Raises ValueError."""
    if not text.isidentifier() or not text.isascii() or len(text) > 60:
        raise ValueError(f"'{text:.40}' is not a name that a cell can read")
    if keyword.iskeyword(text) or text.startswith("__"):
        raise ValueError(f"'{text}' is reserved by Python")
    return text


def cache_or_none(text: str) -> str:
    """Check a text that `Cache.parse` reads, or the empty text. Raises ValueError."""
    if text:
        Cache.parse(text)
    return text


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A declared run: which model on which problem (none: the cell's own), how long, and how.

    Model: `model`, `hparams_set` and `problem` name entries of Tensor2Tensor's registry, or all are
    empty; `hparams` overrides hyperparameters. `data_dir` is the location of the records: a folder
    that every VM has, or a location in a bucket (`gs://`). `include` names files that are sent
    along. `pip` lists packages as pip reads them (files among them are in the run's folder `pip`).
    `line_offset` is the line of the notebook's cell at which its body begins, so errors show the
    user's line numbers.

    Records: `cache` defines how much of the records that come in blocks a worker keeps near it, and
    where (`Cache`; empty: half of the free space on its disk). With `cache`, few records come in
    blocks too. `prep_threads` is the number of threads that decode records (0: one for each core
    for records in blocks, else 1). `prep` names VMs that prepare mini-batches for the workers
    (machines.py; empty: none). The threads are then theirs, and no records come in blocks. With
    `share_input`, one process on a VM prepares mini-batches for all trials there.

    Length: `train_steps` is the number of steps of all workers together (0: the cell's `model.fit`
    declares it, and the check of the run reads it). A cell that calls `fit` several times trains
    one phase after the other: the present one makes `phase_steps` steps from the step `phase_begin`
    on (0: the run has one phase). On a VM, `train_steps` is the last step of the present phase.

    Saving: the run is saved every `checkpoint_steps` steps and every `checkpoint_seconds` seconds
    (None: not by this). `checkpoint_auto` plans the seconds from the measured cost of checkpoints.
    The last `keep` checkpoints stay. `chief` is the role that saves. `store` is the run's location
    in a bucket (`gs://bucket/path`), `resume_store` that of the run from which it resumes.

    Steps: `mode` selects synchronous or asynchronous steps. A synchronous step does not wait for
    the gradients of `backup_workers`. `lr_policy` selects the divisor of the learning rate;
    `damping` staleness lowers the learning rate for late gradients. `wire` is the number format on
    the network, and `ps_shards` the number of parts into which large variables are cut.
    `pace_seconds` is the minimum time of a worker's step. `notice_seconds` is the time between a
    preemption notice and the end of the VM (None: according to the VM's scheduling).

    Workers: `max_workers` is the maximum for the run, and `workers` the declared number. The run
    begins with `least_workers` of the cluster's workers and takes at most `most_workers` (0: all).
    Or it takes exactly these `machines`, such as `k80x2+p100x1` (machines.py). The VM of its worker
    trains `per_vm` runs of its study.

    Batching: `deadband`, `batch_smoothing` and `step_time` define how mini-batches follow measured
    times (runtime/training/batching.py). `batch_least` and `batch_most` limit them, in examples or
    tokens (0: 2, and 8 times the declared mini-batch).

    Alarm: a run is slow below the share `alarm_below` of its workers' own speed (0: never). Each
    worker first warms up for `alarm_after` seconds.

    Randomness: `program_seed` is `seed` or, if none was declared, `drawn_seed`. It seeds what the
    cell draws during its execution, in every process of the run alike
    (runtime/training/reproducibility.py). A declared `seed` also fixes the initial values. For a
    graph that a worker builds for the cell's own model, it also fixes the order of the examples and
    the dropout (None: these are random).

    Measuring: `noise_share` is the share of a worker's time for measuring the noise of its
    gradients (0: none; 1: beside every step). An evaluation is made every `eval_steps` (None: at
    the end) with `eval_batches` batches. 0 means all. None means 100 for a model of Tensor2Tensor,
    and all or as much as time allows for a model of the cell's own.

    Deadline: the run must end by `finish_by` (seconds since 1970; 0: no deadline). It uses workers
    with `gpus` in `zones` (empty: as the cluster's) for at most `max_cost` US dollars (None: the
    cluster's limit). `adapt` selects who changes the workers. Speeds count at their lower bound
    with this `confidence`. `on_demand_wait` is the longest wait for an on-demand VM there, in
    seconds, as observed before the declaration.

    Parameters: `params` are values that a model of the cell's own reads by name.

    Stalls: a run with `stalls` trains nothing. It takes the measures of protocol/step_parts.py
    `stalls` times, each for `stall_seconds`.

    Study: the run is repetition `repeat` of trial `trial` of `study` (empty: of none), which judges
    it by `judged_by`.

    Epochs of the cell's `model.fit`: the steps of one (0: the run has no epochs), and the number of
    the first (as Keras counts, from 0). With `callbacks`, workers wait at the end of each epoch until
    the cell's callbacks were called. Without them, they wait for a quick evaluation.

    Judging: the checkpoint of the best evaluation by `keep_best` is also kept, and the run ends
    under the condition `stop_when` (objective.py); empty: neither.
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
    epoch_steps: Count = 0
    first_epoch: Count = 0
    callbacks: bool = False
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
    phase_begin: Count = 0
    phase_steps: Count = 0
    check: bool = True
    line_offset: int = 1
    declared_at: float = 0.0
    store: str | None = None
    resume_store: str | None = None
    threads: Count = 0
    """Threads of TensorFlow's pools in each process; 0: one for each core."""
    token: str = field(default="", repr=False)

    @property
    def records(self) -> str | None:
        """The location of the problem's records in a bucket, also before they are generated."""
        if (self.data_dir or "").startswith("gs://"):
            return self.data_dir
        return None

    @property
    def data_folder(self) -> str | None:
        """The folder with the records on every VM; None: they come from the chief."""
        return None if self.records else self.data_dir

    @property
    def preparers(self) -> int:
        """The maximum number of VMs that prepare its mini-batches; 0: its workers do."""
        if self.prep:
            return parse_preparation(self.prep)
        return 0

    @property
    def reads_records(self) -> bool:
        """Whether its workers read the records and prepare their mini-batches themselves."""
        return not (self.prep or self.share_input)

    @property
    def objective(self) -> Objective | None:
        """The criterion for the best checkpoint, which is kept; else that of an early end."""
        if self.keep_best:
            return Objective.parse(self.keep_best)
        return self.patience.objective if self.patience else None

    @property
    def patience(self) -> Patience | None:
        """The condition that ends the run before its steps are made."""
        if self.stop_when:
            return Patience.parse(self.stop_when)
        return None

    @property
    def program_seed(self) -> int:
        """The seed of what the cell draws during its execution."""
        return self.drawn_seed if self.seed is None else self.seed

    @property
    def alone(self) -> bool:
        """Whether the only worker that it ever has may keep the variables in its own process.

        `runtime/training/graph/worker.py` does this.
        """
        one = self.most_workers == 1 and not self.stalls
        return one and self.mode == "async" and self.chief == "ps" and self.ps_shards == 1

    @property
    def ends_epochs(self) -> bool:
        """Whether one process evaluates at the end of each epoch, and workers wait for it.

        Trials of a study share the VM, and each evaluation has a process of its own.
        """
        if not self.epoch_steps:
            return False
        return self.callbacks or (self.eval_steps == self.epoch_steps and not self.study)

    @property
    def damped(self) -> bool:
        """Whether late gradients are applied with a lower learning rate."""
        return self.damping == "staleness"

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values; `from_dict` reads them back as an equal spec."""
        return {**asdict(self), "params": all_as_json(self.params)}

    def without_token(self) -> dict[str, object]:
        """Return the values of `to_dict` without the token, which only VMs of the run may know."""
        return {name: value for name, value in self.to_dict().items() if name != "token"}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read the output of `to_dict`, also of other versions.

        Ignores unknown fields; null may stand for a default. Raises ValueError with the name of the
        invalid field.
        """
        may_be_none = {
            field.name
            for field in fields(cls)
            if type(None) in typing.get_args(_hints()[field.name])
        }
        given = {
            name: value
            for name, value in values.items()
            if value is not None or name in may_be_none
        }
        return checks.built(cls, given)


@dataclass(frozen=True, slots=True)
class FitDeclaration:
    """The fields of a RunSpec that the cell's `model.fit` declares; 0 or empty: not declared.

    `steps` is the number of steps of all workers together, `epoch_steps` that of an epoch.
    `first_epoch` is the number of the first epoch. `eval_steps`: the steps between two evaluations.
    `callbacks`: whether the end of an epoch waits for callbacks.
    If the cell calls `fit` several times, `phase_steps` is the number of steps of the first call.
    """

    steps: Count = 0
    epoch_steps: Count = 0
    first_epoch: Count = 0
    eval_steps: Count = 0
    keep_best: Annotated[str, objective_or_none] = ""
    callbacks: bool = False
    phase_steps: Count = 0

    def applied(self, spec: RunSpec) -> RunSpec:
        """Return the run's declaration, completed with what it leaves to the cell."""
        return replace(
            spec,
            train_steps=spec.train_steps or self.steps,
            phase_steps=self.phase_steps,
            epoch_steps=self.epoch_steps,
            first_epoch=self.first_epoch,
            eval_steps=spec.eval_steps or self.eval_steps or None,
            keep_best=spec.keep_best or self.keep_best,
            callbacks=self.callbacks,
        )

    @classmethod
    def of(cls, values: object) -> Self:
        """Return the fields of an object that has all of them, such as an event."""
        return cls(**{field.name: getattr(values, field.name) for field in fields(cls)})

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Read an answer of the check of a run. Raises ValueError."""
        return checks.built(cls, checks.an_object(values))


def choices(name: str, of: type | None = None) -> tuple[str, ...]:
    """Return the words that this field accepts; none if it is not a choice.

    The field is one of a run, or of the record `of`.
    """
    hint = (typing.get_type_hints(of, include_extras=True) if of else _hints()).get(name)
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return ()


@cache
def _hints() -> Mapping[str, object]:
    return typing.get_type_hints(RunSpec, include_extras=True)


def contradiction(given: Mapping[str, object]) -> tuple[str, str]:
    """Return which given options exclude each other, and what to do; else two empty texts.

    An option that was left out is not given.
    """
    missing = [name for name in ("model", "hparams_set", "problem") if not given.get(name)]
    if len(missing) not in (0, 3):
        what = f"A model of Tensor2Tensor needs {' and '.join(map(option, missing))} too"
        return (
            what,
            "Without --model, --hparams-set and --problem, the model that the cell defines is "
            "trained.",
        )
    for name in ("hparams", "data_dir", "cache", "prep_threads", "prep", "share_input"):
        if missing and given.get(name):
            what = f"Only a model of Tensor2Tensor takes {option(name)}"
            return what, "A cell that defines its model also defines this in its code."
    if given.get("cache") and str(given.get("data_dir") or "gs://").partition("gs://")[0]:
        return (
            "--cache needs records that workers copy",
            "A folder that every VM has (--data-dir) is read as it is.",
        )
    for name in ("prep", "share_input"):
        if given.get("cache") and given.get(name):
            return (
                f"--cache and {option(name)} cannot be used together",
                f"With {option(name)}, workers do not read records.",
            )
    if given.get("params") and not missing:
        what = "Only a cell with a model of its own takes --param"
        return what, "Name hyperparameters of Tensor2Tensor's models with --hparams."
    sync = given.get("mode") == "sync"
    batching = given.get("batching") or "uniform"
    if given.get("backup_workers") and not sync:
        return (
            "--backup-workers needs --mode sync",
            "Asynchronous steps do not wait for other workers.",
        )
    if given.get("damping") == "staleness" and sync:
        return (
            "--damping staleness needs --mode async",
            "Synchronous steps have no late gradients.",
        )
    for name in ("deadband", "batch_smoothing", "step_time"):
        if given.get(name) is not None and batching != "dynamic":
            what = f"{option(name)} needs --batching dynamic"
            return what, "Other mini-batches do not adapt to measured speeds."
    judged = next((name for name in ("stop_when", "keep_best") if given.get(name)), "")
    if judged and given.get("eval_steps", 1) in (0, None):
        what = f"{option(judged)} needs several evaluations, but --eval-every end makes only one"
        return what, "Leave --eval-every out to evaluate ten times in the run."
    if given.get("finish_by") and sync:
        return (
            "--finish-by needs --mode async",
            "More workers do not make synchronous steps faster.",
        )
    for name in ("confidence", "gpus", "zones", "adapt", "max_cost"):
        if given.get(name) and not given.get("finish_by"):
            return f"{option(name)} needs --finish-by", "Add --finish-by 6h, or --finish-by 18:00."
    if (given.get("batch_least") or given.get("batch_most")) and batching == "uniform":
        what = "--batch-bounds needs --batching static or dynamic"
        return what, "Other mini-batches have the declared size."
    return "", ""


def option(name: str) -> str:
    """Return the option that sets this field: `--set deadband`, `--train-steps`."""
    if name in SETTINGS:
        return f"--set {name}"
    return f"--{name.replace('_', '-')}"


# The value of `--cache`, such as `2GB:disk`: how much of the records a worker keeps near it, and
# where.


@dataclass(frozen=True)
class Cache:
    """A cache of at most `bytes`, at `place`.

    `memory` is the worker's own memory, which ends with its process. `shm` is /dev/shm, where the
    worker's successor on the VM finds the blocks again, as it does on the VM's `disk`.
    """

    bytes: int
    place: Place = "disk"

    @classmethod
    def parse(cls, text: str) -> Cache:
        """Read `2GB`, `500MB:memory` or `0`. Raises ValueError for anything else."""
        found = _FORM.fullmatch(text)
        if found:
            size = float(found[1]) * _UNITS.get(found[2] or "", 0)
        else:
            size = -1.0
        if not found or (not found[2] and float(found[1])) or size >= 2**62:
            raise ValueError(f"'{text:.40}' is not a size: write 2GB or 500MB:memory")
        for place in get_args(Place):
            if place == (found[3] or "disk"):
                return cls(int(size), place)
        raise ValueError(
            f"'{text:.40}' has an unknown place: use one of {', '.join(get_args(Place))}"
        )
