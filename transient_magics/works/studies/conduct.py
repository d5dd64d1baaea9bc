"""Studies on a controller: at each tick it carries out what `decisions` returns.

A trial is in the journal before its runs have folders. These are copied from the study's folder,
each completely or not at all. So a controller that replaces another one makes what is missing, and
no trial twice.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from ...controller.record import Recorder
from ...controller.tasks import Tasks
from ...controller.vms.link import Link
from ...controller.works import Tick, Turn, Works, refuse_when_ending
from ...errors import ClusterError, reason_of
from ...journal import RunState, events
from ...journal.declared import forget_brought, is_brought
from ...protocol import layout
from ...protocol.checks import is_name
from ...protocol.cluster_commands import Command, ExtendStudy
from ...protocol.run import Value
from ...spec import ClusterSpec, run_store
from ..runs.conduct import Runs
from . import turn
from .artifacts import make
from .decisions import Decision, DeclareRun, EndStudy, FinishTrial, StartTrial, StopRun, decide
from .events import StudyAsked, StudyExtended, StudyTold
from .sampling import OptunaSampler, missing, point, random_point
from .spec import StudySpec
from .state import StudyState

log = logging.getLogger(__name__)

_LEFT_OUT = "left-out"
"""The folder of runs that came from a VM and do not count."""


class Studies(Works[StudySpec]):
    """The studies of a cluster."""

    kind = "study"
    spec_class = StudySpec

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        link: Callable[[str], Link | None],
        others: Mapping[str, Works[Any]] | None = None,
    ) -> None:
        super().__init__(directory, recorder, link, others)
        self._samplers: dict[str, OptunaSampler] = {}
        # Trials that the pruner would end, found when the sampler was created: they were evaluated
        # while no controller ran.
        self._due: dict[str, set[int]] = {}

    @property
    def _runs(self) -> Runs:
        return cast("Runs", self.others["run"])

    def turn(self, spec: ClusterSpec, at: float) -> Turn | None:
        """Return the turn of a cluster that a study has for itself; None for other clusters."""
        study = turn.waited_for(self.directory)
        if study:
            return turn.turn(study, spec, at)
        return None

    async def obey(self, command: Command) -> bool:
        """Carry out a command about a study."""
        if not isinstance(command, ExtendStudy):
            return False
        refuse_when_ending(self.state)
        self.extend(command.study, command.trials, command.request)
        return True

    def prepare(self, name: str, spec: StudySpec) -> None:
        """Check that the sampler is installed. Raises ClusterError."""
        if package := missing(spec):
            raise ClusterError(
                f"{name} needs {package}, which is not installed on the controller's machine"
            )

    def failed(self, name: str, reason: str) -> events.WorkStopping:
        """Return the event by which a study begins no further trial; it ends after its runs."""
        return events.WorkStopping(work=name, of="study", reason=reason)

    def take_back(self) -> None:
        """Put runs aside that have the names of trials and came from a VM that wrote the journal.

        The run of a trial is made here from its study. It must not find a folder with code and
        values of a VM.
        """
        for folder in sorted((self.directory / layout.RUNS).glob("*")):
            name = folder.name
            if is_name(name) and is_brought(self.directory, name) and self.state.study_of(name):
                aside = self.directory / _LEFT_OUT
                aside.mkdir(mode=0o700, exist_ok=True)
                shutil.rmtree(aside / name, ignore_errors=True)
                folder.rename(aside / name)
                forget_brought(self.directory, name)

    def extend(self, name: str, trials: int, request: str = "") -> None:
        """Add trials, once for each `request`. Raises ClusterError where there can be no more."""
        self.state.refuse_unknown("study", name)
        study = self.state.of(StudyState)[name]
        if request and request in study.requests:
            return
        if study.spec.sampler == "none":
            raise ClusterError(
                f"{name} has only one point, so it cannot be extended",
                fix="Declare a study with --over.",
            )
        if study.spec.parts:
            raise ClusterError(
                f"{name} already tries all of its points, on {', '.join(study.spec.parts)}"
            )
        if study.spec.sampler == "grid" and study.planned >= study.spec.points:
            raise ClusterError(f"{name} already tries all {study.spec.points} points of its grid")
        self.recorder.record(StudyExtended(study=name, trials=trials, request=request))

    def tick(self, tick: Tick) -> None:
        """Carry out the decisions about all studies."""
        slots = tick.slots()
        for name in self._in_turn():
            study = self.state.of(StudyState)[name]
            pruned = self._pruned(tick.tasks, study)
            for decision in decide(study, self.state, slots, tick.at, pruned):
                self._carry_out(name, decision, tick.tasks)

    def _carry_out(self, name: str, decision: Decision, tasks: Tasks) -> None:
        match decision:
            case FinishTrial():
                ended = StudyTold(
                    study=name,
                    trial=decision.trial,
                    state=decision.state,
                    value=decision.value,
                    reason=decision.reason,
                )
                self.recorder.record(ended)
            case EndStudy():
                self.request_end(name, reason=decision.reason)
            case StartTrial():
                self._ask(tasks, name, decision.trial)
            case DeclareRun():
                self._try_to_make(self.state.of(StudyState)[name], decision.trial, decision.repeat)
            case StopRun():
                self._runs.stop_trial(decision.run, decision.save)

    def _in_turn(self) -> list[str]:
        """Return the studies that are not done, those with the fewest running trials first."""
        unfinished = [
            study for study in self.state.of(StudyState).values() if not self._is_done(study)
        ]
        return [
            study.name
            for study in sorted(
                unfinished, key=lambda study: (len(study.running), study.declared_at)
            )
        ]

    def _is_done(self, study: StudyState) -> bool:
        """Return whether the study and its runs are over: a run may outlive its trial briefly."""
        runs = self.state.of(RunState)
        names = (name for trial in study.trials.values() for name in trial.runs)
        return study.over and all(name not in runs or runs[name].over for name in names)

    def _pruned(self, tasks: Tasks, study: StudyState) -> set[int]:
        """Return the trials that the pruner would end now.

        There are none until Optuna is imported, which takes a second.
        """
        if not _needs_optuna(study.spec) or study.stopping or f"ask {study.name}" in tasks:
            return set()
        if study.name not in self._samplers:
            tasks.do(f"sampler of {study.name}", lambda: self._make_sampler(study.name))
            return set()
        return self._samplers[study.name].catch_up(study, self.state.of(RunState)) | self._due.pop(
            study.name, set()
        )

    async def _make_sampler(self, name: str) -> None:
        state = self.state
        self._samplers[name], self._due[name] = await asyncio.to_thread(
            _sampler_of, state.of(StudyState)[name], state.of(RunState)
        )

    def _ask(self, tasks: Tasks, name: str, number: int) -> None:
        params = point(self.state.of(StudyState)[name].spec, number)
        if params is not None:
            self._begin(name, number, params)
        elif sampler := self._samplers.get(name):
            tasks.do(f"ask {name}", lambda: self._propose(sampler, name, number))

    async def _propose(self, sampler: OptunaSampler, name: str, number: int) -> None:
        try:
            params = await asyncio.to_thread(sampler.propose)
        except (ArithmeticError, AssertionError, RuntimeError, ValueError) as error:
            # The numerics of a sampler can fail.
            log.warning("%s: the sampler failed, trial %d is random: %r", name, number, error)
            # The sampler has an incomplete trial, so it is created again.
            self._samplers.pop(name, None)
            spec = self.state.of(StudyState)[name].spec
            params = random_point(spec.dimensions, spec.seed, number)
        study = self.state.of(StudyState)[name]
        if study.stopping or len(study.trials) != number:
            # The sampler has a trial that the journal does not have.
            self._samplers.pop(name, None)
        else:
            self._begin(name, number, params)

    def _begin(self, name: str, number: int, params: Mapping[str, Value]) -> None:
        runs = self.state.of(StudyState)[name].spec.run_names(number)
        self.recorder.record(StudyAsked(study=name, trial=number, params=params, runs=runs))

    def _try_to_make(self, study: StudyState, number: int, repeat: int) -> None:
        """Make the folder of a run.

        An error, such as a full disk, is noted, and the next tick tries again.
        """
        try:
            store = run_store(self.recorder.spec, study.spec.run_name(number, repeat))
            make(self.directory, study.name, number, repeat, study.trials[number].params, store)
        except (OSError, ClusterError) as error:
            why = reason_of(error)
            self.note(study.name, f"{study.spec.run_name(number, repeat)} cannot begin: {why}")
        else:
            self.note(study.name, "")


def _needs_optuna(spec: StudySpec) -> bool:
    return spec.sampler in ("tpe", "gp") or spec.pruner != "none"


def _sampler_of(study: StudyState, runs: Mapping[str, RunState]) -> tuple[OptunaSampler, set[int]]:
    sampler = OptunaSampler(study.spec)
    return sampler, sampler.catch_up(study, runs)


WORKS = Studies
