"""The declaration of a study: the values to try (`--over`), their number, and the sampler.

One record serves the client that declares it and the controller that carries it out, as JSON in
`study.json`. The text of a space is parsed here and has one written form, which `str` returns and
which can be parsed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal, Self

from ...protocol import checks
from ...protocol.checks import LONGEST_NAME, Amount, Count, Name, at_least, within
from ...protocol.literals import (
    Value,
    value_text,
)
from ...protocol.machines import MOST_PER_VM, machines_text, parse_machines
from ...protocol.objective import Objective, objective_or_none
from ...protocol.run import RunSpec
from ...protocol.space import Dimension, count_points

MOST_TRIALS = 1000
MOST_REPEATS = 100
BATCH = "batch_size"
ON = "on"
"""The name of a trial's configuration among its parameters."""
LONGEST_STUDY = LONGEST_NAME - len("-999-99")
"""Longest name of a study; the names of its runs start with it."""


@dataclass(frozen=True, slots=True)
class StudySpec:
    """A declared study: `trials` points of the `space`, each trained by `repeat` runs like `run`.

    `run` is the declaration of its runs, without the fields of the trial (`run_of`); its name is
    the study's. `sampler` chooses the points (none: there is one, without parameters). `pruner`
    ends trials that will not be the best. `objective` rates the trials. The points and the seeds of
    the runs follow from `seed`. A run has `workers` of any GPU. With `on` it has exactly the
    machines of one of these configurations (`k80x4`), which is one more dimension of the space, the
    first. `per_vm` runs train on one VM at a time and share its GPU.

    A grid with configurations on several clusters (`parts`, in the order of their turns) has the
    same declaration on each, except for its points: `trials` of them from the `first` on.

    The limits are `max_cost` in US dollars, `max_hours` (on the emulated clock, if that is faster),
    and the seconds without a step after which a trial counts as hanging (`give_up_seconds`). `name`
    has 33 characters at most.
    """

    name: Name
    run: RunSpec
    objective: Annotated[str, objective_or_none]
    space: tuple[Dimension, ...] = ()
    trials: Annotated[int, within(1, MOST_TRIALS)] = 1
    sampler: Literal["none", "grid", "random", "tpe", "gp"] = "none"
    pruner: Literal["none", "median", "hyperband"] = "none"
    repeat: Annotated[int, within(1, MOST_REPEATS)] = 1
    seed: Annotated[int, within(0, 2**31 - 1)] = 0
    workers: Annotated[int, at_least(1)] = 1
    per_vm: Annotated[int, within(1, MOST_PER_VM)] = 1
    on: tuple[Annotated[str, machines_text], ...] = ()
    parts: tuple[Name, ...] = ()
    first: Count = 0
    max_cost: Amount | None = None
    max_hours: Amount | None = None
    give_up_seconds: Amount = 900.0
    declared_at: float = 0.0

    def __post_init__(self) -> None:
        if why := contradiction(self):
            raise ValueError(why)

    @property
    def goal(self) -> Objective:
        """The objective that rates the trials."""
        return Objective.parse(self.objective)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of the trials: the configuration, if there are any, and the space."""
        return (*((Dimension(ON, "choice", self.on),) if self.on else ()), *self.space)

    @property
    def points(self) -> int:
        """The number of different points; 0: infinite."""
        return count_points(self.dimensions)

    def bounded(self, trials: int) -> int:
        """Return the number of trials, limited to the points of a grid."""
        most = self.trials if self.parts else self.points
        if self.sampler == "grid":
            return min(trials, most)
        return trials

    def run_name(self, trial: Count, repeat: Count = 0) -> str:
        """Return the name of the run of a trial, or of its `repeat`-th run."""
        number = self.first + trial
        if self.repeat > 1:
            return f"{self.name}-{number}-{repeat}"
        return f"{self.name}-{number}"

    @property
    def here(self) -> tuple[str, ...]:
        """The configurations that are tried on this cluster."""
        if not self.parts:
            return self.on
        space_points = max(1, count_points(self.space))
        return self.on[self.first // space_points : -(-(self.first + self.trials) // space_points)]

    @property
    def alone(self) -> bool:
        """Whether this cluster is the study's own, and is deleted with it."""
        return bool(self.parts) and self.run.when_done == "cluster"

    def run_names(self, trial: Count) -> tuple[str, ...]:
        """Return the names of all runs of a trial, by repeat."""
        return tuple(self.run_name(trial, repeat) for repeat in range(self.repeat))

    def tries(self, params: Mapping[str, Value]) -> bool:
        """Return whether these are all values of its space, and no others."""
        return {*params} == {dimension.name for dimension in self.dimensions} and all(
            dimension.has(params[dimension.name]) for dimension in self.dimensions
        )

    def machines(self, params: Mapping[str, Value]) -> str:
        """Return the machines for a run of the point with these values; empty: any."""
        if self.on:
            return str(params[ON])
        return ""

    def workers_of(self, machines: str) -> int:
        """Return the number of workers of a run on these machines, or on any."""
        if machines:
            return sum(parse_machines(machines).values())
        return self.workers

    def run_of(self, trial: Count, repeat: Count, params: Mapping[str, Value]) -> RunSpec:
        """Return the declaration of a run of a trial, with its own seed and without a token.

        The controller adds the token. A model of Tensor2Tensor has the parameters as overrides of
        its hyperparameters, after those of the run; a cell reads them by name.
        """
        machines = self.machines(params)
        workers = self.workers_of(machines)
        values = {name: value for name, value in params.items() if not (self.on and name == ON)}
        texts = {
            name: value if isinstance(value, str) else value_text(value)
            for name, value in values.items()
        }
        if self.run.model:
            overrides = ",".join(f"{name}={value}" for name, value in texts.items())
        else:
            overrides = ""
        return replace(
            self.run,
            name=self.run_name(trial, repeat),
            study=self.name,
            trial=trial,
            repeat=repeat,
            params={**self.run.params, **values},
            hparams=",".join(filter(None, (self.run.hparams, overrides))),
            judged_by=self.objective,
            least_workers=workers,
            most_workers=workers,
            workers=workers,
            machines=machines,
            seed=self._seed(trial, repeat),
            per_vm=self.per_vm,
            # Each run that joins a shared VM slows it, so its alarm is off.
            alarm_below=self.run.alarm_below if self.per_vm == 1 else 0.0,
        )

    def _seed(self, trial: int, repeat: int) -> int | None:
        """Return the seed of a repeat, which is the same in each trial.

        Repeats differ only in their seeds.
        """
        if self.repeat > 1:
            return (self.seed + repeat) % 2**31
        return self.run.seed

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, without the token of a run.

        `from_dict` returns an equal spec for them.
        """
        space = [dimension.to_dict() for dimension in self.space]
        return {**asdict(self), "run": self.run.without_token(), "space": space}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Return the spec of the values of `to_dict`, without unknown fields.

        Raises ValueError with the name of an invalid field.
        """
        return checks.built(cls, values)


def contradiction(spec: StudySpec) -> str:
    """Return a clause on options that exclude each other, and the remedy; else an empty string."""
    if len(spec.name) > LONGEST_STUDY:
        return (
            f"name: '{spec.name}' must have at most {LONGEST_STUDY} characters, because the "
            "names of its runs begin with it"
        )
    if not spec.objective:
        return "objective: a study needs one, such as max accuracy"
    if spec.on and (why := _configurations(spec)):
        return why
    if spec.per_vm > 1 and (spec.workers > 1 or spec.on):
        other = "--on" if spec.on else "--workers"
        return f"per_vm: a trial that shares its VM can have only one worker; leave out {other}"
    if spec.run.share_input and (why := _shared_input(spec)):
        return why
    if spec.dimensions and spec.sampler == "none":
        return (
            f"sampler: none cannot be used with --{'over' if spec.space else 'on'}; use grid, "
            "random, tpe or gp"
        )
    if not spec.dimensions and spec.sampler != "none":
        return f"sampler: {spec.sampler} needs values to try (--over)"
    if not spec.dimensions and spec.trials > 1:
        return (
            "trials: without --over a study has only one point; use --repeat to train it "
            "several times"
        )
    if both := {dimension.name for dimension in spec.space} & {*spec.run.params}:
        return f"over: {min(both)} is also set by --param"
    if spec.sampler == "grid" and not spec.points:
        free = next(
            dimension.name for dimension in spec.space if dimension.kind in ("float", "log")
        )
        return (
            f"sampler: grid needs choices or whole numbers, but {free} is a range; use random "
            "or tpe"
        )
    if spec.repeat > 1 and spec.pruner != "none":
        return f"pruner: {spec.pruner} cannot be used with --repeat"
    if spec.pruner != "none" and not spec.run.eval_steps:
        return f"pruner: {spec.pruner} needs evaluations before the end (--eval-every STEPS)"
    if spec.pruner != "none" and (spec.run.eval_steps or 0) >= spec.run.train_steps:
        return f"pruner: {spec.pruner} needs an --eval-every that is less than --train-steps"
    return ""


def _shared_input(spec: StudySpec) -> str:
    if spec.per_vm == 1:
        return "share_input: it needs several trials on a VM; add --per-vm 2"
    if any(dimension.name == BATCH for dimension in spec.space):
        return f"over: trials with --share-input have the same mini-batches; leave out {BATCH}"
    return ""


def _configurations(spec: StudySpec) -> str:
    found: dict[frozenset[tuple[str, int]], str] = {}
    for configuration in spec.on:
        machines = frozenset(parse_machines(configuration).items())
        if machines in found:
            return f"on: {configuration} occurs twice"
        found[machines] = configuration
    if any(dimension.name == ON for dimension in spec.space) or ON in spec.run.params:
        return f"on: a parameter cannot have the name '{ON}', which is the column of --on"
    if spec.parts and spec.sampler != "grid":
        return (
            f"sampler: {spec.sampler} needs all configurations on one cluster; use grid, or "
            "resize the cluster"
        )
    if spec.workers != 1:
        return "workers: it cannot be used with --on"
    return ""
