"""The results of a study: a row for each trial, and means for each configuration."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...client import text
from ...client.results.comparison import frame_of, parameter_columns, revocations
from ...journal import ClusterState, Cost, RunState, costs
from ...kinds import load
from ...protocol.objective import Objective
from ...protocol.run import Value
from ...protocol.step_parts import part_words
from .state import StudyState, TrialState

if TYPE_CHECKING:
    import pandas

_NOISE = 1e-9
"""Deviations below this share of the mean come from the rounding of sums."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A trial with the sums of its runs.

    `value` is that of the objective: while the trial trains the latest one, the mean over several
    runs. `step` of `steps`, `hours` (by the clock of the bill), `dollars` and `revocations` are
    sums over its runs.
    """

    number: int
    params: Mapping[str, Value]
    state: str
    value: float | None
    best: bool
    step: int
    steps: int
    hours: float
    dollars: float
    revocations: int
    runs: tuple[str, ...]
    reason: str
    part: str = ""
    """The part of the dev split of which its value is, in words; empty for the whole split."""

    @property
    def words(self) -> str:
        """The progress of the trial, or how it ended."""
        if self.part and self.value is not None:
            return f"{self._progress} ({self.part})"
        return self._progress

    @property
    def _progress(self) -> str:
        if self.state == "running" and self.step and self.step >= self.steps:
            return "is evaluated"
        if self.state == "running":
            if self.step:
                return f"step {self.step:,} of {self.steps:,}"
            return "waits for its first step"
        if self.reason:
            if self.reason.startswith(self.state):
                return self.reason
            return f"{self.state}: {self.reason}"
        if self.state != "complete" and self.step:
            return f"{self.state} at step {self.step:,}"
        return self.state


def rows_of(
    state: ClusterState, study: StudyState, now: float, by_name: Mapping[str, Cost]
) -> list[TrialRow]:
    """Return the trials of a study in the order of their numbers.

    Parameters
    ----------
    state, study
        The states of the cluster and of its study.
    now
        Seconds since 1970.
    by_name
        The costs of the cluster's work, by name.
    """
    lost = revocations(state)
    best = study.best
    rows = []
    for trial in study.trials.values():
        runs = runs_of(state, trial)
        parts = [part_words(*run.evaluated) for run in runs]
        rows.append(
            TrialRow(
                number=trial.number,
                params=trial.params,
                state=trial.state,
                value=value_of(state, study, trial),
                best=best is not None and best.number == trial.number,
                step=sum(run.step for run in runs),
                steps=study.spec.run.train_steps * len(trial.runs),
                hours=sum(_hours(state, run, now) for run in runs),
                dollars=sum(by_name[run].total for run in trial.runs if run in by_name),
                revocations=sum(lost.get(run, 0) for run in trial.runs),
                runs=trial.runs,
                reason=trial.reason,
                part=next(filter(None, parts), ""),
            )
        )
    return rows


def runs_of(state: ClusterState, trial: TrialState) -> list[RunState]:
    """Return the runs of a trial that were declared."""
    return [state.of(RunState)[name] for name in trial.runs if name in state.of(RunState)]


def value_of(state: ClusterState, study: StudyState, trial: TrialState) -> float | None:
    """Return the value of a trial; while it trains the mean of what its runs measured last."""
    if trial.ended:
        return trial.value
    return Spread.of(run.value_of(study.spec.goal) for run in runs_of(state, trial)).mean


def best_of(parts: Sequence[StudyState]) -> TrialState | None:
    """Return the best trial of a study on several clusters; None before the first complete one."""
    overall: TrialState | None = None
    for best in filter(None, (part.best for part in parts)):
        if overall is None or parts[0].spec.goal.better(best.value or 0.0, overall.value or 0.0):
            overall = best
    return overall


def best_so_far(parts: Sequence[StudyState]) -> list[tuple[int, float]]:
    """Return the number and the value of each complete trial that was better than all before it.

    Parameters
    ----------
    parts
        The study on each of its clusters.
    """
    found: list[tuple[int, float]] = []
    for study in parts:
        for trial in study.trials.values():
            if trial.state != "complete" or trial.value is None or not math.isfinite(trial.value):
                continue
            if not found or study.spec.goal.better(trial.value, found[-1][1]):
                found.append((study.spec.first + trial.number, trial.value))
    return found


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean and the standard deviation (over n - 1) of `n` values; None where there is none."""

    n: int
    mean: float | None
    sd: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Return the spread of the finite values."""
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if not finite:
            return cls(0, None, None)
        sd = statistics.stdev(finite) if len(finite) > 1 else None
        return cls(len(finite), statistics.fmean(finite), sd)

    def words(self, unit: str = "") -> str:
        """Return `0.943 ± 0.004`: two digits of the deviation, and as many decimals of the mean."""
        if self.mean is None:
            return "-"
        if self.sd is None:
            return f"{unit}{text.number(self.mean)}"
        if self.sd <= _NOISE * abs(self.mean):
            return f"{unit}{text.number(self.mean)} ± 0"
        digits = min(8, max(0, 1 - math.floor(math.log10(self.sd))))
        return f"{unit}{self.mean:,.{digits}f} ± {self.sd:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """A point of a study's space with the spreads of its `n` complete runs.

    `trials` are the numbers of its trials. `best` says whether the best trial is one of them.
    """

    params: Mapping[str, Value]
    n: int
    hours: Spread
    dollars: Spread
    metrics: Mapping[str, Spread]
    revocations: Spread
    trials: tuple[int, ...]
    best: bool


class Configurations(list[Configuration]):
    """The configurations of a study, the best first: a list that shows itself as a table.

    The table has the mean and the standard deviation of `n` runs.

    Attributes
    ----------
    names : tuple of str
        The parameters.
    metrics : tuple of str
        What was measured.
    left_out : str
        Which trials are not counted, a sentence.
    """

    def __init__(
        self,
        found: Iterable[Configuration],
        names: Sequence[str],
        metrics: Sequence[str],
        left_out: str,
    ) -> None:
        super().__init__(found)
        self.names = tuple(names)
        self.metrics = tuple(metrics)
        self.left_out = left_out

    @property
    def columns(self) -> tuple[str, ...]:
        """The header of the table."""
        return (*self.names, "n", *self.metrics, "hours", "dollars", "revocations")

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """Rows of text, one for each configuration."""
        return [
            (
                *(text.value_words(configuration.params[name]) for name in self.names),
                str(configuration.n),
                *(configuration.metrics[name].words() for name in self.metrics),
                configuration.hours.words(),
                configuration.dollars.words("$"),
                configuration.revocations.words(),
            )
            for configuration in self
        ]

    def frame(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each configuration.

        Returns
        -------
        pandas.DataFrame
            A column for each parameter (`params_NAME` if another column has its name), and `n`. For
            each
            metric, `hours`, `dollars` and `revocations` there is a column with the mean and one,
            with the
            ending `_sd`, with the standard deviation (NaN for n = 1).
        """
        names = [
            f"{name}{end}"
            for name in (*self.metrics, "hours", "dollars", "revocations")
            for end in ("", "_sd")
        ]
        columns = parameter_columns(self.names, ["n", *names])
        rows = []
        for configuration in self:
            spreads = {
                **configuration.metrics,
                "hours": configuration.hours,
                "dollars": configuration.dollars,
                "revocations": configuration.revocations,
            }
            figures = {
                f"{name}{end}": value
                for name, spread in spreads.items()
                for end, value in (("", spread.mean), ("_sd", spread.sd))
            }
            params = {columns[name]: value for name, value in configuration.params.items()}
            rows.append({**params, "n": configuration.n, **figures})
        frame = frame_of(rows, [*columns.values(), "n", *names], list(columns.values()))
        return frame.astype(dict.fromkeys(names, "float64"))

    def __repr__(self) -> str:
        if self:
            lines = text.table(self.columns, self.cells)
        else:
            lines = ["No trial is complete yet."]
        return "\n".join([*lines, *([self.left_out] if self.left_out else [])])

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(repr(self))  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        return load("study", "view").table_html(self)


def configurations(parts: Sequence[tuple[ClusterState, StudyState]], now: float) -> Configurations:
    """Return the configurations of a study's complete trials, the best first.

    Trials with the same parameters are one configuration.

    Parameters
    ----------
    parts
        For each cluster on which the study has begun, the states of the cluster and of the study.
    now
        Seconds since 1970.
    """
    studies = [study for _, study in parts]
    goal = studies[0].spec.goal
    best = best_of(studies)
    by_params: dict[tuple[tuple[str, str], ...], list[_RunOfTrial]] = {}
    for state, study in parts:
        for measured in _complete_runs(state, study, now):
            # Values may be lists, which have no hash.
            params = measured.trial.params
            key = tuple(sorted((name, repr(value)) for name, value in params.items()))
            by_params.setdefault(key, []).append(measured)
    metrics = [goal.metric]
    if goal.metric != "accuracy" and any(
        "accuracy" in measured.run.metrics for group in by_params.values() for measured in group
    ):
        metrics.append("accuracy")
    configurations = [_configuration(group, goal, metrics, best) for group in by_params.values()]
    sign = -1.0 if goal.direction == "max" else 1.0

    def order(configuration: Configuration) -> float:
        mean = configuration.metrics[goal.metric].mean
        return math.inf if mean is None else sign * mean

    names = [dimension.name for dimension in studies[0].spec.dimensions]
    return Configurations(sorted(configurations, key=order), names, metrics, _left_out(studies))


@dataclass(frozen=True, slots=True)
class _RunOfTrial:
    """A run of a complete trial. `number`: that of the trial in the whole study."""

    trial: TrialState
    number: int
    run: RunState
    hours: float
    dollars: float | None
    revocations: int


def _complete_runs(state: ClusterState, study: StudyState, now: float) -> Iterator[_RunOfTrial]:
    by_name = costs(state, now)
    lost = revocations(state)
    for trial in study.trials.values():
        if trial.state != "complete":
            continue
        for run in runs_of(state, trial):
            yield _RunOfTrial(
                trial,
                study.spec.first + trial.number,
                run,
                _hours(state, run, now),
                by_name[run.name].total,
                lost.get(run.name, 0),
            )


def _configuration(
    group: Sequence[_RunOfTrial],
    goal: Objective,
    metrics: Sequence[str],
    best: TrialState | None,
) -> Configuration:
    spreads = {goal.metric: Spread.of(_value(measured, goal) for measured in group)}
    for name in metrics[1:]:
        spreads[name] = Spread.of(measured.run.metrics.get(name) for measured in group)
    return Configuration(
        params=group[0].trial.params,
        n=len(group),
        hours=Spread.of(measured.hours for measured in group),
        dollars=Spread.of(measured.dollars for measured in group),
        metrics=spreads,
        revocations=Spread.of(float(measured.revocations) for measured in group),
        trials=tuple(dict.fromkeys(measured.number for measured in group)),
        best=any(measured.trial is best for measured in group),
    )


def _value(measured: _RunOfTrial, goal: Objective) -> float | None:
    if len(measured.trial.runs) == 1:
        return measured.trial.value
    return measured.run.value_of(goal)


def _left_out(parts: Sequence[StudyState]) -> str:
    states = [
        trial.state
        for study in parts
        for trial in study.trials.values()
        if trial.state != "complete"
    ]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    if counted:
        return f"Not counted: {counted}."
    return ""


def _hours(state: ClusterState, run: RunState, now: float) -> float:
    if not run.started_at:
        return 0.0
    return state.clock.between(run.started_at, run.ended_at or state.ended_at or now) / 3600
