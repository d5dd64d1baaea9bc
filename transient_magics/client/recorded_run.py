"""The base of the handle of a run: what this machine has of the run, and how it ended.

It does not import what is done with results, so that the modules which do that can use it.
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
from ..protocol.measures.step_parts import part_words
from ..protocol.names import is_path
from ..protocol.run import RunSpec
from ..spec import render_duration
from . import text
from .handle import Handle


class Metrics(dict[str, float]):
    """Metrics by their names. `part`: of how many examples they are, in words, where not of the
    whole dev split.
    """

    def __init__(self, values: Mapping[str, float], part: str = "") -> None:
        super().__init__(values)
        self.part = part

    def __repr__(self) -> str:
        if self.part:
            return f"{super().__repr__()} ({self.part})"
        return super().__repr__()


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run that keeps its checkpoint: the `value` of `metric` at `step`."""

    step: int
    value: float
    metric: str
    path: Path | str | None
    """On this machine, or as `gs://...` in the cluster's bucket: what TensorFlow calls its path;
    None: on its way.
    """


@dataclass(frozen=True, repr=False)
class Result:
    """How a run ended: `seconds` from its start to its end, and its `cost` in US dollars
    (`run.cost()`).
    """

    step: int
    loss: float | None
    seconds: float
    cost: float
    checkpoint: Path | str | None
    """On this machine, or as `gs://...` in the cluster's bucket: what TensorFlow calls its path."""
    metrics: Metrics
    reason: str = ""
    """Why it ended before its steps were made, as `--stop-when` has it."""

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
        """What it shows, by name."""
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
    """A run as this machine knows it. `Run` adds what can be done with a run."""

    kind = "run"
    at_stop = "it saves a last checkpoint"

    @property
    def place(self) -> tuple[str, str | None] | None:
        """Where its checkpoints are kept (`gs://bucket/path`) and in which project, as this machine
        knows it.
        """
        try:
            store = self.declared.store
            if store:
                return (store, agreed(self.cluster.directory).project)
            return None
        except TransientError:  # nothing of it is here yet
            return None

    @property
    def declared(self) -> RunSpec:
        """The declaration of the run, as this machine knows it, also before the controller has
        recorded it.
        """
        return declared_run(self.cluster.directory, self.recorded).spec

    @property
    def recorded(self) -> RunState:
        """The state of the run in the journal, or one without steps where the journal does not have
        the run.

        The checkpoints in the folder of a run can be used although its cluster's journal is lost.
        """
        return self._state_in(self.cluster.state) or unknown_run(self.name)

    @property
    def best(self) -> Best | None:
        """The best evaluation so far, whose checkpoint is kept (`--keep-best`); None before the
        first.
        """
        found = self.recorded.best
        if found is None:
            return None
        if is_path(found.path):
            here = self.directory / found.path
        else:
            here = None
        if (place := self.place) and found.shipped.startswith(f"{place[0]}/"):
            shipped = found.shipped
        else:
            shipped = None
        return Best(found.step, found.value, found.metric, here if _is_here(here) else shipped)

    def reach(self, step: int, timeout: float | None = None) -> int:
        """Block until the run has made `step` global steps (or is over); returns the step as last
        reported.

        Raises TrainingError after `timeout` seconds, or where the run failed before.
        """

        def there(state: ClusterState) -> bool:
            run = state.of(RunState).get(self.name)
            return state.over or (run is not None and (run.over or run.step >= step))

        state = self.cluster.follow(there, timeout)
        if state is None:
            raise TrainingError(
                f"{self.name} has not reached step {step} after {timeout:.0f} s",
                where=self.cluster.name,
            )
        run = state.of(RunState).get(self.name)
        if run is None or run.phase == "failed" or run.step < step:
            if run and run.reason:
                reason = run.reason
            else:
                reason = f"{self.name} ended before step {step}"
            raise TrainingError(reason.rstrip("."), where=self.cluster.name)
        return run.step

    def is_home(self) -> bool:
        """Whether all that it left on the VM of a controller is here."""
        return (self.directory / layout.HOME).exists()

    def _is_home(self) -> bool:
        return self.is_home()

    def _outcome(self, state: ClusterState, work: RunState) -> Result:
        return Result(
            step=work.step,
            loss=work.loss,
            seconds=max(0.0, work.ended_at - work.started_at) if work.started_at else 0.0,
            cost=costs(state, work.ended_at)[self.name].total,
            checkpoint=self._checkpoint(work),
            metrics=Metrics(work.metrics, part_words(*work.evaluated)),
            reason=work.reason,
        )

    def _checkpoint(self, run: RunState) -> Path | str | None:
        if is_path(run.checkpoint):
            here = self.directory / run.checkpoint
        else:
            here = None
        place = self.place
        in_place = place is not None and run.shipped.startswith(
            f"{place[0]}/"
        )  # where it is, the chief tells
        if in_place and (
            (run.shipped_step or 0) >= (run.checkpoint_step or 0) or not _is_here(here)
        ):
            return run.shipped
        return here


def _is_here(checkpoint: Path | None) -> bool:
    return checkpoint is not None and checkpoint.with_name(f"{checkpoint.name}.index").exists()
