"""The steps of a course: what a user does, what happens to VMs, and what VMs report.

A course must not name events or classes of the controller. Where these change, only this module is adapted, and the
recorded texts stay.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

from tests import virtual_time as loop
from tests.simulation.clock import Clock
from transient_magics.controller.decisions.core import (
    BeginDeletion,
    CancelMove,
    DeleteVm,
    FinishMove,
    HandOver,
    ReportReady,
    RequestVm,
    Situation,
    decide,
    places_now,
)
from transient_magics.controller.decisions.ledger import Leases, leases
from transient_magics.controller.decisions.relocation import meant
from transient_magics.controller.record import Recorder
from transient_magics.controller.vms.machines import requested
from transient_magics.controller.works import Tick
from transient_magics.deadlines.decisions import decide as decide_deadline
from transient_magics.deadlines.decisions import workers_text as machine_words
from transient_magics.journal import ClusterState, Event, Journal, RunState, events
from transient_magics.protocol import layout
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.step_parts import MEASURES
from transient_magics.protocol.vm_events import (
    TrainCheckpoint,
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMeasured,
    TrainProgress,
    TrainStarted,
    WorkerJoined,
    WorkerLeft,
)
from transient_magics.spec import WORKER, ClusterSpec, PriceLine, WorkerGroup
from transient_magics.works.bags import events as of_bag
from transient_magics.works.bags.conduct import Bags
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.bags.state import DeclaredBag
from transient_magics.works.dask.conduct import Dasks
from transient_magics.works.dask.events import DaskClosed, DaskCrashed, DaskLeft, DaskServing
from transient_magics.works.dask.spec import DaskSpec
from transient_magics.works.dask.state import DaskState
from transient_magics.works.jobs.conduct import Jobs
from transient_magics.works.jobs.events import JobExited, JobKept, JobStarted
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.jobs.state import JobState
from transient_magics.works.runs.conduct import Runs
from transient_magics.works.runs.deadline_situation import seen
from transient_magics.works.studies.conduct import Studies
from transient_magics.works.studies.spec import StudySpec

BEGAN = 1_767_225_600.0
"""2026-01-01 00:00:00 UTC, when every cluster here is declared."""
ZONE, ELSEWHERE = "us-west1-b", "us-east1-c"
_BOOT_SECONDS, _READY_SECONDS, _DELETE_SECONDS, _NOTICE_SECONDS = 20.0, 60.0, 10.0, 30.0
_LOOK_SECONDS, _REPORT_SECONDS = 10.0, 20.0
_MOST_ROUNDS = 50
_SOURCE = "Google's price list"
_PRICES = {
    "k80": PriceLine("n1-standard-4", 0.256, 0.723, _SOURCE),
    "parameter-server": PriceLine("n1-custom-4-16384", 0.143, 0.143, _SOURCE),
}
_SEAT = {"controller": PriceLine("e2-small", 0.02, 0.02, _SOURCE)}
_STEPS_PER_SECOND = 4.0


class _Journal(Journal):
    """A journal whose events are dated by the virtual clock."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path)
        self._clock = clock

    def stamped(self, event: Event) -> Event:
        return replace(event, seq=self.seq + 1, time=event.time or int(self._clock.now * 1e9))


class _Tasks:
    """Work of the controller that talks with VMs. It is not done here: the script reports what comes of it."""

    def __contains__(self, key: str) -> bool:
        return False

    def do(self, key: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Leave it out."""

    def cancel(self, key: str) -> None:
        """Leave it out."""


class _Stops:
    """The runs of a study, as far as it ends them."""

    def __init__(self, stop: Callable[[str, bool], None]) -> None:
        self.stop_trial = stop


class Steps:
    """One cluster of `workers` K80s, and the work on it.

    `looks` has what a course marked: the name of the mark, its moment (seconds since 1970) and the state then.
    """

    def __init__(
        self, directory: Path, clock: Clock, *, workers: int = 2, controller: str = "local", purpose: str = "training"
    ) -> None:
        self.clock = clock
        self.looks: list[tuple[str, float, ClusterState]] = []
        self._directory = directory
        spec = ClusterSpec(
            name="k80s",
            groups=(WorkerGroup("k80", workers),),
            zones=(ZONE,),
            prices={**_PRICES, **(_SEAT if controller == "cluster" else {})},
            id="0badcafe",
            declared_at=BEGAN,
            max_workers=2 * workers,
            max_seconds=6 * 3600.0,
            idle_seconds=3600.0,
            project="a-project",
            controller=controller,
            purpose=cast(Any, purpose),
        )
        self._journal = _Journal(self.journal, self.clock)
        self._recorder = Recorder(self._journal, ClusterState())
        self._tasks = cast(Any, _Tasks())
        self._runs = Runs(directory, self._recorder, lambda vm: None)
        self._studies = Studies(directory, self._recorder, lambda vm: None, {"run": cast(Any, _Stops(self._stop_run))})
        self._jobs = Jobs(directory, self._recorder, lambda vm: None)
        self._dasks = Dasks(directory, self._recorder, lambda vm: None)
        self._bags = Bags(directory, self._recorder, lambda vm: None, {"dask": self._dasks})
        self._going: set[str] = set()
        self._joined = 0
        self._archive = 0
        self._record(events.ClusterDeclared(spec=spec.to_dict()))
        self.passes(_READY_SECONDS + _LOOK_SECONDS)

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self._directory / layout.JOURNAL

    @property
    def state(self) -> ClusterState:
        """The state that the journal adds up to."""
        return self._recorder.state

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # Time

    def passes(self, seconds: float) -> None:
        """Let time pass, in which the controller acts."""
        end = self.clock.now + seconds
        self._settle()
        while self.clock.now < end:
            self.clock.run(min(self.clock.now + _LOOK_SECONDS, end))
            self._settle()

    def look(self, name: str) -> None:
        """Have what a user sees now in the recorded text."""
        self.looks.append((name, self.clock.now, self.state))

    # What a user does

    def declare_run(self, name: str, steps: int = 2000, **options: Any) -> None:
        """Declare a run. `options` are fields of its declaration; `due` is its deadline in seconds from now."""
        due = options.pop("due", None)
        if due is not None:
            options["finish_by"] = self.clock.now + due
        spec = RunSpec(name, steps, declared_at=self.clock.now, check=False, **options)
        self._write(layout.RUNS, name, layout.RUN, spec.to_dict())
        self._runs.declare(name)
        self._settle()

    def declare_stalls(self, name: str, repeats: int = 3) -> None:
        """Declare a measure of stalls."""
        self.declare_run(name, repeats * len(MEASURES), stalls=repeats, checkpoint_steps=None, checkpoint_seconds=None)

    def declare_study(self, name: str, trials: int) -> None:
        """Declare a study that tries so many values of one parameter."""
        space = parse_space(f"size={','.join(str(2**number) for number in range(trials))}")
        run = RunSpec(name, 400, eval_steps=200, check=False)
        spec = StudySpec(name, run, "max accuracy", space=space, trials=trials, sampler="grid")
        self._write(layout.STUDIES, name, layout.STUDY, spec.to_dict())
        self._studies.declare(name)
        self._settle()

    def declare_job(self, name: str, **options: Any) -> None:
        """Declare a job. `options` are fields of its declaration."""
        spec = JobSpec(name, "python train.py", keep="out", declared_at=self.clock.now, **options)
        self._write(layout.JOBS, name, layout.JOB, spec.to_dict())
        self._jobs.declare(name)
        self._settle()

    def declare_dask(self, name: str, workers: int) -> None:
        """Begin a Dask cluster on VMs."""
        spec = DaskSpec(name, workers, declared_at=self.clock.now)
        self._write(layout.DASKS, name, layout.DASK, spec.to_dict())
        self._dasks.declare(name)
        self._settle()

    def declare_bag(self, name: str, jobs: int) -> None:
        """Declare a bag that wants so many results."""
        space = parse_space("density=0.3:0.9")
        spec = BagSpec(name, space, jobs, spare=0.0, surrogate="none", retries=0, declared_at=self.clock.now)
        self._write(layout.BAGS, name, layout.BAG, spec.to_dict())
        self._bags.declare(name)
        self._settle()

    def stop_run(self, name: str) -> None:
        """Stop a run, which is saved first where it trains."""
        self._stop_run(name, True)
        self._settle()

    def stop_study(self, name: str) -> None:
        """Stop a study."""
        loop.run(self._studies.stop(name))
        self._settle()

    def stop_job(self, name: str) -> None:
        """Stop a job."""
        loop.run(self._jobs.stop(name))
        self._settle()

    def stop_dask(self, name: str) -> None:
        """End a Dask cluster, as its client does."""
        loop.run(self._dasks.stop(name, "its client was closed"))
        self._settle()

    def stop_bag(self, name: str) -> None:
        """Stop a bag."""
        loop.run(self._bags.stop(name))
        self._settle()

    def move(self) -> None:
        """Move the cluster to another zone."""
        spec = self._recorder.spec
        new = meant(self.state, replace(spec, zones=(ELSEWHERE,)), self.clock.now)
        self._record(events.ClusterRelocating(spec=new.to_dict()))

    def delete(self) -> None:
        """Delete the cluster, and wait until it is gone."""
        self._recorder.begin_deletion("asked by the user")
        self.passes(120.0)

    # What happens to VMs

    def take(self, vm: str) -> None:
        """Announce a preemption, which takes the VM 30 seconds later."""
        self._record(events.VmPreemptionNotice(vm=vm))
        self.clock.after(_NOTICE_SECONDS, lambda: self._report(events.VmRevoked(vm=vm, signal="notice")))

    def lose(self, vm: str) -> None:
        """Take a VM without notice."""
        self._record(events.VmRevoked(vm=vm, signal="api"))

    # What the VMs of a run report

    def begin(self, run: str) -> None:
        """Begin a run, or continue it from its last checkpoint, on the workers that it has."""
        step = self.state.of(RunState)[run].checkpoint_step or 0
        self._record(TrainStarted(run=run, step=step))
        self.join(run)

    def join(self, run: str) -> None:
        """Have all workers of a run take part that do not yet."""
        for vm in self.state.serving:
            known = self.state.of(RunState)[run]
            if vm.role == WORKER and vm.state == "ready" and self.state.has(run, vm) and vm.name not in known.workers:
                active = len(known.workers) + 1
                self._record(WorkerJoined(run=run, worker=vm.name, number=self._joined, active=active))
                self._joined += 1

    def leave(self, run: str, vm: str, reason: str = "revoked") -> None:
        """Have a worker take no part in a run any more."""
        known = self.state.of(RunState)[run]
        number, active = known.workers[vm].number, len(known.workers) - 1
        self._record(WorkerLeft(run=run, worker=vm, number=number, active=active, reason=reason))

    def train(self, run: str, seconds: float) -> None:
        """Train for some time, with a report every twenty seconds."""
        for _ in range(round(seconds / _REPORT_SECONDS)):
            self.passes(_REPORT_SECONDS)
            known = self.state.of(RunState)[run]
            speed = _STEPS_PER_SECOND * len(known.workers)
            step = min(int(known.step + _REPORT_SECONDS * speed), known.train_steps)
            active = len(known.workers)
            self._record(
                TrainProgress(run=run, step=step, loss=2.0 / (1 + step), steps_per_second=speed, active=active)
            )

    def checkpoint(self, run: str) -> None:
        """Write a checkpoint of a run."""
        self._checkpoint(self.state.of(RunState)[run])

    def evaluate(self, run: str, accuracy: float) -> None:
        """Evaluate a run."""
        step = self.state.of(RunState)[run].step
        self._record(TrainEvaluated(run=run, step=step, metrics={"accuracy": accuracy}, examples=360))

    def finish(self, run: str) -> None:
        """End a run that has its steps."""
        known = self.state.of(RunState)[run]
        if not known.spec.stalls:
            self._checkpoint(known, known.train_steps)
        for worker in list(self.state.of(RunState)[run].workers):
            self.leave(run, worker, "finished")
        steps, seconds = known.train_steps, self._trained(known)
        self._record(TrainFinished(run=run, step=steps, loss=known.loss, seconds=seconds))

    def fail(self, run: str, reason: str) -> None:
        """End a run that cannot go on."""
        self._record(TrainFailed(run=run, reason=reason, step=self.state.of(RunState)[run].step))

    def foresee(self, run: str, chance: float, seconds: float) -> None:
        """Tell the outlook of a run with a deadline, which ends about so many seconds from now."""
        low = self.clock.now + seconds
        self._record(
            events.DeadlineOutlook(
                run=run, chance=chance, low=low, high=low + 600.0, worth=0.00004, price=0.00002, gpu="k80"
            )
        )

    def measure(self, run: str, repeat: int) -> None:
        """Take each measure of stalls once."""
        parts = {"S0": 0.10, "S1": 0.11, "S2": 0.16, "S3": 0.17, "S4": 0.17, "S5": 0.20, "R4": 0.05, "R5": 0.19}
        for measure in MEASURES:
            self.passes(2.0)
            workers = [*self.state.of(RunState)[run].workers]
            seconds = {vm: parts[measure] * (1 + 0.01 * repeat) + 0.001 * number for number, vm in enumerate(workers)}
            self._record(
                TrainMeasured(
                    run=run,
                    measure=measure,
                    repeat=repeat,
                    seconds=seconds,
                    steps=dict.fromkeys(workers, 20),
                    examples=32,
                    bytes=10**9,
                )
            )

    # What the VMs of a job report

    def run_command(self, job: str) -> None:
        """Run the command of a job, on all VMs of its attempt."""
        known = self.state.of(JobState)[job]
        for rank, _ in enumerate(known.vms):
            kept = known.kept.number if known.kept else 0
            self._record(JobStarted(job=job, attempt=known.attempt, rank=rank, kept=kept))

    def keep(self, job: str) -> None:
        """Bring the folder of a job to this machine."""
        self._archive += 1
        number, at = self._archive, self.clock.now
        attempt = self.state.of(JobState)[job].attempt
        self._record(
            JobKept(
                job=job,
                attempt=attempt,
                number=number,
                files=3,
                bytes=12_000_000,
                digest="0" * 64,
                packed=number,
                saved=at,
            )
        )

    def end_command(self, job: str, code: int = 0, *, noticed: bool = False, tail: str = "") -> None:
        """End the command of a job on all VMs of its attempt. `noticed`: it was told to end."""
        known = self.state.of(JobState)[job]
        for rank, vm in enumerate(known.vms):
            seconds = self.clock.now - known.started.get(vm, self.clock.now)
            taken = noticed and self.state.vms[vm].state == "leaving"
            self._record(
                JobExited(
                    job=job,
                    attempt=known.attempt,
                    rank=rank,
                    code=code,
                    seconds=seconds,
                    noticed=noticed,
                    preempted=taken,
                    tail=tail,
                )
            )

    # What the VMs of a Dask cluster report

    def serve(self, dask: str) -> None:
        """Have the scheduler of a Dask cluster listen."""
        self._record(DaskServing(dask=dask, port=8786, dashboard=8787, versions={"distributed": "2024.8.0"}))

    def serve_bag(self, bag: str) -> None:
        """Have the scheduler beside the driver of a bag listen."""
        self.serve(self.state.of(DeclaredBag)[bag].dasks[-1])

    def leave_dask(self, dask: str, vm: str) -> None:
        """Have a worker leave a Dask cluster after the notice of its VM's preemption."""
        self._record(DaskLeft(dask=dask, worker=vm, seconds=2.5, moved=3, moved_bytes=9_000_000, lost=0, interrupted=1))

    def crash_scheduler(self, dask: str, reason: str) -> None:
        """End the process of a scheduler."""
        self._record(DaskCrashed(dask=dask, vm=self.state.of(DaskState)[dask].vm, reason=reason))

    def end_scheduler(self, dask: str, reason: str) -> None:
        """Have a scheduler end by its own decision."""
        self._record(DaskClosed(dask=dask, reason=reason))

    # What the driver of a bag reports

    def start_bag_job(self, bag: str, job: int, vm: str) -> None:
        """Begin an attempt of a job of a bag; a new job is proposed first."""
        known = self.state.of(DeclaredBag)[bag].state.jobs.get(job)
        if known is None:
            self._record(of_bag.BagProposed(bag=bag, job=job, point={"density": 0.3 + 0.1 * job}))
        attempt = known.attempt + 1 if known else 1
        age = self.clock.now - self.state.vms[vm].running_at
        self._record(of_bag.BagStarted(bag=bag, job=job, attempt=attempt, vm=vm, age=age))

    def return_result(self, bag: str, job: int) -> None:
        """Return the result of a job of a bag."""
        known = self.state.of(DeclaredBag)[bag].state.jobs[job]
        returned, seconds = {"pressure": 1.0 + 0.25 * job}, self.clock.now - known.began_at
        self._record(of_bag.BagResult(bag=bag, job=job, attempt=known.attempt, returned=returned, seconds=seconds))

    def lose_bag_job(self, bag: str, job: int, why: str, reason: str = "") -> None:
        """End an attempt of a job of a bag without a result."""
        attempt = self.state.of(DeclaredBag)[bag].state.jobs[job].attempt
        self._record(of_bag.BagLost(bag=bag, job=job, attempt=attempt, why=cast(Any, why), reason=reason))

    def end_bag(self, bag: str, why: str, reason: str = "") -> None:
        """Have the driver of a bag begin no further job, and end with its scheduler."""
        self._record(of_bag.BagStopped(bag=bag, why=cast(Any, why), reason=reason))
        self.end_scheduler(self.state.of(DeclaredBag)[bag].dasks[-1], "its bag is over")

    # The controller

    def _record(self, event: Event) -> None:
        """Append an event, and let the controller act."""
        self._report(event)
        self._settle()

    def _report(self, event: Event) -> None:
        assert self._recorder.record(event), f"it makes no sense now: {event}"

    def _settle(self) -> None:
        """Let the controller act until nothing is left to do at this moment."""
        for _ in range(_MOST_ROUNDS):
            before = self.state.seq
            self._act()
            if self.state.seq == before:
                return
        raise AssertionError("the controller does not come to rest")

    def _act(self) -> None:
        """Do what the controller does in a round, in its order."""
        state, at = self.state, self.clock.now
        if state.over:
            return
        if state.deadline_run and not state.relocation:
            self._look_at_deadline(state.deadline_run)
        answering = [vm.name for vm in state.living if vm.state == "ready"]
        situation = Situation(at, state, answering=answering, here=state.seat)
        for decision in decide(situation):
            self._carry_out(decision)
        places = places_now(Situation(at, self.state))
        slots = {place.slot: place.accelerator for place in places if place.role == WORKER}
        if self.state.phase != "deleting":
            self._studies.declare_waiting()
        tick = Tick(self._tasks, at, lambda: slots)
        self._studies.tick(tick)
        if self.state.phase != "deleting":
            self._runs.declare_waiting()
            self._lease(slots)
        for works in (self._jobs, self._bags, self._dasks):
            works.tick(tick)
        if self.state.phase == "deleting":
            self._end()

    def _carry_out(self, decision: object) -> None:
        match decision:
            case RequestVm():
                event = requested(self._recorder.spec, decision)
                self._report(event)
                self.clock.after(_BOOT_SECONDS, lambda: self._boot(event))
                self.clock.after(_READY_SECONDS, lambda: self._ready(decision.vm))
            case DeleteVm():
                self._delete(decision.vm, decision.reason)
            case BeginDeletion():
                self._recorder.begin_deletion(decision.reason)
            case ReportReady():
                seconds = self.clock.now - self.state.declared_at
                self._report(events.ClusterReady(workers=decision.workers, seconds=seconds))
            case HandOver():
                self._report(events.ControllerMoved(vm=decision.vm))
            case FinishMove():
                self._arrive(decision)
            case CancelMove():
                self._report(events.ClusterStayed(reason=decision.why))
            case _:
                pass

    def _boot(self, event: events.VmRequested) -> None:
        number = len([vm for vm in self.state.vms.values() if vm.running_at]) + 2
        if self.state.vms[event.vm].living:
            self._report(events.VmRunning(vm=event.vm, address=f"10.128.0.{number}"))

    def _ready(self, vm: str) -> None:
        if self.state.vms[vm].living:
            self._report(events.VmReady(vm=vm))

    def _delete(self, vm: str, reason: str) -> None:
        if vm not in self._going:
            self._going.add(vm)
            self.clock.after(_DELETE_SECONDS, lambda: self._report(events.VmDeleted(vm=vm, reason=reason)))

    def _arrive(self, decision: FinishMove) -> None:
        running = [run for run in self.state.of(RunState).values() if run.phase == "running"]
        for run in running:
            for worker in run.workers.values():
                active = len(self.state.of(RunState)[run.name].workers) - 1
                self._report(
                    WorkerLeft(
                        run=run.name, worker=worker.name, number=worker.number, active=active, reason="told to leave"
                    )
                )
            if decision.save and not run.spec.stalls:
                self._report(self._saved(run, run.step))
        self._report(events.ClusterRelocated(leaves=decision.leaves, transferred=50 * 2**20, dollars=0.006))

    def _lease(self, slots: Mapping[int, str]) -> None:
        state = self.state
        held = leases(state, slots, now=self.clock.now)
        if held != Leases(state.ports, state.leases, state.held_back, state.ahead):
            workers = {str(slot): name for slot, name in sorted(held.workers.items())}
            ahead = {str(slot): name for slot, name in held.ahead.items()}
            self._report(events.ClusterLeased(ports=held.ports, workers=workers, held=held.held_back, ahead=ahead))

    def _look_at_deadline(self, run: RunState) -> None:
        if not self.state.has_begun(run) or run.made:
            return
        sight = seen(self.state, run, self.clock.now)
        verdict = decide_deadline(sight)
        machines = _machines(verdict.workers)
        if machines != _machines(sight.workers):
            self._report(events.DeadlineActed(run=run.name, machines=machines, reason=verdict.reason))
        if verdict.late and run.deadline and not run.deadline.late:
            reason = f"{machine_words(verdict.workers)} make its {sight.steps - sight.unsaved:,} steps no sooner"
            self._report(events.DeadlineLate(run=run.name, ends=verdict.late, reason=reason))

    def _end(self) -> None:
        for run in self.state.of(RunState).values():
            if not run.over:
                self._report(TrainFinished(run=run.name, step=run.step, stopped=True))
        if not self.state.living:
            self._report(events.ClusterDeleted())

    def _stop_run(self, name: str, save: bool) -> None:
        run = self.state.of(RunState)[name]
        if save and run.step and not run.spec.stalls:
            self._report(self._saved(run, run.step))
        seconds = self._trained(run)
        self._report(TrainFinished(run=name, step=run.step, loss=run.loss, seconds=seconds, stopped=True))

    def _checkpoint(self, run: RunState, step: int = 0) -> None:
        self._record(self._saved(run, step or run.step))

    def _saved(self, run: RunState, step: int) -> Event:
        path = f"checkpoints/model.ckpt-{step}"
        return TrainCheckpoint(run=run.name, step=step, path=path, seconds=1.5, bytes=50 * 2**20)

    def _trained(self, run: RunState) -> float:
        return self.clock.now - run.started_at if run.started_at else 0.0

    def _write(self, place: str, name: str, file: str, values: Mapping[str, object]) -> None:
        folder = self._directory / place / name
        folder.mkdir(parents=True)
        (folder / file).write_text(json.dumps(values), encoding="utf-8")


def _machines(workers: Mapping[tuple[str, str], int]) -> events.Machines:
    found = [(gpu, "standard" if terms == "standard" else "spot", count) for (gpu, terms), count in workers.items()]
    return cast(events.Machines, tuple(sorted(each for each in found if each[2])))


def kind_of(event: Event) -> str:
    """The kind of an event, as it is recorded."""
    return event.kind


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """Give a clock by which the monotonic clock of this process goes, and have local time be UTC."""
    clock = Clock(BEGAN)
    with mock.patch.dict(os.environ, TZ="UTC"), mock.patch("time.monotonic", side_effect=lambda: clock.now):
        time.tzset()
        yield clock
    time.tzset()
