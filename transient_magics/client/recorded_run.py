"""The base of the handle of a run: its records on this machine, and its result.

It does not import modules that process results, so that these can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import markup
from ..errors import TrainingError, TransientError
from ..journal import ClusterState, RunState, costs, unknown_run
from ..journal.declared import agreed, declared_run
from ..protocol import layout
from ..protocol.checks import is_path
from ..protocol.run import RunSpec
from ..protocol.step_parts import part_words
from ..spec import render_duration
from . import text
from .handle import Handle


class Metrics(dict[str, float]):
    """Metrics by name.

    Attributes
    ----------
    part : str
        The evaluated part of the examples, in words; empty for the whole dev split.
    """

    def __init__(self, values: Mapping[str, float], part: str = "") -> None:
        """Create the metrics."""
        super().__init__(values)
        self.part = part

    def __repr__(self) -> str:
        if self.part:
            return f"{super().__repr__()} ({self.part})"
        return super().__repr__()


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run with `--keep-best`.

    Attributes
    ----------
    step : int
        The global step of the evaluation.
    value : float
        The value of the metric.
    metric : str
        The name of the metric.
    path : Path or str or None
        The prefix of the checkpoint's files, as TensorFlow takes it: on this machine, or `gs://...`
        in the cluster's bucket. None: not copied yet.

    Examples
    --------
    >>> tm.run("run-1").best.value
    """

    step: int
    value: float
    metric: str
    path: Path | str | None


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run.

    Attributes
    ----------
    step : int
        The last global step.
    loss : float or None
        The training loss at that step.
    seconds : float
        The time from the start of the run to its end, in seconds.
    cost : float
        The cost in US dollars, as `run.cost().total`.
    checkpoint : Path or str or None
        The prefix of the last checkpoint's files, as TensorFlow takes it: on this machine, or
        `gs://...` in the cluster's bucket.
    metrics : Metrics
        The metrics of the last evaluation by name.
    reason : str
        Why the run ended early (`--stop-when`); otherwise empty.

    Examples
    --------
    >>> result = tm.run("run-1").wait()
    >>> result.metrics["accuracy"]
    """

    step: int
    loss: float | None
    seconds: float
    cost: float
    checkpoint: Path | str | None
    metrics: Metrics
    reason: str = ""

    def __repr__(self) -> str:
        return markup.lines(self._heading, self._facts)

    def _repr_html_(self) -> str:
        return markup.facts(self._heading, self._facts)

    @property
    def _heading(self) -> str:
        ended = f"Ended at step {self.step:,}"
        if self.reason:
            return f"{ended}: {self.reason}"
        return ended

    @property
    def _facts(self) -> dict[str, str]:
        """The shown values by name."""
        facts = {"training loss": text.number(self.loss)}
        for name, value in self.metrics.items():
            facts[f"evaluation: {name}"] = text.number(value)
        if self.metrics.part:
            facts["evaluated on"] = self.metrics.part
        facts["time"] = render_duration(self.seconds)
        facts["cost"] = text.money(self.cost)
        facts["checkpoint"] = str(self.checkpoint or "none")
        return facts


class RecordedRun(Handle[RunState, Result]):
    """A run in the records of this machine. `Run` adds commands and results."""

    kind = "run"
    at_stop = "it saves a final checkpoint"

    @property
    def place(self) -> tuple[str, str | None] | None:
        """The bucket folder of its checkpoints (`gs://bucket/path`) and its project, or None."""
        try:
            store = self.declared.store
            if not store:
                return None
            return store, agreed(self.cluster.directory).project
        except TransientError:  # this machine has no files of it yet
            return None

    @property
    def declared(self) -> RunSpec:
        """The declaration of the run, even before the controller has recorded it."""
        return declared_run(self.cluster.directory, self.recorded).spec

    @property
    def recorded(self) -> RunState:
        """The state of the run in the journal, or an empty state.

        So the checkpoints in the folder of a run are usable even if the journal is lost.
        """
        return self._state_in(self.cluster.state) or unknown_run(self.name)

    @property
    def best(self) -> Best | None:
        """The best evaluation so far (`--keep-best`); None before the first one."""
        found = self.recorded.best
        if found is None:
            return None
        path: Path | str | None = None
        if self._is_in_place(found.shipped):
            path = found.shipped
        if is_path(found.path) and _is_here(self.directory / found.path):
            path = self.directory / found.path
        return Best(found.step, found.value, found.metric, path)

    def reach(self, step: int, timeout: float | None = None) -> int:
        """Block until the run has reached a global step.

        Parameters
        ----------
        step
            The step.
        timeout
            The time limit in seconds (default: none).

        Returns
        -------
        int
            The last reported step.

        Raises
        ------
        TrainingError
            The time limit has passed, or the run ended before the step.
        """

        def there(state: ClusterState) -> bool:
            run = state.of(RunState).get(self.name)
            return state.over or (run is not None and (run.over or run.step >= step))

        state = self.cluster.follow(there, timeout)
        if state is None:
            raise TrainingError(
                f"{self.name} has not reached step {step} within {timeout:.0f} s",
                where=self.cluster.name,
            )
        run = state.of(RunState).get(self.name)
        if run is None or run.phase == "failed" or run.step < step:
            reason = f"{self.name} ended before step {step}"
            if run and run.reason:
                reason = run.reason
            raise TrainingError(reason.rstrip("."), where=self.cluster.name)
        return run.step

    def is_home(self) -> bool:
        """Return whether all results from the controller's VM are on this machine."""
        return (self.directory / layout.HOME).exists()

    def _is_home(self) -> bool:
        return self.is_home()

    def _outcome(self, state: ClusterState, work: RunState) -> Result:
        seconds = 0.0
        if work.started_at:
            seconds = max(0.0, work.ended_at - work.started_at)
        return Result(
            step=work.step,
            loss=work.loss,
            seconds=seconds,
            cost=costs(state, work.ended_at)[self.name].total,
            checkpoint=self._checkpoint(work),
            metrics=Metrics(work.metrics, part_words(*work.evaluated)),
            reason=work.reason,
        )

    def _checkpoint(self, run: RunState) -> Path | str | None:
        here = None
        if is_path(run.checkpoint):
            here = self.directory / run.checkpoint
        is_latest = (run.shipped_step or 0) >= (run.checkpoint_step or 0)
        if self._is_in_place(run.shipped) and (is_latest or not _is_here(here)):
            return run.shipped
        return here

    def _is_in_place(self, shipped: str) -> bool:
        """Return whether a path that the chief reported is in the bucket folder of the run."""
        place = self.place
        return place is not None and shipped.startswith(f"{place[0]}/")


def _is_here(checkpoint: Path | None) -> bool:
    return checkpoint is not None and checkpoint.with_name(f"{checkpoint.name}.index").exists()
