"""Studies carried out: what `decisions` decides is written down and done, at every look.

A trial is in the journal before its runs have folders, and these are made from the study's, each
whole or not at all. So a controller that follows on another makes what is missing, and no trial
twice.
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
from ...errors import ClusterError
from ...journal import RunState, StudyState, events
from ...journal.declared import forget_brought, is_brought
from ...protocol import layout
from ...protocol.cluster_commands import Command, ExtendStudy
from ...protocol.names import is_name
from ...protocol.run import Value
from ...protocol.study import StudySpec
from ...spec import ClusterSpec, run_store
from ..runs.conduct import Runs
from . import turn
from .artifacts import make
from .decisions import Ask, Decision, Declare, End, StopRun, Tell, decide
from .sampling import Twin, missing, point, random_point

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
        self._twins: dict[str, Twin] = {}
        self._due: dict[str, set[int]] = {}
        """Trials that the pruner would end, found as a twin was made: they were measured while no
        controller was.
        """

    @property
    def _runs(self) -> Runs:
        return cast("Runs", self.others["run"])

    def turn(self, spec: ClusterSpec, at: float) -> Turn | None:
        """Return whether the clusters of a study that come before this one are done."""
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
        """See that its sampler is installed. Raises ClusterError."""
        if package := missing(spec):
            raise ClusterError(
                f"{name} needs {package}, which is not installed where the controller runs"
            )

    def failed(self, name: str, reason: str) -> events.WorkStopping:
        """Return the event by which a study begins no further trial; it is over after its runs."""
        return events.WorkStopping(work=name, of="study", reason=reason)

    def take_back(self) -> None:
        """After a time in which a VM wrote the journal: put aside what came from it under the names
        of trials.

        A trial's run is made here from its study. It must not find a folder whose code and values
        are a VM's.
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
        """Have so many trials more, once for each `request`. Raises ClusterError where there can be
        none.
        """
        self.state.refuse_unknown("study", name)
        study = self.state.of(StudyState)[name]
        if request and request in study.requests:
            return
        if study.spec.sampler == "none":
            raise ClusterError(f"{name} has one point", fix="Only a study with --over is extended.")
        if study.spec.parts:
            raise ClusterError(
                f"{name} tries each of its points already, on {', '.join(study.spec.parts)}"
            )
        if study.spec.sampler == "grid" and study.wanted >= study.spec.points:
            raise ClusterError(f"{name} tries all {study.spec.points} points of its grid already")
        self.recorder.record(events.StudyExtended(study=name, trials=trials, request=request))

    def tick(self, tick: Tick) -> None:
        """Record and start what is due: trials that are asked for, told or stopped."""
        slots = tick.slots()
        for name in self._in_turn():
            study = self.state.of(StudyState)[name]
            pruned = self._pruned(tick.tasks, study)
            for decision in decide(study, self.state, slots, tick.at, pruned):
                self._carry_out(name, decision, tick.tasks)

    def _carry_out(self, name: str, decision: Decision, tasks: Tasks) -> None:
        match decision:
            case Tell():
                told = events.StudyTold(
                    study=name,
                    trial=decision.trial,
                    state=decision.state,
                    value=decision.value,
                    reason=decision.reason,
                )
                self.recorder.record(told)
            case End():
                self.end(name, decision.reason)
            case Ask():
                self._ask(tasks, name, decision.trial)
            case Declare():
                self._try_to_make(self.state.of(StudyState)[name], decision.trial, decision.repeat)
            case StopRun():
                self._runs.stop_trial(decision.run, decision.save)

    def _in_turn(self) -> list[str]:
        """That with the fewest trials under way asks first."""
        going = [study for study in self.state.of(StudyState).values() if not self._is_done(study)]
        return [
            study.name
            for study in sorted(going, key=lambda study: (len(study.running), study.declared_at))
        ]

    def _is_done(self, study: StudyState) -> bool:
        """Nothing is left of it: a run may go on for a moment after its trial was told."""
        runs = self.state.of(RunState)
        names = (name for trial in study.trials.values() for name in trial.runs)
        return study.over and all(name not in runs or runs[name].over for name in names)

    def _pruned(self, tasks: Tasks, study: StudyState) -> set[int]:
        """The trials that the pruner would end now; none until Optuna is imported, which takes a
        second.
        """
        if not _has_twin(study.spec) or study.stopping or f"ask {study.name}" in tasks:
            return set()
        if study.name not in self._twins:
            tasks.do(f"twin of {study.name}", lambda: self._make_twin(study.name))
            return set()
        return self._twins[study.name].catch_up(study, self.state.of(RunState)) | self._due.pop(
            study.name, set()
        )

    async def _make_twin(self, name: str) -> None:
        state = self.state
        self._twins[name], self._due[name] = await asyncio.to_thread(
            _twin, state.of(StudyState)[name], state.of(RunState)
        )

    def _ask(self, tasks: Tasks, name: str, number: int) -> None:
        params = point(self.state.of(StudyState)[name].spec, number)
        if params is not None:
            self._begin(name, number, params)
        elif twin := self._twins.get(name):
            tasks.do(f"ask {name}", lambda: self._ask_twin(twin, name, number))

    async def _ask_twin(self, twin: Twin, name: str, number: int) -> None:
        try:
            params = await asyncio.to_thread(twin.propose)
        except (
            ArithmeticError,
            AssertionError,
            RuntimeError,
            ValueError,
        ) as error:  # of a sampler's numerics
            log.warning(
                "%s: trial %d is drawn, for its sampler has no point for it: %r",
                name,
                number,
                error,
            )
            self._twins.pop(name, None)  # it has half a trial
            spec = self.state.of(StudyState)[name].spec
            params = random_point(spec.dimensions, spec.seed, number)
        study = self.state.of(StudyState)[name]
        if study.stopping or len(study.trials) != number:
            self._twins.pop(name, None)  # it has a trial that the journal has not
        else:
            self._begin(name, number, params)

    def _begin(self, name: str, number: int, params: Mapping[str, Value]) -> None:
        runs = self.state.of(StudyState)[name].spec.run_names(number)
        self.recorder.record(events.StudyAsked(study=name, trial=number, params=params, runs=runs))

    def _try_to_make(self, study: StudyState, number: int, repeat: int) -> None:
        """What stands in the way, as a full disk, is told, and tried again at the next look."""
        try:
            store = run_store(self.recorder.spec, study.spec.run_name(number, repeat))
            make(self.directory, study.name, number, repeat, study.trials[number].params, store)
        except (OSError, ClusterError) as error:
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            else:
                why = str(error)
            what = f"{study.spec.run_name(number, repeat)} cannot begin: {why}"
            self.note(study.name, what)
        else:
            self.note(study.name, "")


def _has_twin(spec: StudySpec) -> bool:
    return spec.sampler in ("tpe", "gp") or spec.pruner != "none"


def _twin(study: StudyState, runs: Mapping[str, RunState]) -> tuple[Twin, set[int]]:
    twin = Twin(study.spec)
    return twin, twin.catch_up(study, runs)


WORKS = Studies
