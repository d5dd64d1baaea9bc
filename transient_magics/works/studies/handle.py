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
from ...client.results.comparison import frame_of
from ...errors import ClusterError, TrainingError
from ...journal import ClusterState, Cost, RunState, costs, now
from ...kinds import load
from ...protocol import checks, layout
from ...protocol.cluster_commands import Delete, ExtendStudy
from ...protocol.run import Value
from ..runs.handle import Run
from .optuna_study import optuna_study
from .spec import StudySpec
from .state import StudyState, TrialState
from .trials import Configurations, best_of, best_so_far, configurations, parameter_columns

if TYPE_CHECKING:
    import optuna
    import pandas


@dataclass(frozen=True, repr=False)
class Trial:
    """A trial of a study.

    Attributes
    ----------
    number : int
        Its number in the study.
    params : mapping
        Its parameters, by name.
    state : str
        `running`, `complete`, `pruned`, `failed` or `stopped`.
    value : float or None
        The value of the objective.
    runs : tuple of Run
        Its runs; one unless the study repeats each point.
    reason : str
        Why it has no value, or ended early.
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
        """The figures that it shows, by name: its parameters, its runs, and why it ended."""
        facts = {"runs": ", ".join(run.name for run in self.runs)}
        if self.reason:
            facts["reason"] = self.reason
        params = {
            f"{name} (parameter)" if name in facts else name: text.value_words(value)
            for name, value in self.params.items()
        }
        return params | facts

    def stop(self) -> None:
        """Stop the runs of the trial, each with a last checkpoint; the study continues.

        Raises
        ------
        ClusterError
            The controller does not answer.
        """
        for run in self.runs:
            if not run.state.over:
                run.stop()


@dataclass(frozen=True)
class Plot:
    """The curves of a study at the time when they are shown."""

    study: Study

    def _repr_html_(self) -> str:
        return load("study", "view").plot_html(self)

    def __repr__(self) -> str:
        begun = self.study.begun or [(self.study.cluster.state, self.study.state)]
        studies = [study for _, study in begun]
        points = [f"trial {number}: {text.number(value)}" for number, value in best_so_far(studies)]
        words = "; ".join(points) or "no trial is complete yet"
        return f"{self.study.name}, best {studies[0].spec.goal.metric} so far: {words}"


class Study(Handle[StudyState, "Trial | None"]):
    """A study: trials with different parameters, on one cluster or on several in turn.

    Examples
    --------
    >>> study = tm.study("study-1")
    >>> best = study.wait()
    >>> best.params, best.value
    """

    kind = "study"
    at_stop = "its trials save a last checkpoint, and no further trial starts"

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name, cluster)
        # Clusters are looked up once, so that they stay the same if others take their names.
        self._clusters = {cluster.name: cluster}

    @property
    def parts(self) -> tuple[Study, ...]:
        """The study on each of its clusters, in the order of their turns."""
        spec = self._spec
        if not spec or not spec.parts:
            return (self,)
        for name in spec.parts:
            if name not in self._clusters:
                self._clusters[name] = Cluster(name)
        return tuple(Study(self.name, self._clusters[name]) for name in spec.parts)

    @property
    def alone(self) -> bool:
        """Whether `cluster` was declared only for the study."""
        return self._spec is not None and self._spec.alone

    @property
    def _spec(self) -> StudySpec | None:
        """The declaration, also before it is in the journal; None if it cannot be read."""
        if study := self.cluster.state.of(StudyState).get(self.name):
            return study.spec
        try:
            return StudySpec.from_dict(
                checks.parsed_object((self.directory / layout.STUDY).read_bytes())
            )
        except (OSError, ValueError):
            return None

    @property
    def begun(self) -> list[tuple[ClusterState, StudyState]]:
        """The states of the clusters on which the study has begun, and its own states there."""
        begun = []
        for part in self.parts:
            state = part.cluster.state
            if study := state.of(StudyState).get(self.name):
                begun.append((state, study))
        return begun

    def trials(self) -> pandas.DataFrame:
        """Return all trials as a DataFrame with a row for each.

        Returns
        -------
        pandas.DataFrame
            These columns, and one for each parameter (`params_NAME` if another column has its
            name).

            trial, state, value
                The number, the state, and the value of the objective (the mean of several runs).
            runs, steps
                The names of its runs, and the sum of their steps.
            seconds
                The time from the start of the trial to its end.
            dollars
                The cost of its runs in US dollars, as in `Run.cost`.
            best
                Whether it is the best trial so far.
            reason
                Why it has no value.
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
                    "seconds": (trial.ended_at or now()) - trial.asked_at,
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
        """Return the mean and the standard deviation of each configuration, the best first.

        Returns
        -------
        Configurations
            A table of hours, US dollars, the objective, accuracy and revocations over `n` complete
            runs. Its `frame()` is a DataFrame.
        """
        return configurations(self.begun or [(self.cluster.state, self.state)], now())

    def plot(self) -> Plot:
        """Return the curves of the trials and the best value so far, a picture in a notebook."""
        return Plot(self)

    @property
    def optuna(self) -> optuna.Study:
        """A copy of the study for Optuna's plots and dashboard, with all trials so far.

        The copy is made from the journal each time. Raises ClusterError without Optuna.
        """
        return optuna_study(self.begun or [(self.cluster.state, self.state)])

    @property
    def best(self) -> Trial | None:
        """The best complete trial so far; None before the first."""
        states = [(part, part.cluster.state.of(StudyState).get(self.name)) for part in self.parts]
        best = best_of([study for _, study in states if study])
        if best is None:
            return None
        owners = (part for part, study in states if study and study.best is best)
        return next((part._trial(best) for part in owners), None)

    def trial(self, number: int) -> Trial:
        """Return a trial by its number.

        Raises
        ------
        ClusterError
            There is no such trial yet.
        """
        for part in self.parts:
            study = part.cluster.state.of(StudyState).get(self.name)
            if study and (found := study.trials.get(number - study.spec.first)):
                return part._trial(found)
        raise ClusterError(f"{self.name} has no trial {number} yet", where=self.cluster.name)

    def cost(self) -> Cost:
        """Return the cost of the trials so far on all clusters of the study.

        Start-up and idle time of clusters that the study declared are only in their bills.

        Returns
        -------
        Cost
            US dollars: `total`, and `lines` by run.
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
        """Wait until the study is over and the results of its runs are on this machine.

        An interrupt ends the wait only.

        Parameters
        ----------
        timeout : float, optional
            Seconds (default: no limit).

        Returns
        -------
        Trial or None
            The best trial; None if no trial is complete.

        Raises
        ------
        TrainingError
            The time limit has passed, or the study ended early without a complete trial.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for part in self.parts:
            left = None
            if deadline is not None:
                left = max(0.01, deadline - time.monotonic())
            state = part._until_over(timeout, left)
            study = state.of(StudyState).get(self.name)
            if study is None and not self.begun:
                raise TrainingError(f"{part.cluster.name} was deleted before {self.name} started")
            if study and study.reason and self.best is None:
                why = f"{self.name} ended without a complete trial: {study.reason}"
                raise TrainingError(why, where=part.cluster.name)
            until_home(part.cluster, part._is_home, deadline=deadline)
        return self.best

    def _is_home(self) -> bool:
        """Return whether the results of its runs on this cluster are on this machine."""
        state = self.cluster.state
        study = state.of(StudyState).get(self.name)
        if study is None:
            return True
        names = [name for trial in study.trials.values() for name in trial.runs]
        return all(
            Run(name, self.cluster).is_home() for name in names if name in state.of(RunState)
        )

    def extend(self, trials: int) -> None:
        """Add trials, also to a study that has ended.

        Parameters
        ----------
        trials : int
            The number of further trials.

        Raises
        ------
        ClusterError
            The study has no further points, or its cluster is gone.
        """
        if trials < 1:
            raise ClusterError(f"The number of added trials must be at least 1, not {trials}")
        request = f"r{secrets.token_hex(8)}"
        commands.send(
            self.cluster.directory, ExtendStudy(study=self.name, trials=trials, request=request)
        )

    def stop(self) -> None:
        """Stop the trials, each with a last checkpoint, and start no further ones.

        The results so far are kept. Clusters that the study declared are deleted.

        Raises
        ------
        ClusterError
            A controller does not answer.
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
        words = f"{self.name}: {self._progress(studies)}"
        if reason := next((study.reason for study in studies if study.reason), ""):
            words += f", ended: {reason}"
        best = best_of(studies)
        if best and best.value is not None:
            first = next(study.spec.first for study in studies if study.best is best)
            metric = studies[0].spec.goal.metric
            words += f"; the best is {first + best.number}, {metric} {best.value:.4g}"
            params = [f"{name}={text.value_words(value)}" for name, value in best.params.items()]
            if params:
                words += f" ({', '.join(params)})"
        return f"{words}."

    def __repr__(self) -> str:
        studies = [study for _, study in self.begun]
        where = ", ".join(part.cluster.name for part in self.parts)
        if not studies:
            return f"<Study {self.name} on {where}: declared>"
        return f"<Study {self.name} on {where}: {self._progress(studies)}>"

    def _progress(self, studies: Sequence[StudyState]) -> str:
        ended = sum(trial.ended for study in studies for trial in study.trials.values())
        spec = studies[0].spec
        return f"{ended} of {spec.points if spec.parts else studies[0].planned} trials"


handle = Study


def study(name: str | None = None, cluster: Cluster | str | None = None) -> Study:
    """Return a study.

    Parameters
    ----------
    name : str, optional
        The name of the study (default: the latest).
    cluster : Cluster or str, optional
        One of its clusters (default: the latest one that has such a study).

    Raises
    ------
    UnknownWorkError
        There is no such study.
    ClusterError
        No cluster is named, and several that are not deleted have such work.

    Examples
    --------
    >>> tm.study().best
    """
    study: Study = find_work("study", name, cluster)
    if cluster is not None:
        return study
    return study.parts[0]
