"""A run on the VMs of a simulated cluster: the real chief's state machine, its workers, their network and its disk.

The chief lives on the first parameter server's VM, and the variables with it: killed, it begins from that VM's disk; on
another VM from what was brought home. A message takes its time, none comes through while a VM is cut off, and a
connection may end then or go on. A crash may come between any two things that the chief is told to do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tests.simulation.cloud import NOTICE
from transient_magics.journal import Event
from transient_magics.protocol import chief_messages
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.vm_events import TrainFailed, TrainFinished, WorkerJoined
from transient_magics.runtime.parameter_server.chief import events as e
from transient_magics.runtime.parameter_server.chief.state import ChiefState
from transient_magics.runtime.parameter_server.chief.workers import Roster
from transient_magics.spec import PARAMETER_SERVER, WORKER

if TYPE_CHECKING:
    from tests.simulation.story import Story

TURN, SPEED, EVERY = 2.0, 10.0, 60.0
"""Seconds between two looks of the chief, steps per second of a worker, seconds between checkpoints."""
MOST_LOST = SPEED * 4 * (EVERY + 60.0)
"""Steps that a lost VM may cost: those since the last checkpoint came home, one being written and brought meanwhile."""


@dataclass
class Disk:
    """What the chief's VM keeps."""

    kept: dict[str, Any] = field(default_factory=dict)
    told: list[Event] = field(default_factory=list)
    saved: int = 0


@dataclass
class Worker:
    """A worker's process. `connection` is 0 while it has none."""

    vm: str
    connection: int = 0
    number: int | None = None
    stepping: bool = False


class Training:
    """One run, until it is over."""

    def __init__(self, story: Story, run: str, steps: int) -> None:
        self._story, self._run = story, run
        self._spec = RunSpec(
            run, steps, checkpoint_steps=None, checkpoint_seconds=EVERY, eval_steps=30_000, alarm_below=0.0
        )
        self.chief: ChiefState | None = None
        self._vm, self._process, self._step = "", 0, 0.0
        self._disks: dict[str, Disk] = {}
        self._workers: dict[str, Worker] = {}
        self._connections = 0
        self.home = Disk()
        self._excused_until = 0.0
        self._names: dict[int, str] = {}
        self._ending = 0.0
        self.crashes = 0.0002
        """How often the chief's process dies between two things that it was told to do."""
        self.over = False
        story.clock.after(TURN, self._turn)

    @property
    def step(self) -> int:
        """The global step."""
        return int(self._step)

    @property
    def at_its_end(self) -> bool:
        """Whether all steps are made, so that workers leave."""
        return self._step >= self._spec.train_steps

    @property
    def active(self) -> int:
        """How many train."""
        return self.chief.active if self.chief else 0

    # --- what the controller does ------------------------------------------------------------------------------------
    def conduct(self) -> None:
        """Called in each round of the controller in charge."""
        story, state = self._story, self._story.steering.state
        if self.over:
            return
        if state.phase == "deleting":
            self._ending = self._ending or story.clock.now
            if self.chief and story.clock.now - self._ending < 1:
                self._happened(e.SaveRequested())
            if not self.chief or story.clock.now - self._ending > 60:
                self._end(TrainFinished(run=self._run, step=self.home.saved, stopped=True))
            return
        ready = {vm.name: vm for vm in state.living if vm.state == "ready" and story.steering.reaches(vm.name)}
        server = next((vm.name for vm in ready.values() if (vm.role, vm.slot) == (PARAMETER_SERVER, 0)), "")
        if server and server != self._vm:
            self._move(server)
        for vm in ready.values():
            if vm.role == WORKER and vm.name not in self._workers:
                self._workers[vm.name] = Worker(vm.name)

    def _move(self, vm: str) -> None:
        """The parameter server has another VM: the chief begins there with what was brought home."""
        self._vm = vm
        self._disks[vm] = Disk({}, list(self.home.told), self.home.saved)
        self._stop()
        self._start()

    def _follow(self) -> None:
        """What the chief told, and its last checkpoint, come home."""
        story, disk = self._story, self._disks.get(self._vm)
        if (
            disk is None
            or not story.steering.alive
            or not story.steering.reaches(self._vm)
            or not self._there(self._vm)
        ):
            self._excused_until = story.clock.now + EVERY
            return
        for event in disk.told[len(self.home.told) :]:
            self.home.told.append(event)
            joined = isinstance(event, WorkerJoined)
            if joined and self._names.setdefault(event.number, event.worker) != event.worker:
                self._story.observer.breaks("numbers used again", f"{event.worker} is number {event.number}, too")
            if isinstance(event, (TrainFinished, TrainFailed)):
                self._end(event)
            else:
                story.steering.record(event)
        if disk.saved < self.home.saved:
            story.observer.breaks("steps lost", f"the checkpoint at home is of {self.home.saved}, here of {disk.saved}")
        self.home.saved = max(self.home.saved, disk.saved)
        if self.step - self.home.saved > MOST_LOST and story.clock.now > self._excused_until:
            story.observer.breaks("steps lost", f"{MOST_LOST:.0f} steps and more would go with {self._vm}")

    def _end(self, event: Event) -> None:
        if not self.over:
            self.over = True
            self._stop()
            self._story.steering.record(event)

    # --- processes ---------------------------------------------------------------------------------------------------
    def _there(self, vm: str) -> bool:
        known = self._story.observer.seen.get(vm)
        return bool(known and not known.gone)

    def kill_chief(self) -> None:
        """kill -9 of the parameter server's process; its agent starts it again."""
        if self.chief and not self.over:
            self._story.log("training: chief killed")
            self._stop()
            process = self._process
            again = lambda: self._start() if self._process == process else None  # noqa: E731
            self._story.clock.after(self._story.chance.uniform(1, 8), again)

    def kill_worker(self) -> None:
        """The same of a worker."""
        if self._workers:
            worker = self._workers.pop(self._story.chance.choice(sorted(self._workers)))
            self._story.log(f"training: process on {worker.vm} killed")
            self._say(worker, e.Disconnected(worker.connection))

    def _stop(self) -> None:
        self.chief, self._process = None, self._process + 1
        for worker in self._workers.values():
            worker.connection = 0

    def _start(self) -> None:
        disk = self._disks[self._vm]
        told = [{"kind": each.kind, **each.values} for each in disk.told]
        self._process += 1
        now = self._story.clock.now
        self.chief = ChiefState(self._spec, json.loads(json.dumps(disk.kept)), now, Roster.after(told))
        self._step = float(disk.saved)
        process = self._process
        done = lambda: self._happened(e.Prepared(disk.saved)) if self._process == process else None  # noqa: E731
        self._story.clock.after(self._story.chance.uniform(2, 20), done)

    # --- time passes -------------------------------------------------------------------------------------------------
    def _turn(self) -> None:
        story = self._story
        if self.over or story.steering.state.over:
            return
        story.clock.after(TURN, self._turn)
        if self._vm and not self._there(self._vm):
            self._stop()
        for name in [name for name in self._workers if not self._there(name)]:
            worker = self._workers.pop(name)
            if story.chance.random() < 0.5:  # else nothing is heard of it any more
                self._say(worker, e.Disconnected(worker.connection))
        if self.chief:
            self._step += SPEED * TURN * self.chief.active
            for worker in list(self._workers.values()):
                self._live(worker)
            self._happened(e.StepSeen(min(self.step, self._spec.train_steps)))
            self._happened(e.Tick())
        self._follow()

    def _live(self, worker: Worker) -> None:
        """A worker's part of a turn."""
        story = self._story
        if story.cut_off.get(worker.vm, 0.0) > story.clock.now:
            if worker.connection and story.chance.random() < 0.05:
                worker.connection = 0  # it gave up, and comes again; the chief may not know
            return
        if not worker.connection:
            self._connections += 1
            worker.connection = self._connections
            self._say(worker, e.Joined(worker.connection, worker.vm, number=worker.number))
            if worker.stepping:
                self._say(worker, e.Stepping(worker.connection, 1.0, 8))
            return
        noticed = story.observer.seen[worker.vm].noticed
        if noticed and story.clock.now > noticed + NOTICE - TURN:  # where a notice is shorter, it is gone by then
            self._say(worker, e.Leaving(worker.connection, "revoked"))
            worker.connection = 0
            del self._workers[worker.vm]
            return
        if noticed:
            self._say(worker, e.Noticed(worker.connection))
        if worker.number is not None and not worker.stepping and story.chance.random() < 0.2:
            worker.stepping = True
            self._say(worker, e.Stepping(worker.connection, 1.0, 8))
        else:
            line = {"step": self.step, "loss": 1.0, "steps": 20, "samples": 160, "worker": worker.vm}
            self._say(worker, e.Heartbeat(worker.connection, line if worker.stepping else None))

    def _say(self, worker: Worker, message: Any) -> None:
        process, connection = self._process, worker.connection
        if connection:
            said = lambda: self._happened(message) if self._process == process else None  # noqa: E731
            self._story.clock.after(self._story.chance.uniform(0.001, 0.5), said)

    def _happened(self, event: Any) -> None:
        if self.chief is None:
            return
        process = self._process
        for instruction in self.chief.handle(event, self._story.clock.now):
            if self._process != process:
                return
            if self._story.chance.random() < self.crashes:
                self.kill_chief()
                return
            self._carry_out(instruction)

    def _carry_out(self, instruction: e.Instruction) -> None:
        story, disk, process = self._story, self._disks[self._vm], self._process

        def later(seconds: float, do: Any) -> None:
            story.clock.after(seconds, lambda: do() if self._process == process else None)

        match instruction:
            case e.Emit(event):
                disk.told.append(replace(event, time=int(story.clock.now * 1e9)))
            case e.Send(connection, message):
                self._told(connection, message)
            case e.Save():
                later(story.chance.uniform(1, 8), self._saved)
            case e.Evaluate(step):
                later(5.0, lambda: self._happened(e.EvaluationDone(step, {"accuracy": 0.5})))
            case e.Persist():
                assert self.chief
                disk.kept = json.loads(json.dumps(self.chief.to_dict()))
            case e.Finish():
                story.log(f"training: {self._run} ends at step {self.step}")
            case _:
                pass

    def _saved(self) -> None:
        step = min(self.step, self._spec.train_steps)
        if self._story.chance.random() < 0.03:
            self._excused_until = self._story.clock.now + 2 * EVERY
            self._happened(e.SaveFailed("the disk is full"))
            return
        self._disks[self._vm].saved = step
        self._happened(e.SaveDone(step, f"model.ckpt-{step}", 2.0, 1000))

    def _told(self, connection: int, message: chief_messages.ToWorker) -> None:
        worker = next((each for each in self._workers.values() if each.connection == connection), None)
        if worker is None:
            return
        match message:
            case chief_messages.Joined():
                worker.number = message.number
            case chief_messages.Leave():
                del self._workers[worker.vm]  # its agent starts it anew, as nobody it was before
            case _:
                pass
