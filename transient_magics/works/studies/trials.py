"""What a study measured: a row for each trial, and for each configuration the mean and the spread
of its runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...client import text
from ...client.results.comparison import frame_of, parameter_columns, revocations
from ...journal import ClusterState, Cost, RunState, StudyState, TrialState, costs
from ...kinds import load
from ...protocol.measures.objective import Objective
from ...protocol.measures.step_parts import part_words
from ...protocol.run import Value

if TYPE_CHECKING:
    import pandas

_NOISE = 1e-9
"""A deviation below this share of the mean is that of sums of floats."""


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial. `value` is that of the objective, as long as it trains the latest that was
    measured, of several runs their mean.

    `step` of `steps`, `hours` (by the clock of the bill), `dollars` and `revocations` are those of
    its runs together.
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
    """Of how many examples its value is, where not of the whole dev split."""

    @property
    def words(self) -> str:
        """How it stands or ended."""
        if self.part and self.value is not None:
            return f"{self._stands} ({self.part})"
        return self._stands

    @property
    def _stands(self) -> str:
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
    """The trials of a study of the cluster in `state`, in the order of their numbers. `by_name`:
    costs of work.
    """
    taken = revocations(state)
    best = study.best
    return [
        TrialRow(
            number=trial.number,
            params=trial.params,
            state=trial.state,
            value=value_of(state, study, trial),
            best=best is not None and best.number == trial.number,
            step=sum(run.step for run in runs_of(state, trial)),
            steps=study.spec.run.train_steps * len(trial.runs),
            hours=sum(_hours(state, run, now) for run in runs_of(state, trial)),
            dollars=sum(by_name[run].total for run in trial.runs if run in by_name),
            revocations=sum(taken.get(run, 0) for run in trial.runs),
            runs=trial.runs,
            reason=trial.reason,
            part=next(
                filter(None, (part_words(*run.evaluated) for run in runs_of(state, trial))), ""
            ),
        )
        for trial in study.trials.values()
    ]


def runs_of(state: ClusterState, trial: TrialState) -> list[RunState]:
    """Those runs of a trial that have been declared."""
    return [state.of(RunState)[name] for name in trial.runs if name in state.of(RunState)]


def value_of(state: ClusterState, study: StudyState, trial: TrialState) -> float | None:
    """The value of a trial: what was told of it, else the mean of what its runs measured last."""
    if trial.told:
        return trial.value
    return Spread.of(run.comes_to(study.spec.goal) for run in runs_of(state, trial)).mean


def best_of(parts: Sequence[StudyState]) -> TrialState | None:
    """The best trial of a study that is on several clusters; None before the first complete one."""
    found: TrialState | None = None
    for best in filter(None, (part.best for part in parts)):
        if found is None or parts[0].spec.goal.better(best.value or 0.0, found.value or 0.0):
            found = best
    return found


def best_so_far(parts: Sequence[StudyState]) -> list[tuple[int, float]]:
    """The number and the value of each complete trial of a study that was better than all before
    it. `parts`: the study on each of its clusters.
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
    """Mean and standard deviation (of a sample: over n - 1) of `n` values; of one there is no
    deviation.
    """

    n: int
    mean: float | None
    sd: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Of those that are known."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return cls(0, None, None)
        return cls(
            len(known), statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None
        )

    def words(self, unit: str = "") -> str:
        """`0.943 ± 0.004`, the deviation in two digits and the mean to the last of them."""
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
    """A point of a study's space: over its `n` complete runs hours, dollars, metrics and
    revocations; `trials` that were of it, and whether the best one was.
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
    """The configurations of a study, the best one first: a list that shows itself as a table, mean
    ± sd of `n` runs.

    `frame` makes a DataFrame of it; `names` are the parameters, `metrics` what was measured;
    `left_out` says which trials are not in it.
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
        """What is above the cells."""
        return (*self.names, "n", *self.metrics, "hours", "dollars", "revocations")

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """A row of text for each."""
        return [
            (
                *(text.value_words(each.params[name]) for name in self.names),
                str(each.n),
                *(each.metrics[name].words() for name in self.metrics),
                each.hours.words(),
                each.dollars.words("$"),
                each.revocations.words(),
            )
            for each in self
        ]

    def frame(self) -> pandas.DataFrame:
        """As a DataFrame: for each of hours, dollars, metrics and revocations a column with the
        mean and one, `_sd`, with the standard deviation (NaN for n = 1). A parameter with the name
        of another column is `params_NAME`.
        """
        names = [
            f"{name}{end}"
            for name in (*self.metrics, "hours", "dollars", "revocations")
            for end in ("", "_sd")
        ]
        columns = parameter_columns(self.names, ["n", *names])
        rows = []
        for each in self:
            spreads = {
                **each.metrics,
                "hours": each.hours,
                "dollars": each.dollars,
                "revocations": each.revocations,
            }
            figures = {
                f"{name}{end}": value
                for name, spread in spreads.items()
                for end, value in (("", spread.mean), ("_sd", spread.sd))
            }
            params = {columns[name]: value for name, value in each.params.items()}
            rows.append({**params, "n": each.n, **figures})
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
    """The configurations of the study's complete trials: trials with the same parameters are one.

    `parts`: for each cluster on which it has begun, the state of that and of the study there.
    """
    goal = parts[0][1].spec.goal
    best = best_of([study for _, study in parts])
    of_run: dict[tuple[int, str], tuple[float, float | None, int]] = {}
    alike: dict[tuple[tuple[str, str], ...], list[tuple[int, TrialState]]] = {}
    runs: dict[int, list[RunState]] = {}
    for place, (state, study) in enumerate(parts):
        by_name = costs(state, now)
        taken = revocations(state)
        for trial in study.trials.values():
            if trial.state == "complete":
                key = tuple(
                    sorted((name, repr(value)) for name, value in trial.params.items())
                )  # lists have no hash
                alike.setdefault(key, []).append((place, trial))
                runs[id(trial)] = runs_of(state, trial)
                for run in runs[id(trial)]:
                    figures = (
                        _hours(state, run, now),
                        by_name[run.name].total,
                        taken.get(run.name, 0),
                    )
                    of_run[place, run.name] = figures
    if goal.metric != "accuracy" and any(
        "accuracy" in run.metrics for whole in runs.values() for run in whole
    ):
        others = ["accuracy"]
    else:
        others = []
    found = []
    for trials in alike.values():
        each = [(place, trial, run) for place, trial in trials for run in runs[id(trial)]]
        figures = [of_run[place, run.name] for place, _, run in each]
        metrics = {name: Spread.of(run.metrics.get(name) for _, _, run in each) for name in others}
        found.append(
            Configuration(
                params=trials[0][1].params,
                n=len(each),
                hours=Spread.of(hours for hours, _, _ in figures),
                dollars=Spread.of(dollars for _, dollars, _ in figures),
                metrics={
                    goal.metric: Spread.of(_told(trial, run, goal) for _, trial, run in each),
                    **metrics,
                },
                revocations=Spread.of(float(times) for _, _, times in figures),
                trials=tuple(parts[place][1].spec.first + trial.number for place, trial in trials),
                best=any(trial is best for _, trial in trials),
            )
        )
    sign = -1.0 if goal.direction == "max" else 1.0
    known = {each.trials: each.metrics[goal.metric].mean for each in found}
    found.sort(key=lambda each: math.inf if (mean := known[each.trials]) is None else sign * mean)
    names = [dimension.name for dimension in parts[0][1].spec.dimensions]
    return Configurations(
        found, names, [goal.metric, *others], _left_out([study for _, study in parts])
    )


def _told(trial: TrialState, run: RunState, goal: Objective) -> float | None:
    if len(trial.runs) == 1:
        return trial.value
    return run.comes_to(goal)


def _left_out(parts: Sequence[StudyState]) -> str:
    states = [
        trial.state
        for study in parts
        for trial in study.trials.values()
        if trial.state != "complete"
    ]
    counted = ", ".join(f"{states.count(fromkey)} {fromkey}" for fromkey in dict.fromkeys(states))
    if counted:
        return f"Not counted: {counted}."
    return ""


def _hours(state: ClusterState, run: RunState, now: float) -> float:
    if not run.started_at:
        return 0.0
    return state.clock.between(run.started_at, run.ended_at or state.ended_at or now) / 3600
