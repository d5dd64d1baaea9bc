"""The runs of a cluster: declared, given workers, conducted, moved in the queue, stopped.

The leases of workers (`decisions/ledger`) are decided, recorded and applied at each tick. A run
that has begun is conducted by its own `Training`. A controller that replaces another one creates it
again from the journal.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...catalog import DISK_GB
from ...controller.commands import PATIENCE, still_looking
from ...controller.decisions.ledger import Leases, leases, to_check, to_conduct
from ...controller.decisions.preparation import scaled
from ...controller.record import Recorder
from ...controller.vms.fleet import Fleet
from ...controller.vms.link import Link
from ...controller.works import Tick, Works
from ...errors import ClusterError, NameTakenError, RemoteError, TransientError
from ...journal import ClusterState, RunState, VmState, events, unknown_run
from ...journal.declared import declared_run, is_brought, run_folder
from ...protocol import agent_commands, cluster_commands, layout
from ...protocol.agent_commands import INPUT
from ...protocol.cluster_commands import Agree, Command, Move, Profile
from ...protocol.vm_events import ProcessGaveUp, TrainFailed, TrainFinished
from ...runtime.files.checkpoints import Checkpoints
from ...spec import PARAMETER_SERVER, PREPARATION, WORKER, RunSpec, run_store
from ...spec.cluster import slot_of
from .deadlines import Deadlines
from .tracing import bring
from .training import Training

log = logging.getLogger(__name__)

_LAST_SECONDS = 150.0
"""How long the end of a cluster waits for the last checkpoint and the results of a run."""
_POLL_SECONDS = 0.1
_ASK_SECONDS = 5.0


class Runs(Works[RunSpec]):
    """The runs of a cluster."""

    kind = "run"
    spec_class = RunSpec

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        link: Callable[[str], Link | None],
        others: Mapping[str, Works[Any]] | None = None,
    ) -> None:
        super().__init__(directory, recorder, link, others)
        self._trainings: dict[str, Training] = {}
        self._deadlines = Deadlines(recorder, self.save_run, self.stop_trial)

    def read(self, name: str) -> RunSpec:
        """Return a declaration; without a deadline if it came from a VM. Raises ClusterError."""
        return declared_run(self.directory, unknown_run(name)).spec

    def declared(self, name: str, spec: RunSpec) -> events.WorkDeclared:
        """Return the event by which a run begins."""
        return events.WorkDeclared(work=name, of="run", spec=spec.without_token())

    def failed(self, name: str, reason: str) -> TrainFailed:
        """Return the event by which a run fails."""
        return TrainFailed(run=name, reason=reason)

    def refused(self, name: str, error: ClusterError) -> None:
        """Fail a run whose declaration cannot be read, unless other work has its name."""
        if isinstance(error, NameTakenError):
            self.recorder.note("name", str(error), run=name)
        else:
            self.recorder.record(events.WorkDeclared(work=name, of="run", spec={}))
            self.recorder.record(self.failed(name, str(error)))

    def take_back(self) -> None:
        """Do nothing: the provenance of events decides which runs of a VM's journal count."""

    def tick(self, tick: Tick) -> None:
        """Lease workers to runs, and pass each run that has begun its VMs."""
        assert self.fleet
        if self.state.phase != "deleting":
            self._lease(self.fleet, tick.slots(), tick.at)
            for scaling in scaled(self.state):
                self.recorder.record(
                    events.PreparationScaled(
                        run=scaling.run, slots=scaling.slots, waiting=scaling.waiting
                    )
                )
        state = self.state
        for run in to_conduct(state):
            if training := self._training(self.fleet, run):
                self._give(training, run, state)
        if state.phase == "deleting":
            if state.current_or_next_run:
                tick.tasks.do("end", self.end_all)
        elif (run := to_check(state)) and (training := self._training(self.fleet, run)):
            training.find_server(state.serving)

    def demand(self, at: float) -> None:
        """Decide which workers a run with a deadline has."""
        if not self.state.relocation:
            self._deadlines.tick(at)

    async def obey(self, command: Command) -> bool:
        """Carry out a command about a run."""
        match command:
            case Move():
                self.move(command.run, command.before)
            case cluster_commands.Save():
                await self.ask_chief(agent_commands.Save(run=command.run))
            case cluster_commands.Evaluate():
                await self.ask_chief(agent_commands.Evaluate(run=command.run))
            case Profile():
                self.trace(command.run, command.worker)
            case Agree():
                self._deadlines.agree(command.run, command.proposal)
            case _:
                return False
        return True

    def _give(self, training: Training, run: RunState, state: ClusterState) -> None:
        """Pass a run its VMs."""
        assert state.spec
        port = state.ports.get(run.name, 0)
        mine = [vm for vm in state.living if _serves(state, vm, run.name)]
        serving = [vm for vm in mine if not vm.coming and not vm.left]
        ahead = [
            vm for vm in state.serving if vm.role == WORKER and state.ahead.get(vm.slot) == run.name
        ]
        training.give(serving, state.spec.parameter_servers, port, ahead)
        if state.relocation and run.phase == "running":
            coming = [vm for vm in mine if vm.coming]
            training.stand_by(coming, state.relocation.spec.parameter_servers, port)

    def save_ahead(self) -> None:
        """Save all runs that train, because the cluster ends soon."""
        for name in self._trainings:
            self.save_run(name)

    def save_run(self, name: str) -> None:
        """Save a run, if it trains."""
        if training := self._trainings.get(name):
            self.tasks.do(f"save {name}", training.save)

    def unprepared(self) -> frozenset[str]:
        """Return the VMs at the destination that are not ready for the runs that train."""
        state = self.state
        names = set[str]()
        coming = []
        if state.relocation:
            coming = [vm for vm in state.living if vm.coming and vm.state == "ready"]
        for name, training in self._training_now():
            own = (vm for vm in coming if vm.role != WORKER or state.has(name, vm))
            names.update(training.unprepared(own))
        return frozenset(names)

    async def hand_over(self, leaves: Sequence[str], *, save: bool) -> None:
        """Send what the runs have saved and logged to the VM where their next chief waits.

        With `save`, the workers on the VMs in `leaves` end first, then each run is saved, then its
        parameter servers end. Raises RemoteError, TrainingError or OSError if that fails; the run
        then continues where it is.
        """
        assert self.fleet
        trainings = [training for _, training in self._training_now()]
        if save:
            await self.fleet.stop_work(leaves, WORKER)
            for training in trainings:
                await training.save()
            await self.fleet.stop_work(leaves, PARAMETER_SERVER)
            for training in trainings:
                await training.caught_up()
        first = (
            vm.name
            for vm in self.state.living
            if vm.coming and (vm.role, vm.slot) == (PARAMETER_SERVER, 0)
        )
        if chief := next(first, None):
            for training in trainings:
                await training.send_on(chief)

    async def moving_bytes(self) -> tuple[int, int]:
        """Return the bytes of checkpoints and of data that move with the cluster, of begun runs."""
        saved = 0
        data = 0
        for run in [run for run in self.state.turns if self.state.has_begun(run)]:
            saved += self._checkpoint_bytes(run)
            data += await self._data_bytes(run)
        return saved, data

    def _checkpoint_bytes(self, run: RunState) -> int:
        """Return the bytes of the newest checkpoint here, or the counted size of the model."""
        folder = run_folder(self.directory, run.name) / layout.CHECKPOINTS
        steps = Checkpoints(folder).steps()
        if not steps:
            return run.variable_bytes
        files = folder.glob(f"model.ckpt-{steps[0]}.*")
        return sum(path.stat().st_size for path in files) or run.variable_bytes

    async def _data_bytes(self, run: RunState) -> int:
        """Return the bytes of a run's data on its first parameter server, at most its disk."""
        servers = (vm for vm in self.state.serving if (vm.role, vm.slot) == (PARAMETER_SERVER, 0))
        first = next(servers, None)
        link = self.fleet.link(first.name) if self.fleet and first else None
        if link is None:
            return 0
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                connection = await link.connection(run.name)
                size = await connection.run(f"du -sb {layout.run_on_vm(run.name)}/data | cut -f1")
            return min(max(0, int(size)), DISK_GB * 2**30)
        except (RemoteError, OSError, ValueError) as error:
            log.warning("%s: the size of its data is unknown: %s", run.name, error)
            return 0

    def metrics_files(self) -> Sequence[Path]:
        """Return the metrics files of the runs that train."""
        training = (run for run in self.state.turns if self.state.has_begun(run))
        return [run_folder(self.directory, run.name) / layout.METRICS for run in training]

    def _training_now(self) -> list[tuple[str, Training]]:
        return [
            (name, training)
            for name, training in self._trainings.items()
            if self.state.of(RunState)[name].phase == "running"
        ]

    def gave_up(self, vm: VmState, line: ProcessGaveUp) -> None:
        """Replace a VM on which a run's process keeps ending, or fail the run."""
        if line.role == INPUT:
            reader = f"The process on {vm.name} that reads for all trials there"
            for name, sharing in self._trainings.items():
                own = layout.shared_input(self.state.of(RunState)[name].spec.study) == line.run
                if own and self.state.has(name, vm):
                    sharing.fail(f"{reader} keeps ending: {line.said}")
        if line.role == WORKER and line.time / 1e9 < self._has_since(line.run, vm):
            # The worker was only prepared. It starts again when the run gets the VM.
            return
        training = self._trainings.get(line.run)
        if training and vm.living:
            log.warning("%s: its process keeps ending: %s", vm.name, line.said)
            shared = self.state.has(line.run, vm) and any(
                run.name != line.run for run in self.state.runs_of(vm)
            )
            if shared:
                # Other runs train on this VM, so the VM is not at fault.
                beside = f"Its worker on {vm.name}, beside others that train there,"
                training.fail(f"{beside} keeps ending: {line.said}")
            elif vm.coming and self.fleet:
                # The run still trains on other VMs.
                self.fleet.delete(vm, f"it cannot be prepared: {line.said}")
            elif training.give_up(vm.name, line.role, line.said) and self.fleet:
                self.fleet.delete(vm, f"its worker keeps ending: {line.said}")

    def _has_since(self, name: str, vm: VmState) -> float:
        """Return since when a run has a worker's VM: 0 if unknown, infinity if only prepared."""
        if self.state.ahead.get(vm.slot) == name:
            return math.inf
        places = (
            place
            for place, owner in self.state.leases.items()
            if owner == name and slot_of(place) == vm.slot
        )
        return max((self.state.leased_at.get(place, 0.0) for place in places), default=0.0)

    async def stop(self, name: str, reason: str = "") -> None:
        """Stop a run, with a last checkpoint if possible. Its journal has no `reason`.

        Raises ClusterError if the run trains and this controller has not found its VMs yet.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    run = self._run(name)
                    if run.over or not self.state.has_begun(run) or name in self._trainings:
                        break
                    # A new controller waits until it has the run's VMs. Otherwise the steps since
                    # the last checkpoint would be lost.
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise still_looking(self.directory.name) from None
        if training := self._trainings.get(name):
            self.tasks.do(
                f"stop {name}", lambda: training.stop(lambda: self.state.of(RunState)[name])
            )
        elif not run.over:
            self.recorder.record(TrainFinished(run=name, step=run.step, stopped=True))

    def stop_trial(self, name: str, save: bool = True) -> None:
        """Stop the run of a trial that was pruned, or whose study ended."""
        run = self.state.of(RunState)[name]
        training = self._trainings.get(name)
        if training and not training.ending:
            self.tasks.do(
                f"stop {name}",
                partial(training.stop, lambda: self.state.of(RunState)[name], save=save),
            )
        elif not training and not self.state.has_begun(run):
            self.recorder.record(TrainFinished(run=name, step=run.step, stopped=True))

    async def end_all(self) -> None:
        """Stop all runs, each with a last checkpoint if possible."""
        async with asyncio.TaskGroup() as group:
            for run in self.state.of(RunState).values():
                group.create_task(self._end(run))

    def move(self, name: str, before: str) -> None:
        """Let a waiting run begin before another one (empty: before all). Raises ClusterError."""
        queue = [run.name for run in self.state.queue]
        for moved in filter(None, (name, before)):
            if moved in queue:
                continue
            phase = "is over" if self._run(moved).over else "has begun already"
            fix = "The queue is empty."
            if queue:
                fix = f"The queue has: {', '.join(queue)}."
            raise ClusterError(f"{moved} is not in the queue: it {phase}", fix=fix)
        if name == before:
            raise ClusterError(
                f"{name} cannot start before itself", fix="Name another run in the queue."
            )
        self.recorder.record(events.TrainMoved(run=name, before=before))

    async def ask_chief(self, command: agent_commands.Save | agent_commands.Evaluate) -> None:
        """Save or evaluate a run now. Raises ClusterError or RemoteError."""
        name = command.run
        run = self.state.of(RunState).get(name)
        training = self._trainings.get(name)
        if run is None or training is None or run.phase != "running":
            raise ClusterError(f"{name} is not training", fix="Try again when it trains.")
        await training.ask_chief(command)

    def trace(self, name: str, worker: str) -> None:
        """Trace a step of a worker (empty: the first one). Raises ClusterError.

        An event reports the result.
        """
        run = self._run(name)
        chosen = worker or next(iter(sorted(run.workers)), "")
        link = self.link(chosen) if chosen in run.workers else None
        if link is None:
            what = f"{name} has no worker that is training"
            if worker:
                what = f"{worker} is not training in {name}"
            fix = ""
            if run.workers:
                fix = f"Its workers are: {', '.join(sorted(run.workers))}."
            raise ClusterError(what, fix=fix)

        async def trace() -> None:
            why = ""
            try:
                await bring(
                    await link.connection(name), name, chosen, run_folder(self.directory, name)
                )
            except (TransientError, OSError) as error:
                why = str(error).rstrip(".")
            self.recorder.record(events.TrainTraced(run=name, worker=chosen, reason=why))

        self.tasks.do(f"trace of {name} on {chosen}", trace)

    def _run(self, name: str) -> RunState:
        self.state.refuse_unknown("run", name)
        return self.state.of(RunState)[name]

    async def _end(self, run: RunState) -> None:
        if training := self._trainings.get(run.name):
            await training.stop(lambda: self.state.of(RunState)[run.name])
            await self.tasks.finished(f"run {run.name}", _LAST_SECONDS)
        run = self.state.of(RunState)[run.name]
        if not run.over:
            self.recorder.record(
                TrainFinished(run=run.name, step=run.step, checkpoint=run.checkpoint, stopped=True)
            )

    def _lease(self, fleet: Fleet, slots: Mapping[int, str], at: float) -> None:
        """Record the new leases of workers if they changed, and release workers of other runs.

        A slot that is no longer needed is left alone: its last step ends when its VM is deleted.
        """
        state = self.state
        server = fleet.server
        new = leases(state, slots, server, at)
        if new != Leases(state.ports, state.leases, state.held_back, state.ahead):
            if set(new.ports) - set(state.ports):
                over = [run.name for run in state.of(RunState).values() if run.over]
                self.recorder.forget(over)
            workers = {str(slot): run for slot, run in sorted(new.workers.items())}
            ahead = {str(slot): run for slot, run in new.ahead.items()}
            leased = events.ClusterLeased(
                ports=new.ports, workers=workers, held=new.held_back, ahead=ahead
            )
            self.recorder.record(leased)
        owners: dict[int, set[str]] = {slot: set() for slot in slots}
        for place, name in (*new.workers.items(), *new.ahead.items()):
            owners[slot_of(place)].add(name)
        for vm in self.state.serving:
            if vm.role == WORKER and vm.slot in slots and (link := fleet.link(vm.name)):
                for other in link.runs - owners[vm.slot]:
                    link.release(other)

    def _training(self, fleet: Fleet, run: RunState) -> Training | None:
        """Return the training of a run; None if there can be none, and the run has failed."""
        if run.name not in self._trainings:
            self._conduct(fleet, run)
        return self._trainings.get(run.name)

    def _conduct(self, fleet: Fleet, run: RunState) -> None:
        if refused := fleet.training_refused:
            self.recorder.record(TrainFailed(run=run.name, reason=refused))
            return
        try:
            run = declared_run(self.directory, run)
        except ClusterError as error:
            self.recorder.record(TrainFailed(run=run.name, reason=str(error)))
            return
        folder = run_folder(self.directory, run.name)
        changed = self.recorder.changed.set
        own = not is_brought(self.directory, run.name)
        training = Training(
            run,
            folder,
            self.recorder.record,
            fleet.link,
            changed,
            store=run_store(self.recorder.spec, run.name),
            storage=lambda: fleet.storage,
            mint=fleet.bounded_token,
            note=partial(self.recorder.note, run=run.name),
            own=own,
            checked=lambda: [
                run for run in self.state.of(RunState).values() if run.checked and run.spec.check
            ],
        )
        self._trainings[run.name] = training

        async def conduct() -> None:
            try:
                await training.conduct()
                # Not if this is cancelled: the run then continues under another controller.
                fleet.release(run.name)
            finally:
                self._trainings.pop(run.name, None)

        self.tasks.do(f"run {run.name}", conduct)


def _serves(state: ClusterState, vm: VmState, run: str) -> bool:
    """Return whether a run has a VM, or a slot on it, or shares it with all runs."""
    if vm.role == PREPARATION:
        return state.preparers.get(vm.slot) == run
    return vm.role != WORKER or state.has(run, vm)


WORKS = Runs
