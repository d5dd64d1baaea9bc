"""The handle of a study."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, TrainingError
from ...journal import ClusterState, StudyState, TrialState, now, run_costs, study_cost
from ...protocol import layout
from ...protocol.cluster_commands import ExtendStudy, StopStudy
from ...protocol.run import Value
from .. import commands, text
from ..results.for_optuna import optuna_study
from ..results.trials import Configurations, best_so_far, configurations
from .run import Run

if TYPE_CHECKING:
    import optuna
    import pandas

    from .cluster import Cluster


@dataclass(frozen=True)
class Trial:
    """One trial of a study. `state`: running, complete, pruned, failed, stopped; `value` is that of the objective."""

    number: int
    params: Mapping[str, Value]
    state: str
    value: float | None
    runs: tuple[Run, ...]
    reason: str = ""

    def stop(self) -> None:
        """End its runs, each with a last checkpoint; the study goes on with its other trials. Raises ClusterError."""
        for run in self.runs:
            if not run.state.over:
                run.stop()


@dataclass(frozen=True)
class Plot:
    """The curves of a study, as they are when they are shown."""

    study: Study

    def __repr__(self) -> str:
        state = self.study.state
        points = [f"trial {number}: {text.number(value)}" for number, value in best_so_far(state)]
        said = "; ".join(points) if points else "no trial is complete yet"
        return f"{self.study.name}, best {state.spec.goal.metric} so far: {said}"


class Study:
    """One study of one cluster: trials that differ in their parameters."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster

    @property
    def directory(self) -> Path:
        """The folder with the study's declaration and cell."""
        return self.cluster.directory / layout.STUDIES / self.name

    @property
    def state(self) -> StudyState:
        """What the journal says now. Raises ClusterError until the controller has heard of the study."""
        found = self.cluster.state.studies.get(self.name)
        if found is None:
            raise ClusterError(f"{self.name} has not begun", where=self.cluster.name, fix="Try again in a moment.")
        return found

    def trials(self) -> pandas.DataFrame:
        """All trials as a DataFrame, a row for each.

        Columns: trial, state, value (of the objective, of several runs their mean), a column for each parameter, runs
        (their names), steps (of all of them), seconds (from when it was asked for to its end), dollars (its VMs' time
        and its share of all else that the cluster costs, by the time of workers), best (of all so far), reason (why it
        has no value).
        """
        import pandas

        state = self.cluster.state
        study, costs = self.state, run_costs(state, now())
        best = study.best
        rows = [
            {
                "trial": trial.number, "state": trial.state, "value": trial.value, **trial.params,
                "runs": list(trial.runs), "steps": sum(state.runs[run].step for run in trial.runs if run in state.runs),
                "seconds": (trial.told_at or now()) - trial.asked_at,
                "dollars": sum(costs.get(run, 0.0) for run in trial.runs),
                "best": best is not None and best.number == trial.number, "reason": trial.reason,
            }
            for trial in study.trials.values()
        ]  # fmt: skip
        names = [each.name for each in study.spec.dimensions]
        columns = ["trial", "state", "value", *names, "runs", "steps", "seconds", "dollars", "best", "reason"]
        frame = pandas.DataFrame(rows, columns=columns)
        frame["value"] = frame["value"].astype("float64")
        return frame

    def table(self) -> Configurations:
        """For each configuration the mean ± standard deviation, over its `n` complete runs, of hours, dollars, the
        objective, accuracy and revocations: a table, the best one first; `table().frame()` is a DataFrame."""
        return configurations(self.cluster.state, self.state, now())

    def plot(self) -> Plot:
        """The trials' curves over each other and the best so far: a picture in a notebook, else a line of text."""
        return Plot(self)

    @property
    def optuna(self) -> optuna.Study:
        """The same study as one of Optuna's, with all trials so far: its plots and its dashboard take it.

        A copy, made of the journal each time. Raises ClusterError where Optuna is not installed.
        """
        return optuna_study(self.cluster.state, self.state)

    @property
    def best(self) -> Trial | None:
        """The best of the complete trials so far; None before the first."""
        found = self.state.best
        return self._trial(found) if found else None

    def trial(self, number: int) -> Trial:
        """The trial of that number. Raises ClusterError where there is none yet."""
        found = self.state.trials.get(number)
        if found is None:
            raise ClusterError(f"{self.name} has no trial {number} yet", where=self.cluster.name)
        return self._trial(found)

    def cost(self) -> float:
        """What its trials have cost so far, in US dollars: their VMs' time, and their share of all else, as `trials`
        has it."""
        return study_cost(self.cluster.state, self.state, now())

    def wait(self, timeout: float | None = None) -> Trial | None:
        """Block until the study is over; its best trial, or None where none was complete.

        Raises TrainingError after `timeout` seconds, or where the study ended early without any complete trial.
        Interrupting the wait changes nothing: the study goes on.
        """

        state = self.cluster.follow(lambda state: state.over or self.is_over(state), timeout)
        if state is None:
            raise TrainingError(f"{self.name} is not over after {timeout:.0f} s", where=self.cluster.name)
        study = state.studies.get(self.name)
        if study is None:
            raise TrainingError(f"{self.cluster.name} was deleted before {self.name} began")
        if study.best is None and study.reason:
            raise TrainingError(f"{self.name} ended without a complete trial: {study.reason}", where=self.cluster.name)
        return self.best

    def is_over(self, state: ClusterState) -> bool:
        """Whether in this state of its cluster all of its trials have ended, and it asks for no further one."""
        study = state.studies.get(self.name)
        return study is not None and study.over

    def __await__(self) -> Generator[Any, None, Trial | None]:
        """`await study`: like `wait`, while the notebook's loop goes on."""
        return asyncio.to_thread(self.wait).__await__()

    def extend(self, trials: int) -> None:
        """Have so many trials more, also of a study that has ended. Raises ClusterError."""
        if trials < 1:
            raise ClusterError(f"A study is extended by one trial at least, not by {trials}")
        commands.send(self.cluster.directory, ExtendStudy(study=self.name, trials=trials))

    def stop(self) -> None:
        """Have no further trial, and end those that train, each with a last checkpoint. What is done is kept."""
        commands.send(self.cluster.directory, StopStudy(study=self.name))

    def _trial(self, state: TrialState) -> Trial:
        runs = tuple(Run(name, self.cluster) for name in state.runs)
        return Trial(state.number, state.params, state.state, state.value, runs, state.reason)

    def __str__(self) -> str:
        study = self.cluster.state.studies.get(self.name)
        if study is None or not study.trials:
            return f"{self.name} has no trial yet."
        told = sum(trial.told for trial in study.trials.values())
        said = f"{self.name}: {told} of {study.wanted} trials"
        if study.reason:
            said += f", ended: {study.reason}"
        if (best := study.best) and best.value is not None:
            values = ", ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
                                for name, value in best.params.items())  # fmt: skip
            said += f"; the best is {best.number}, {study.spec.goal.metric} {best.value:.4g}" + f" ({values})" * bool(
                values
            )
        return f"{said}."

    def __repr__(self) -> str:
        study = self.cluster.state.studies.get(self.name)
        if study is None:
            return f"<Study {self.name} on {self.cluster.name}: declared>"
        told = sum(trial.told for trial in study.trials.values())
        return f"<Study {self.name} on {self.cluster.name}: {told} of {study.wanted} trials>"
