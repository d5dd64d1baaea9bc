"""The handle of a study."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import markup
from ...client import commands, text
from ...client.cluster_handle import Cluster
from ...client.following.cluster import until_home
from ...client.handle import Handle
from ...client.lookup import find_work
from ...errors import ClusterError, TrainingError
from ...journal import ClusterState, Cost, RunState, StudyState, TrialState, costs, now
from ...kinds import load
from ...protocol import checks, layout
from ...protocol.cluster_commands import Delete, ExtendStudy
from ...protocol.run import Value
from ...protocol.study import StudySpec
from ..runs.handle import Run
from .optuna_study import optuna_study
from .trials import (
    Configurations,
    best_of,
    best_so_far,
    configurations,
    frame_of,
    parameter_columns,
)

if TYPE_CHECKING:
    import optuna
    import pandas


@dataclass(frozen=True, repr=False)
class Trial:
    """One trial of a study. `state`: running, complete, pruned, failed, stopped; `value` is that of
    the objective.
    """

    number: int
    params: Mapping[str, Value]
    state: str
    value: float | None
    runs: tuple[Run, ...]
    reason: str = ""

    def __repr__(self) -> str:
        return markup.lines(self._heading, self._facts)

    def _repr_html_(self) -> str:
        return markup.facts(self._heading, self._facts)

    @property
    def _heading(self) -> str:
        return f"Trial {self.number}, {self.state}: {text.number(self.value)}"

    @property
    def _facts(self) -> dict[str, str]:
        """What it shows, by name: its parameters, its runs, and why it ended."""
        facts = {"runs": ", ".join(run.name for run in self.runs)}
        if self.reason:
            facts["reason"] = self.reason
        params = {
            f"{name} (parameter)" if name in facts else name: text.value_words(value)
            for name, value in self.params.items()
        }
        return params | facts

    def stop(self) -> None:
        """End its runs, each with a last checkpoint; the study goes on with its other trials.
        Raises ClusterError.
        """
        for run in self.runs:
            if not run.state.over:
                run.stop()


@dataclass(frozen=True)
class Plot:
    """The curves of a study, as they are when they are shown."""

    study: Study

    def _repr_html_(self) -> str:
        return load("study", "view").plot_html(self)

    def __repr__(self) -> str:
        begun = self.study.begun or [(self.study.cluster.state, self.study.state)]
        points = [
            f"trial {number}: {text.number(value)}"
            for number, value in best_so_far([each for _, each in begun])
        ]
        if points:
            said = "; ".join(points)
        else:
            said = "no trial is complete yet"
        return f"{self.study.name}, best {begun[0][1].spec.goal.metric} so far: {said}"


class Study(Handle[StudyState, "Trial | None"]):
    """A study: trials that differ in their parameters, on one cluster, or on several one after the
    other.
    """

    kind = "study"
    at_stop = "its trials save a last checkpoint, and no further trial starts"

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name, cluster)
        self._clusters = {cluster.name: cluster}
        """Its clusters that were looked up, by name: the same ones also once others have taken
        their names.
        """

    @property
    def parts(self) -> tuple[Study, ...]:
        """The same study on each of its clusters, in the order of their turns: itself where it has
        one cluster.
        """
        spec = self._spec
        if not spec or not spec.parts:
            return (self,)
        for name in spec.parts:
            if name not in self._clusters:
                self._clusters[name] = Cluster(name)
        return tuple(Study(self.name, self._clusters[name]) for name in spec.parts)

    @property
    def alone(self) -> bool:
        """Whether `cluster` is the study's own."""
        return self._spec is not None and self._spec.alone

    @property
    def _spec(self) -> StudySpec | None:
        """Its declaration, also before the journal knows of it; None where that cannot be read."""
        if known := self.cluster.state.of(StudyState).get(self.name):
            return known.spec
        try:
            return StudySpec.from_dict(
                checks.parsed_object((self.directory / layout.STUDY).read_bytes())
            )
        except (OSError, ValueError):
            return None

    @property
    def begun(self) -> list[tuple[ClusterState, StudyState]]:
        """The states of its clusters on which it has begun, and its own there."""
        states = [
            (state := part.cluster.state, state.of(StudyState).get(self.name))
            for part in self.parts
        ]
        return [(state, study) for state, study in states if study is not None]

    def trials(self) -> pandas.DataFrame:
        """All trials as a DataFrame, a row for each.

        Columns: trial, state, value (of the objective, of several runs their mean), a column for
        each parameter, runs (their names), steps (of all of them), seconds (from when it was asked
        for to its end), dollars (what its runs cost, as `Run.cost` counts it), best (of all so
        far), reason (why it has no value). A parameter with the name of another column is
        `params_NAME`, as in Optuna's DataFrame.
        """
        begun = self.begun or [(self.cluster.state, self.state)]
        best = best_of([study for _, study in begun])
        first = ["trial", "state", "value"]
        last = ["runs", "steps", "seconds", "dollars", "best", "reason"]
        names = [dimension.name for dimension in begun[0][1].spec.dimensions]
        columns = parameter_columns(names, [*first, *last])
        rows: list[dict[str, Any]] = []
        for state, study in begun:
            by_name = costs(state, now())
            rows += [
                {
                    "trial": study.spec.first + trial.number,
                    "state": trial.state,
                    "value": trial.value,
                    **{columns[name]: value for name, value in trial.params.items()},
                    "runs": list(trial.runs),
                    "steps": sum(
                        state.of(RunState)[run].step
                        for run in trial.runs
                        if run in state.of(RunState)
                    ),
                    "seconds": (trial.told_at or now()) - trial.asked_at,
                    "dollars": sum(by_name[run].total for run in trial.runs if run in by_name),
                    "best": trial is best,
                    "reason": trial.reason,
                }
                for trial in study.trials.values()
            ]
        frame = frame_of(rows, [*first, *columns.values(), *last], list(columns.values()))
        frame["value"] = frame["value"].astype("float64")
        return frame

    def table(self) -> Configurations:
        """For each configuration the mean ± standard deviation, over its `n` complete runs, of
        hours, dollars, the objective, accuracy and revocations: a table, the best one first;
        `table().frame()` is a DataFrame.
        """
        return configurations(self.begun or [(self.cluster.state, self.state)], now())

    def plot(self) -> Plot:
        """The trials' curves over each other and the best so far: a picture in a notebook, else a
        line of text.
        """
        return Plot(self)

    @property
    def optuna(self) -> optuna.Study:
        """The same study as one of Optuna's, with all trials so far: its plots and its dashboard
        take it.

        A copy, made of the journal each time. Raises ClusterError where Optuna is not installed.
        """
        return optuna_study(self.begun or [(self.cluster.state, self.state)])

    @property
    def best(self) -> Trial | None:
        """The best of the complete trials so far; None before the first."""
        found = [(part, part.cluster.state.of(StudyState).get(self.name)) for part in self.parts]
        best = best_of([study for _, study in found if study])
        if best:
            return next(
                (part._trial(best) for part, study in found if study and study.best is best), None
            )
        return None

    def trial(self, number: int) -> Trial:
        """The trial of that number. Raises ClusterError where there is none yet."""
        for part in self.parts:
            study = part.cluster.state.of(StudyState).get(self.name)
            if study and (found := study.trials.get(number - study.spec.first)):
                return part._trial(found)
        raise ClusterError(f"{self.name} has no trial {number} yet", where=self.cluster.name)

    def cost(self) -> Cost:
        """Return the cost of its trials so far on all of its clusters, in US dollars, as of other
        work.

        Start-up and idle time of clusters that it has for itself are in their bills only.
        """
        parts = [costs(state, now())[self.name] for state, _ in self.begun]
        lines = Counter[str]()
        for part in parts:
            lines.update(part.lines)
        over = len(parts) == len(self.parts) and all(part.over for part in parts)
        return Cost(
            subject=self.name, total=sum(part.total for part in parts), lines=dict(lines), over=over
        )

    def wait(self, timeout: float | None = None) -> Trial | None:
        """Block until the study is over on all of its clusters and the results of its runs are on
        this machine.

        Returns its best trial, or None where none was complete. Raises TrainingError after
        `timeout` seconds, or where the study ended early without any complete trial. An interrupt
        ends the wait only.
        """
        if timeout is None:
            deadline = None
        else:
            deadline = time.monotonic() + timeout
        for part in self.parts:
            if deadline is None:
                left = None
            else:
                left = max(0.01, deadline - time.monotonic())
            state = part._until_over(timeout, left)
            study = state.of(StudyState).get(self.name)
            if study is None and not self.begun:
                raise TrainingError(f"{part.cluster.name} was deleted before {self.name} began")
            if study and study.reason and self.best is None:
                why = f"{self.name} ended without a complete trial: {study.reason}"
                raise TrainingError(why, where=part.cluster.name)
            until_home(part.cluster, part._is_home, deadline=deadline)
        return self.best

    def _is_home(self) -> bool:
        """Whether what its runs on this cluster left is here."""
        state = self.cluster.state
        study = state.of(StudyState).get(self.name)
        if study:
            names = [name for trial in study.trials.values() for name in trial.runs]
        else:
            names = []
        return all(
            Run(name, self.cluster).is_home() for name in names if name in state.of(RunState)
        )

    def extend(self, trials: int) -> None:
        """Have so many trials more, also of a study that has ended. Raises ClusterError."""
        if trials < 1:
            raise ClusterError(f"A study is extended by one trial at least, not by {trials}")
        request = f"r{secrets.token_hex(8)}"
        commands.send(
            self.cluster.directory, ExtendStudy(study=self.name, trials=trials, request=request)
        )

    def stop(self) -> None:
        """End its trials, each with a last checkpoint, and start no further one. Its results so far
        remain.

        Clusters that it has for itself are deleted, also those that wait for their turn.
        """
        parts = self.parts
        for place, part in enumerate(parts):
            state = part.cluster.state
            if len(parts) > 1 and part.is_over(state):
                continue
            if self.name not in state.of(StudyState) and place > 0:
                commands.send(part.cluster.directory, Delete(reason=f"{self.name} was stopped"))
            else:
                super(Study, part).stop()

    def _trial(self, state: TrialState) -> Trial:
        runs = tuple(Run(name, self.cluster) for name in state.runs)
        spec = self._spec
        return Trial(
            (spec.first if spec else 0) + state.number,
            state.params,
            state.state,
            state.value,
            runs,
            state.reason,
        )

    def __str__(self) -> str:
        studies = [study for _, study in self.begun]
        if not any(study.trials for study in studies):
            return f"{self.name} has no trial yet."
        said = f"{self.name}: {self._progress(studies)}"
        if reason := next((study.reason for study in studies if study.reason), ""):
            said += f", ended: {reason}"
        if (best := best_of(studies)) and best.value is not None:
            values = ", ".join(
                f"{name}={text.value_words(value)}" for name, value in best.params.items()
            )
            number = next(each.spec.first for each in studies if each.best is best) + best.number
            said += (
                f"; the best is {number}, {studies[0].spec.goal.metric} {best.value:.4g}"
                + f" ({values})" * bool(values)
            )
        return f"{said}."

    def __repr__(self) -> str:
        studies = [study for _, study in self.begun]
        where = ", ".join(part.cluster.name for part in self.parts)
        if not studies:
            return f"<Study {self.name} on {where}: declared>"
        return f"<Study {self.name} on {where}: {self._progress(studies)}>"

    def _progress(self, studies: Sequence[StudyState]) -> str:
        told = sum(trial.told for study in studies for trial in study.trials.values())
        spec = studies[0].spec
        return f"{told} of {spec.points if spec.parts else studies[0].wanted} trials"


handle = Study


def study(name: str | None = None, cluster: Cluster | str | None = None) -> Study:
    """Return the study called `name`, as `tm.run` finds a run. Raises UnknownWorkError and
    ClusterError.
    """
    found: Study = find_work("study", name, cluster)
    if cluster is not None:
        return found
    return found.parts[0]
