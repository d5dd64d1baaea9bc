"""The points that a study tries, and the trials that it can end early.

A grid and random points are pure functions of the declaration and the trial's number, so a new
controller asks for exactly the same trials. Optuna has samplers for both, but these draw from a
state that is lost with the process.

Other samplers and pruners use Optuna's own study, in memory. It is built from the fold of the
journal and follows it: trials, evaluations and results are reported in the order in which they
happened, under the same numbers. A new controller therefore builds the same study. Optuna is
imported when the first one is built.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...errors import DeclarationError, install_extra
from ...journal import RunState
from ...protocol.literals import same, value_text
from ...protocol.run import Value
from ...protocol.space import Dimension
from .spec import StudySpec
from .state import StudyState, TrialState

if TYPE_CHECKING:
    import optuna


STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL", "stopped": "FAIL"}
_STARTED = 0
_EVALUATED = 1
_FINISHED = 2
_Happened = tuple[float, int, int, Any]
"""When, what (one of the three above), the number of the trial, and the values of the report."""


def missing(spec: StudySpec) -> str:
    """Return the package that a study needs and that is not installed; empty for none."""
    if spec.sampler not in ("tpe", "gp") and spec.pruner == "none":
        return ""
    needed = ["optuna", *(["torch"] if spec.sampler == "gp" else [])]
    return next((name for name in needed if not find_spec(name)), "")


def distributions(spec: StudySpec) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return Optuna's distributions of the parameters. Raises ImportError without Optuna."""
    return {dimension.name: _distribution(dimension) for dimension in spec.dimensions}


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match dimension.kind:
        case "choice":
            return CategoricalDistribution([for_optuna(choice) for choice in dimension.choices])
        case "int":
            return IntDistribution(int(dimension.low), int(dimension.high))
        case _:
            return FloatDistribution(dimension.low, dimension.high, log=dimension.kind == "log")


def for_optuna(value: Value) -> bool | int | float | str | None:
    """Return a value as Optuna stores and plots it: a list or tuple as text."""
    if isinstance(value, list | tuple):
        return value_text(value)
    return value


class OptunaSampler:
    """The sampler and pruner of a study that uses Optuna.

    Attributes
    ----------
    study : optuna.Study
        Optuna's study, in memory.
    """

    def __init__(self, spec: StudySpec) -> None:
        """Create an empty study of Optuna's. Raises DeclarationError without Optuna."""
        try:
            import optuna
        except ImportError:
            raise DeclarationError("Optuna is not installed", fix=install_extra("sweep")) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._spec = spec
        self._evaluations_per_run = 1
        if spec.run.eval_steps:
            self._evaluations_per_run = max(1, spec.run.train_steps // spec.run.eval_steps)
        self._trials: list[optuna.Trial] = []
        self._reported: dict[int, tuple[float, int]] = {}
        self._ended: set[int] = set()
        self._distributions = distributions(spec)
        self.study = optuna.create_study(
            direction="maximize" if spec.goal.direction == "max" else "minimize",
            study_name=spec.name,
            pruner=self._pruner(),
        )

    def catch_up(self, study: StudyState, runs: Mapping[str, RunState]) -> set[int]:
        """Report what has happened since the last call, and return the trials to end early.

        Parameters
        ----------
        study
            The state of the study in the journal.
        runs
            The runs of the cluster, by name.

        Returns
        -------
        set of int
            The numbers of the trials that the pruner would end, by the last evaluation of each.
        """
        to_end: set[int] = set()
        happened = [item for trial in study.trials.values() for item in self._new(trial, runs)]
        for _, kind, number, values in sorted(happened, key=lambda item: item[:3]):
            if kind == _STARTED:
                self._start(values)
            elif kind == _EVALUATED:
                to_end.discard(number)
                if self._report(number, *values):
                    to_end.add(number)
            else:
                self._finish(number, *values)
        return to_end - self._ended

    def _new(self, trial: TrialState, runs: Mapping[str, RunState]) -> list[_Happened]:
        """Return what happened to a trial and was not reported to Optuna yet."""
        happened: list[_Happened] = []
        if trial.number >= len(self._trials):
            happened.append((0.0, _STARTED, trial.number, trial.params))
        if trial.number in self._ended:
            return happened
        run = runs.get(trial.runs[0]) if len(trial.runs) == 1 else None
        if run:
            happened += self._evaluations(trial.number, run)
        if trial.ended:
            # The end has the controller's time, evaluations have that of a VM, whose clock may
            # be ahead: the end comes last in any case.
            latest = max((time for time, *_ in happened), default=0.0)
            end = max(trial.ended_at, latest)
            happened.append((end, _FINISHED, trial.number, (trial.state, trial.value)))
        return happened

    def propose(self) -> dict[str, Value]:
        """Return the parameters of the next trial, chosen by the sampler."""
        seed = (self._spec.seed + len(self._trials)) % 2**32
        samplers = self._optuna.samplers
        if self._spec.sampler == "gp":
            self.study.sampler = samplers.GPSampler(seed=seed)
        else:
            self.study.sampler = samplers.TPESampler(seed=seed, constant_liar=True)
        trial = self.study.ask(self._distributions)
        self._trials.append(trial)
        return {
            dimension.name: _chosen(dimension, trial.params[dimension.name])
            for dimension in self._spec.dimensions
        }

    def _start(self, params: Mapping[str, Value]) -> None:
        # All parameters are given, so the sampler draws nothing.
        self.study.sampler = self._optuna.samplers.RandomSampler(seed=0)
        self.study.enqueue_trial({name: for_optuna(value) for name, value in params.items()})
        self._trials.append(self.study.ask(self._distributions))

    def _evaluations(self, number: int, run: RunState) -> list[tuple[float, int, int, Any]]:
        """Return the evaluations of a run that were not reported yet.

        Each has its place in the sequence of evaluations, because runs are not evaluated at exactly
        the same steps.
        """
        latest = self._reported.get(number, (-math.inf, -1))
        metric = self._spec.goal.metric
        every = self._spec.run.eval_steps or max(run.step, 1)
        return [
            (time, _EVALUATED, number, (time, step, round(step / every), values[metric]))
            for time, step, values in run.evaluations
            if (time, step) > latest and math.isfinite(values.get(metric, math.nan))
        ]

    def _report(self, number: int, time: float, step: int, place: int, value: float) -> bool:
        self._reported[number] = (time, step)
        trial = self._trials[number]
        # `study.trials` copies every trial with all its values, which is too slow for each
        # evaluation of a long study.
        trials = self.study.get_trials(deepcopy=False)
        if place < 1 or place in trials[number].intermediate_values:
            return False
        trial.report(value, place)
        return place < self._evaluations_per_run and trial.should_prune()

    def _finish(self, number: int, state: str, value: float | None) -> None:
        self._ended.add(number)
        ended = self._optuna.trial.TrialState[STATES[state]]
        self.study.tell(number, value if state == "complete" else None, state=ended)

    def _pruner(self) -> optuna.pruners.BasePruner:
        pruners = self._optuna.pruners
        match self._spec.pruner:
            case "median":
                return pruners.MedianPruner()
            case "hyperband":
                evaluations = self._evaluations_per_run
                return pruners.HyperbandPruner(min_resource=1, max_resource=evaluations)
            case _:
                return pruners.NopPruner()


def _chosen(dimension: Dimension, value: Value) -> Value:
    """Return the value of a dimension that Optuna chose."""
    if dimension.kind != "choice":
        return value
    return next(choice for choice in dimension.choices if same(for_optuna(choice), value))


def point(spec: StudySpec, number: int) -> dict[str, Value] | None:
    """Return the parameters of a trial; None where they depend on the trials before.

    Raises ValueError where a grid has no such point.
    """
    match spec.sampler:
        case "none":
            return {}
        case "grid":
            return grid_point(spec.dimensions, spec.first + number)
        case "random":
            return random_point(spec.dimensions, spec.seed, number)
        case _:
            return None


def grid_point(space: Sequence[Dimension], number: int) -> dict[str, Value]:
    """Return a point of a grid by its number, from 0; the last parameter changes fastest.

    Raises ValueError where there is none.
    """
    point: dict[str, Value] = {}
    for dimension in reversed(space):
        values = _values(dimension)
        number, place = divmod(number, len(values))
        point[dimension.name] = values[place]
    if number:
        raise ValueError("the point is not in the grid")
    return {dimension.name: point[dimension.name] for dimension in space}


def random_point(space: Sequence[Dimension], seed: int, number: int) -> dict[str, Value]:
    """Return a random point; each parameter has a random generator of its own."""
    return {
        dimension.name: _drawn(dimension, random.Random(f"{seed} {number} {dimension.name}"))
        for dimension in space
    }


def _values(dimension: Dimension) -> Sequence[Value]:
    if dimension.kind == "choice":
        return dimension.choices
    if dimension.kind != "int":
        raise ValueError(f"{dimension.name} is a range, so its values cannot be listed")
    return range(int(dimension.low), int(dimension.high) + 1)


def _drawn(dimension: Dimension, chance: random.Random) -> Value:
    match dimension.kind:
        case "choice":
            return chance.choice(dimension.choices)
        case "int":
            return chance.randint(int(dimension.low), int(dimension.high))
        case "log":
            value = math.exp(chance.uniform(math.log(dimension.low), math.log(dimension.high)))
        case _:
            value = chance.uniform(dimension.low, dimension.high)
    return min(max(value, dimension.low), dimension.high)
