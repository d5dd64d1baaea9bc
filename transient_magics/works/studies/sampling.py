"""The points that a study tries, and the trials that it need not finish.

Optuna has a study of its own of what the journal has. A twin is made from a journal's fold and
follows it: trials are asked for, their evaluations reported and their ends told in the order in
which they happened, under the same numbers. So whoever makes another one (a controller after
another's death) has the same study. Optuna is imported when the first twin is made.

The points of a grid and of chance are a pure function of the declaration and the trial's number. So
a study whose controller is killed asks for exactly the same trials again. Optuna has samplers for
both, too; theirs draw from a state that is lost with the process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ...errors import DeclarationError, install_extra
from ...journal import RunState, StudyState
from ...protocol.literals import same, value_text
from ...protocol.run import Value
from ...protocol.study import Dimension, StudySpec

if TYPE_CHECKING:
    import optuna


STATES = {"complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL", "stopped": "FAIL"}
_ASKED, _REPORTED, _TOLD = range(3)


def missing(spec: StudySpec) -> str:
    """What has to be installed for this study, where it is not: a package's name, or nothing."""
    if spec.sampler not in ("tpe", "gp") and spec.pruner == "none":
        return ""
    needed = ["optuna", *(["torch"] if spec.sampler == "gp" else [])]
    return next((name for name in needed if not find_spec(name)), "")


def distributions(spec: StudySpec) -> dict[str, optuna.distributions.BaseDistribution]:
    """The study's space as Optuna has it, by the parameters' names. Raises ImportError where it is
    not installed.
    """
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
    """The value as Optuna's stores and plots take it: a list or tuple as its text."""
    if isinstance(value, list | tuple):
        return value_text(value)
    return value


class Twin:
    """The Optuna study of a study with this declaration; `study` is the real `optuna.Study`, in
    memory.
    """

    def __init__(self, spec: StudySpec) -> None:
        """Raises DeclarationError where Optuna is not installed."""
        try:
            import optuna
        except ImportError:
            raise DeclarationError("Optuna is not installed", fix=install_extra("sweep")) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._spec = spec
        if spec.run.eval_steps:
            self._steps = max(1, spec.run.train_steps // spec.run.eval_steps)
        else:
            self._steps = 1
        self._trials: list[optuna.Trial] = []
        self._reported: dict[int, tuple[float, int]] = {}
        self._told: set[int] = set()
        self._distributions = distributions(spec)
        self.study = optuna.create_study(
            direction="maximize" if spec.goal.direction == "max" else "minimize",
            study_name=spec.name,
            pruner=self._pruner(),
        )

    def catch_up(self, study: StudyState, runs: Mapping[str, RunState]) -> set[int]:
        """Follow what has happened since, and return the numbers of trials that the pruner would
        end now, by the last evaluation of each.
        """
        to_end: set[int] = set()
        happened: list[tuple[float, int, int, Any]] = []
        for trial in study.trials.values():
            if trial.number >= len(self._trials):
                happened.append((0.0, _ASKED, trial.number, trial.params))
            if trial.number not in self._told:
                if len(trial.runs) == 1 and (run := runs.get(trial.runs[0])):
                    happened += self._evaluations(trial.number, run)
                if (
                    trial.told
                ):  # by the controller's clock; its evaluations, which were before, by a VM's
                    latest = max(
                        (time for time, _, number, _ in happened if number == trial.number),
                        default=0.0,
                    )
                    happened.append(
                        (
                            max(trial.told_at, latest),
                            _TOLD,
                            trial.number,
                            (trial.state, trial.value),
                        )
                    )
        for _, kind, number, what in sorted(happened, key=lambda each: each[:3]):
            if kind == _ASKED:
                self._ask(what)
            elif kind == _REPORTED:
                to_end.discard(number)
                if self._report(number, *what):
                    to_end.add(number)
            else:
                self._tell(number, *what)
        return to_end - self._told

    def propose(self) -> dict[str, Value]:
        """The next trial's point, as the sampler has it after all that the twin has followed."""
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

    def _ask(self, params: Mapping[str, Value]) -> None:
        self.study.sampler = self._optuna.samplers.RandomSampler(seed=0)  # nothing is drawn
        self.study.enqueue_trial({name: for_optuna(value) for name, value in params.items()})
        self._trials.append(self.study.ask(self._distributions))

    def _evaluations(self, number: int, run: RunState) -> list[tuple[float, int, int, Any]]:
        """Those that were not reported yet, each with how many are due until then: steps themselves
        differ a little.
        """
        known = self._reported.get(number, (-math.inf, -1))
        metric = self._spec.goal.metric
        every = self._spec.run.eval_steps or max(run.step, 1)
        return [
            (time, _REPORTED, number, (time, step, round(step / every), values[metric]))
            for time, step, values in run.evaluations
            if (time, step) > known and math.isfinite(values.get(metric, math.nan))
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
        return place < self._steps and trial.should_prune()

    def _tell(self, number: int, state: str, value: float | None) -> None:
        self._told.add(number)
        ended = self._optuna.trial.TrialState[STATES[state]]
        self.study.tell(number, value if state == "complete" else None, state=ended)

    def _pruner(self) -> optuna.pruners.BasePruner:
        pruners = self._optuna.pruners
        match self._spec.pruner:
            case "median":
                return pruners.MedianPruner()
            case "hyperband":
                return pruners.HyperbandPruner(min_resource=1, max_resource=self._steps)
            case _:
                return pruners.NopPruner()


def _chosen(dimension: Dimension, value: Value) -> Value:
    """The value of the dimension that Optuna chose."""
    if dimension.kind != "choice":
        return value
    return next(choice for choice in dimension.choices if same(for_optuna(choice), value))


def point(spec: StudySpec, number: int) -> dict[str, Value] | None:
    """The `number`-th point of a study; None where it depends on the trials before. Raises
    ValueError where a grid has none.
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
    """The `number`-th point of all, from 0 on, of which the last parameter changes fastest. Raises
    ValueError where there is none.
    """
    point: dict[str, Value] = {}
    for dimension in reversed(space):
        values = _values(dimension)
        number, place = divmod(number, len(values))
        point[dimension.name] = values[place]
    if number:
        raise ValueError("the grid has no such point")
    return {dimension.name: point[dimension.name] for dimension in space}


def random_point(space: Sequence[Dimension], seed: int, number: int) -> dict[str, Value]:
    """A point that is drawn, each parameter by itself."""
    return {
        dimension.name: _drawn(dimension, random.Random(f"{seed} {number} {dimension.name}"))
        for dimension in space
    }


def _values(dimension: Dimension) -> Sequence[Value]:
    if dimension.kind == "choice":
        return dimension.choices
    if dimension.kind != "int":
        raise ValueError(f"{dimension.name} is a range")
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
