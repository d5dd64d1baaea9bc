"""What is declared of a study: which values are tried (`--over`), how many times, and how the next
ones are chosen.

One record for whoever declares it and for the controller that carries it out, as JSON in
`study.json`. The text of a space is read here and has one written form, which `str` gives and is
read again.
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
"""What the configuration of a trial is called among its parameters."""
LONGEST_STUDY = LONGEST_NAME - len("-999-99")
"""Of a study's name: its runs are called after it."""


@dataclass(frozen=True, slots=True)
class StudySpec:
    """A declared study: `trials` points of the `space`, each trained by `repeat` runs like `run`.

    `run` is the declaration of its runs, but for what says which trial they are of (`run_of`); its
    name is the study's. `sampler` chooses the points (none: there is one, without parameters),
    `pruner` ends trials that will not be the best. The trials are judged by `objective`. From
    `seed` follow the points and the seeds of the runs. A run has `workers` of any GPU; with `on` it
    has exactly the machines of one of these configurations (`k80x4`), which is one more dimension
    of the space, the first. So many runs train on one VM at a time (`per_vm`), and share its GPU.

    A grid whose configurations are on several clusters (`parts`, in the order in which they have
    their turns) has the same declaration on each, but for the points that are tried there: `trials`
    of them from the `first` on.

    Limits: `max_cost` in US dollars, `max_hours` (on the emulated clock, where that is faster), and
    the seconds without a step after which a trial counts as one that hangs (`give_up_seconds`).
    `name` has 33 characters at most.
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
        """By what the trials are judged."""
        return Objective.parse(self.objective)

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What the trials differ in: the configuration, where there are any, and the space."""
        return (*((Dimension(ON, "choice", self.on),) if self.on else ()), *self.space)

    @property
    def points(self) -> int:
        """How many different points there are; 0: more than can be counted."""
        return count_points(self.dimensions)

    def bounded(self, trials: int) -> int:
        """So many trials, but of a grid no more than it has points."""
        most = self.trials if self.parts else self.points
        if self.sampler == "grid":
            return min(trials, most)
        return trials

    def run_name(self, trial: Count, repeat: Count = 0) -> str:
        """What the run of a trial is called, of several its `repeat`-th."""
        number = self.first + trial
        if self.repeat > 1:
            return f"{self.name}-{number}-{repeat}"
        return f"{self.name}-{number}"

    @property
    def here(self) -> tuple[str, ...]:
        """The configurations that are tried on this cluster."""
        if not self.parts:
            return self.on
        each = max(1, count_points(self.space))
        return self.on[self.first // each : -(-(self.first + self.trials) // each)]

    @property
    def alone(self) -> bool:
        """Whether this cluster is the study's own, and goes with it."""
        return bool(self.parts) and self.run.when_done == "cluster"

    def run_names(self, trial: Count) -> tuple[str, ...]:
        """What all runs of a trial are called, by repeat."""
        return tuple(self.run_name(trial, repeat) for repeat in range(self.repeat))

    def tries(self, params: Mapping[str, Value]) -> bool:
        """Whether these are values of its space, and all of them."""
        return {*params} == {dimension.name for dimension in self.dimensions} and all(
            each.has(params[each.name]) for each in self.dimensions
        )

    def machines(self, params: Mapping[str, Value]) -> str:
        """On which machines a run of the point with these values trains; empty: on any."""
        if self.on:
            return str(params[ON])
        return ""

    def workers_of(self, machines: str) -> int:
        """How many workers a run takes, on these machines or any."""
        if machines:
            return sum(parse_machines(machines).values())
        return self.workers

    def run_of(self, trial: Count, repeat: Count, params: Mapping[str, Value]) -> RunSpec:
        """The declaration of a run of a trial, with its own seed; its token is the controller's to
        give.

        A model of Tensor2Tensor has the parameters as overrides of its hyper-parameters, behind
        those that the run has; a cell reads them by name.
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
            alarm_below=self.run.alarm_below
            if self.per_vm == 1
            else 0.0,  # slower with each that joins it
        )

    def _seed(self, trial: int, repeat: int) -> int | None:
        """Repeats differ in their seeds alone, which are the same in each trial."""
        if self.repeat > 1:
            return (self.seed + repeat) % 2**31
        return self.run.seed

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values, without the token of a run; `from_dict` reads them back as an equal
        spec.
        """
        space = [each.to_dict() for each in self.space]
        return {**asdict(self), "run": self.run.without_token(), "space": space}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote; unknown fields are ignored. Raises ValueError with the field
        that is wrong.
        """
        return checks.built(cls, values)


def contradiction(spec: StudySpec) -> str:
    """What of a study excludes each other, in a clause with what to do; else nothing."""
    if len(spec.name) > LONGEST_STUDY:
        return f"name: '{spec.name}' is longer than {LONGEST_STUDY} characters, and its runs are called after it"
    if not spec.objective:
        return "objective: a study needs one, as max accuracy"
    if spec.on and (why := _configurations(spec)):
        return why
    if spec.per_vm > 1 and (spec.workers > 1 or spec.on):
        other = "--on" if spec.on else "--workers"
        return f"per_vm: a trial that shares its VM has one worker; leave out {other}"
    if spec.run.share_input and (why := _shared_input(spec)):
        return why
    if spec.dimensions and spec.sampler == "none":
        return f"sampler: none takes no --{'over' if spec.space else 'on'}; choose from grid, random, tpe, gp"
    if not spec.dimensions and spec.sampler != "none":
        return f"sampler: {spec.sampler} needs values to try (--over)"
    if not spec.dimensions and spec.trials > 1:
        return "trials: without --over there is one point; --repeat says how often it is trained"
    if both := {each.name for each in spec.space} & {*spec.run.params}:
        return f"over: {min(both)} is given by --param, too"
    if spec.sampler == "grid" and not spec.points:
        free = next(each.name for each in spec.space if each.kind in ("float", "log"))
        return f"sampler: grid needs choices or whole numbers, and {free} is a range; choose random or tpe"
    if spec.repeat > 1 and spec.pruner != "none":
        return f"pruner: {spec.pruner} cannot end some runs of a point that --repeat asks for"
    if spec.pruner != "none" and not spec.run.eval_steps:
        return f"pruner: {spec.pruner} needs evaluations before the end (--eval-every STEPS)"
    if spec.pruner != "none" and (spec.run.eval_steps or 0) >= spec.run.train_steps:
        return f"pruner: {spec.pruner} needs an --eval-every below --train-steps"
    return ""


def _shared_input(spec: StudySpec) -> str:
    if spec.per_vm == 1:
        return "share_input: it is for trials on one VM; add --per-vm 2"
    if any(each.name == BATCH for each in spec.space):
        return f"over: trials with --share-input take the same mini-batches; leave out {BATCH}"
    return ""


def _configurations(spec: StudySpec) -> str:
    found: dict[frozenset[tuple[str, int]], str] = {}
    for each in spec.on:
        machines = frozenset(parse_machines(each).items())
        if machines in found:
            return f"on: {each} is there twice"
        found[machines] = each
    if any(each.name == ON for each in spec.space) or ON in spec.run.params:
        return f"on: a parameter cannot be called '{ON}' beside --on, which has its column"
    if spec.parts and spec.sampler != "grid":
        return f"sampler: {spec.sampler} needs all configurations on one cluster; choose grid, or resize the cluster"
    if spec.workers != 1:
        return "workers: --on says how many each run takes"
    return ""
