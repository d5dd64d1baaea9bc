"""The control loop of one cluster: observe, decide and act, until the cluster is gone.

The loop runs whenever anything changes, and at least once a second. Intentions are recorded before
they are carried out (a VM is in the journal before it is requested from Google), facts afterwards.
A controller that follows a killed one reads the journal and continues.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ClusterError, RemoteError, reason_of, unknown
from ..files import write_atomically
from ..journal import ClusterState, Journal, encode, events, now, read, replay
from ..journal.declared import agree, agree_to_move, agreed, differences, resized, was_governed
from ..kinds import KINDS, load
from ..protocol import jsonl, layout
from ..protocol.agent_commands import DISPATCHER, INPUT
from ..protocol.cluster_commands import (
    Agree,
    ChangeMachine,
    Command,
    Declare,
    Delete,
    GiveUp,
    Logs,
    Ping,
    Relocate,
    Resize,
    Revoke,
    Stop,
)
from ..protocol.machines import NOTICE_SECONDS
from ..protocol.vm_events import (
    AgentLine,
    PreemptionNoticed,
    ProcessGaveUp,
    ProcessUnfit,
    TrafficCounted,
)
from ..spec import PARAMETER_SERVER, WORKER, ClusterSpec, cluster_store
from ..version import VERSION
from .commands import PATIENCE, serve, still_looking
from .decisions.core import (
    BeginDeletion,
    CancelMove,
    DeleteVm,
    FinishMove,
    HandOver,
    ReportReady,
    RequestVm,
    SaveAhead,
    Situation,
    StayHere,
    decide,
    places_now,
)
from .decisions.machine_change import asked
from .decisions.shrink_policy import MEASURES, leaving
from .host import command_socket, controller_vm
from .metering import Metering
from .reclaim import Reclaims, measured
from .record import Recorder
from .relocation import Mover
from .remote_controller.bucket_backup import EVERY_SECONDS, BucketBackup, keep_copies
from .remote_controller.install import RemoteInstall
from .setup import Setup, begin_without_journal
from .tasks import Tasks
from .trust import LEFT_OUT, sift, sifted_until
from .vms import lookup
from .vms.access import Access
from .vms.fleet import Fleet
from .vms.link import Link
from .vms.logs import last_lines
from .vms.lookup import Adviser
from .works import Comes, Never, Tick, Turn, Waits, Works, refuse_when_ending

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_SECOND_PROCESS = {PARAMETER_SERVER: DISPATCHER, WORKER: INPUT}
"""The second process that a run may have on a VM, by the role of the VM."""
_HAND_OVER_RETRY_SECONDS = 60.0


class Controller:
    """The controller of the cluster in `directory`. The caller holds the cluster's lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._declared = ClusterSpec.from_dict(
            json.loads((directory / layout.SPEC).read_text(encoding="utf-8"))
        )
        self._save_requested = False
        self._agreement_saved = False
        """Whether this controller has saved the user's agreement."""
        self._fleet: Fleet | None = None
        self._metering: Metering | None = None
        self._in_charge = asyncio.Event()
        self._waits_for = ""
        """Condition that delays the first request, such as other clusters of a study."""
        self._preempted: set[str] = set()
        """VMs whose preemption was requested; their notices may not have come yet."""
        self._recorder: Recorder
        self._works: dict[str, Works[Any]] = {}
        """The work of each kind, in the order in which the control loop advances it."""
        self._mover: Mover
        self._reclaims: Reclaims
        self._copies: BucketBackup | None = None
        self._tasks: Tasks

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    def _link(self, vm: str) -> Link | None:
        if self._fleet:
            return self._fleet.link(vm)
        return None

    async def run(self) -> None:
        """Control the cluster until it is gone or another controller takes over."""
        path = self._directory / layout.JOURNAL
        with Journal(path) as journal:
            history = read(path)
            unreadable = max(path.read_bytes().count(b"\n") - len(history), 0)
            self._create_works(Recorder(journal, replay(history)))
            if self._state.over:
                return
            if self._state.spec is None:
                self._begin_journal()
            if not controller_vm() and sifted_until(history) < len(history):
                self._sift_journal(agreed(self._directory, history))
            async with serve(command_socket(self._directory), self._command):
                if any(event.kind == "controller.started" for event in history):
                    vms = len(self._state.living)
                    self._recorder.record(
                        events.ControllerRecovered(pid=os.getpid(), vms=vms, unreadable=unreadable)
                    )
                elif await self._wait_for_turn():
                    self._recorder.record(
                        events.ControllerStarted(pid=os.getpid(), version=VERSION)
                    )
                else:
                    self._recorder.record(events.ClusterDeleted())
                    return
                self._waits_for = ""
                self._declare_waiting()
                async with Access(self._declared) as access:
                    if await Setup(self._directory, self._recorder, access).open():
                        adviser = Adviser(self._recorder, access)
                        # The first request already follows the advice.
                        await adviser.keep_asking(now())
                        await self._control_loop(access, adviser)
            journal.sync()

    def _create_works(self, recorder: Recorder) -> None:
        """Create the conduct of each kind of work that the cluster may have."""
        self._recorder = recorder
        for kind in KINDS:
            works = load(kind, "conduct").WORKS
            self._works[kind] = works(self._directory, recorder, self._link, self._works)
        self._mover = Mover(self._directory, recorder, self._works.values())
        self._reclaims = Reclaims(recorder, self._works.values())

    def _begin_journal(self) -> None:
        """Write the first lines of the journal, also if all lines of an earlier one are lost."""
        if was_governed(self._directory):
            spec = agreed(self._directory)
        else:
            spec = self._declared
        self._recorder.record(events.ClusterDeclared(spec=spec.to_dict()))
        begin_without_journal(self._directory, self._recorder, self._works.values())

    async def _wait_for_turn(self) -> bool:
        """Wait for the clusters that come before this one, such as other clusters of a study.

        Returns False if its turn never comes. When it comes, the cluster is declared again: its
        limits are then what the others have left.
        """
        if self._state.vms:
            return True
        while self._state.phase != "deleting":
            match self._turn():
                case None:
                    return True
                case Comes(spec):
                    self._declared = spec
                    write_atomically(
                        self._directory / layout.SPEC, json.dumps(spec.to_dict(), indent=1)
                    )
                    self._recorder.record(events.ClusterDeclared(spec=spec.to_dict()))
                    self._recorder.note("turn", "")
                    return True
                case Never(reason):
                    self._recorder.begin_deletion(reason)
                case Waits(what):
                    self._waits_for = what
                    self._recorder.note("turn", f"{self._declared.name} waits for its turn: {what}")
                    await self._recorder.change(_TICK_SECONDS)
        return False

    def _turn(self) -> Turn | None:
        """Return the turn of the cluster if a kind of work decides it, or None."""
        turns = (works.turn(self._declared, now()) for works in self._works.values())
        return next((turn for turn in turns if turn), None)

    def _sift_journal(self, own: ClusterSpec) -> None:
        """Remove intentions from the journal that a VM wrote: they must not decide what is rented.

        The list of Compute Engine shows which VMs exist. Requests that the VM recorded without
        success are decided again.

        Parameters
        ----------
        own
            The declaration of this machine.
        """
        of_vm = self._state.spec
        found = sift(self._directory, read(self._directory / layout.JOURNAL), own)
        try:
            jsonl.append_lines(self._directory / LEFT_OUT, b"".join(map(encode, found.left_out)))
        except OSError as error:
            # The lines are kept for inspection only.
            log.warning("%s: %s", LEFT_OUT, error)
        written = self._recorder.rewrite(found.kept)
        if found.surprising:
            kinds = ", ".join(found.surprising)
            what = (
                "The controller on its VM wrote what only this machine decides, and it does "
                f"not count: {kinds}"
            )
            self._recorder.note("provenance", what)
        if other := differences(of_vm, own):
            log.warning(
                "the journal has another declaration (%s); this machine's own holds",
                ", ".join(other),
            )
            what = (
                f"{own.name} is taken back as declared on this machine: its VM had changed the "
                "declaration"
            )
            self._recorder.note("declaration", f"{what} ({', '.join(other)})")
        if self._state.spec != own:
            self._recorder.record(events.ClusterResized(spec=own.to_dict()))
        changed = {event.vm for event in found.left_out if isinstance(event, events.VmMachineAsked)}
        for vm in self._state.living:
            if not vm.running_at:
                self._recorder.record(
                    events.VmDeleted(vm=vm.name, reason="requested by another controller")
                )
            if vm.change or vm.name in changed:
                self._recorder.record(
                    events.VmDeleted(vm=vm.name, reason="stopped by another controller")
                )
        for works in self._works.values():
            works.take_back()
        agree_to_move(self._directory, None)
        if written:
            self._recorder.record(events.ClusterTakenBack(left_out=found.counts))

    async def _control_loop(self, access: Access, adviser: Adviser) -> None:
        """Observe, decide and act until the cluster is gone or another controller takes over."""
        async with asyncio.TaskGroup() as group:
            recorder = self._recorder
            self._tasks = Tasks(
                group, recorder.changed.set, lambda key, what: recorder.note(key, what)
            )
            fleet = self._fleet = Fleet(
                self._directory,
                recorder,
                access,
                self._tasks,
                self._agent_line,
                self._reclaims.note_wanted_back,
            )
            for works in self._works.values():
                works.take_charge(fleet, self._tasks)
            self._in_charge.set()
            self._tasks.do("poll", fleet.poll)
            self._tasks.do("write", recorder.keep_writing)
            if controller_vm():
                self._tasks.do("journal", fleet.backup_journal)
                self._tasks.do("copies", partial(self._backup_results, fleet))
            while not self._state.over and self._state.seat == controller_vm():
                recorder.changed.clear()
                if adviser.due(now()):
                    self._tasks.do("advice", partial(adviser.keep_asking, now()))
                recorder.note("clock", lookup.clock_error(access.engine.ahead))
                if not self._directory.exists():
                    self._recorder.begin_deletion("its folder on this machine was removed")
                at = lookup.corrected_now(access.engine.ahead)
                for works in self._works.values():
                    works.demand(at)
                self._reclaims.advance(self._tasks, fleet, at)
                self._save_agreement()
                self._apply(fleet, self._situation(at, access, fleet))
                fleet.update_links()
                fleet.advance_machine_changes()
                self._tick_works(at)
                if self._state.phase == "deleting" and not self._state.living:
                    await self._backup_results(fleet, once=True)
                    await fleet.verify_gone()
                elif not recorder.changed.is_set():
                    await recorder.change(_TICK_SECONDS)
            self._tasks.cancel_all()

    def _save_agreement(self) -> None:
        """Save the declaration with which requests are compared. Tried again after a full disk."""
        if self._agreement_saved:
            return
        try:
            agree(self._directory, self._recorder.spec)
        except OSError as error:
            self._recorder.note("opening", f"The agreement cannot be written: {reason_of(error)}")
        else:
            self._agreement_saved = True
            self._recorder.note("opening", "")

    async def _backup_results(self, fleet: Fleet, *, once: bool = False) -> None:
        """Copy results of work from this VM to the bucket, where they outlive the VM.

        Runs until cancelled, or one time with `once`.
        """
        store = cluster_store(self._declared)
        while controller_vm() and store and fleet.storage:
            self._copies = self._copies or BucketBackup(fleet.storage, store)
            self._recorder.note("copies", await keep_copies(self._copies, self._directory))
            if once:
                return
            await asyncio.sleep(EVERY_SECONDS)

    def _situation(self, at: float, access: Access, fleet: Fleet) -> Situation:
        """Return the state and the observations at the time `at`, in seconds since 1970."""
        unprepared: set[str] = set()
        for works in self._works.values():
            unprepared.update(works.unprepared())
        return Situation(
            at,
            self._state,
            self._save_requested,
            clock_ahead=now() - at,
            answering=fleet.answering,
            silent=fleet.find_silent(),
            here=controller_vm(),
            isolated=access.isolated,
            unprepared=unprepared,
        )

    def _apply(self, fleet: Fleet, situation: Situation) -> None:
        """Carry out the decisions of this moment."""
        decisions = decide(situation)
        deletions = {decision.vm for decision in decisions if isinstance(decision, DeleteVm)}
        requests = [decision for decision in decisions if isinstance(decision, RequestVm)]
        # All requests go together: those of one shape share a call.
        fleet.request(requests, deletions)
        for decision in decisions:
            match decision:
                case DeleteVm():
                    fleet.delete(self._state.vms[decision.vm], decision.reason)
                case BeginDeletion():
                    self._recorder.begin_deletion(decision.reason)
                case SaveAhead():
                    self._save_requested = True
                    for works in self._works.values():
                        works.save_ahead()
                case ReportReady():
                    seconds = now() - self._state.declared_at
                    self._recorder.record(
                        events.ClusterReady(workers=decision.workers, seconds=seconds)
                    )
                case HandOver():
                    self._hand_over(fleet, decision.vm)
                case StayHere():
                    self._recorder.note("seat", decision.why)
                case FinishMove() | CancelMove():
                    self._mover.carry_out(decision, fleet, self._tasks)
                case RequestVm():
                    continue

    def _tick_works(self, at: float) -> None:
        """Begin declared work, and advance the work of each kind."""
        tick = Tick(self._tasks, at, partial(self._worker_slots, at))
        for works in self._works.values():
            if self._may_begin(works.kind):
                works.declare_waiting()
            works.tick(tick)

    def _declare_waiting(self) -> None:
        """Begin work that was declared before this controller started.

        It may decide which VMs are requested first.
        """
        for works in self._works.values():
            if self._may_begin(works.kind):
                works.declare_waiting()

    def _may_begin(self, kind: str) -> bool:
        """Return whether work of this kind may begin now. Most kinds cannot while VMs move."""
        return self._state.phase != "deleting" and (KINDS[kind].moves or not self._state.relocation)

    def _worker_slots(self, now: float) -> dict[int, str]:
        """Return the GPU of each worker's place, by slot."""
        places = places_now(Situation(now, self._state))
        return {place.slot: place.accelerator for place in places if place.role == WORKER}

    def _agent_line(self, vm: str, line: AgentLine) -> None:
        """Handle a line of an agent. Every controller reads all lines of its agents again."""
        state = self._state.vms[vm]
        match line:
            case PreemptionNoticed():
                # A VM that stops for a change of its machine type announces its end in the same
                # way.
                expected = state.living and state.state != "leaving" and not state.change
                # A notice causes the request of another VM, so an on-demand VM cannot give one.
                if expected and state.provisioning_model != "standard":
                    most = max(NOTICE_SECONDS, float(self._recorder.spec.notice_seconds))
                    seconds = min(line.seconds, most)
                    self._recorder.record(
                        events.VmPreemptionNotice(vm=vm, noticed=line.time, seconds=seconds)
                    )
            case TrafficCounted():
                self._metering = self._metering or Metering(self._recorder)
                self._metering.counted(vm, line, now())
            case ProcessGaveUp():
                second = _SECOND_PROCESS.get(state.role)
                if (line.name, line.role) in ((vm, state.role), (second, second)):
                    for works in self._works.values():
                        works.gave_up(state, line)
                else:
                    log.info("%s: %s", vm, line)
            case ProcessUnfit() if (line.name, line.role) == (vm, WORKER):
                if state.living and not state.failure:
                    self._recorder.record(events.VmUnfit(vm=vm, reason=line.reason))
            case _:
                log.info("%s: %s", vm, line)

    def _hand_over(self, fleet: Fleet, vm: str) -> None:
        """Pass control of the cluster to a controller on `vm`.

        The event in the journal passes it on. Work that is in flight here starts again there.
        """
        link = fleet.link(vm)
        if link is None:
            return

        async def hand_over() -> None:
            try:
                await RemoteInstall(await link.connection(), self._declared, vm).check()
            except RemoteError as error:
                self._recorder.note("seat", f"The controller cannot move to {vm} yet: {error}")
                await asyncio.sleep(_HAND_OVER_RETRY_SECONDS)
            else:
                if self._state.spec:
                    agree(self._directory, self._state.spec)
                self._recorder.record(events.ControllerMoved(vm=vm))

        self._tasks.do(f"hand over to {vm}", hand_over)

    # ---------------------------------------------------------------- commands

    async def _command(self, command: Command) -> dict[str, Any]:
        """Carry out a command of a client, and return the answer."""
        if self._state.seat != controller_vm():
            # The client connects again, to the other controller.
            raise ConnectionAbortedError("another machine runs the controller")
        if self._waits_for and not isinstance(command, Ping | Delete):
            what = f"{self._declared.name} has not started: {self._waits_for}"
            raise ClusterError(what, fix=f"Stop the study, or delete {self._declared.name}.")
        match command:
            case Ping():
                return {"pid": os.getpid(), "trouble": self._recorder.trouble}
            case Declare():
                refuse_when_ending(self._state)
                if not self._may_begin(command.kind):
                    self._refuse_when_moving()
                self._works[command.kind].declare(command.name)
            case Stop():
                self._state.refuse_unknown(command.kind, command.name)
                await self._works[command.kind].stop(command.name, command.reason)
            case Agree(run=""):
                self._reclaims.agree(command.proposal)
            case Delete():
                self._recorder.begin_deletion(command.reason)
            case Revoke():
                await self._revoke(command.vm, command.seconds)
            case ChangeMachine():
                await self._change_machine(command.vm, command.machine_type)
            case Resize():
                await self._resize(ClusterSpec.from_dict(command.spec), command.give_up)
            case Relocate():
                refuse_when_ending(self._state)
                target = ClusterSpec.from_dict(command.spec)
                if not command.agreed:
                    return await self._mover.offer(target)
                await self._mover.begin(target)
            case Logs():
                text = await last_lines(
                    self._directory,
                    self._state,
                    self._fleet,
                    command.vm,
                    command.run,
                    command.lines,
                )
                return {"text": text}
            case _:
                for works in self._works.values():
                    if await works.obey(command):
                        return {}
                raise ClusterError(f"Unknown command {type(command).__name__}")
        return {}

    def _refuse_when_moving(self) -> None:
        """Raise ClusterError while the cluster moves to other zones."""
        if self._state.relocation:
            raise ClusterError(
                f"{self._declared.name} is being relocated", fix="Try again when it has moved."
            )

    async def _until_in_charge(self) -> None:
        """Wait until VMs can be changed. Raises ClusterError after some seconds."""
        try:
            async with asyncio.timeout(PATIENCE):
                await self._in_charge.wait()
        except TimeoutError:
            raise still_looking(self._declared.name) from None

    async def _change_machine(self, name: str, machine_type: str) -> None:
        await self._until_in_charge()
        refuse_when_ending(self._state)
        self._refuse_when_moving()
        if event := asked(self._state, name, machine_type, now()):
            self._recorder.record(event)

    async def _revoke(self, name: str, seconds: float) -> None:
        await self._until_in_charge()
        vm = self._state.vms.get(name)
        if vm is None or not vm.living:
            names = [living.name for living in self._state.living if living.role == WORKER]
            raise unknown(
                "VM", name, names, where=self._declared.name, numbered=True, error=ClusterError
            )
        if vm.provisioning_model == "standard":
            raise ClusterError(
                f"{name} is on demand and cannot be revoked",
                fix="Name a Spot or preemptible worker.",
            )
        if not vm.running_at:
            raise ClusterError(f"{name} is not running yet", fix="Try again when it is ready.")
        if vm.change:
            raise ClusterError(
                f"{name} is being changed to {vm.change.machine_type}",
                fix="Try again when it is ready.",
            )
        # A client sends a command again if its answer was lost.
        if vm.state == "leaving" or name in self._preempted:
            return
        assert self._fleet
        self._recorder.record(events.VmPreemptionAsked(vm=name, seconds=seconds))
        await self._fleet.preempt(vm, seconds)
        if seconds <= 0:
            self._preempted.add(name)

    async def _resize(self, target: ClusterSpec, give_up: GiveUp | None) -> None:
        """Record the new size, and which workers leave if there are too many."""
        chosen = give_up or self._recorder.spec.give_up
        policy = None if chosen == "ask" else chosen
        measurements = None
        if policy:
            measurements = await measured(self._works.values(), self._state, policy)
        if give_up and measurements is None:
            what = (
                f"The {give_up} workers of {self._declared.name} are unknown: {MEASURES[give_up]}"
            )
            raise ClusterError(what, where="--give-up", fix="Use youngest or costliest.")
        refuse_when_ending(self._state)
        self._refuse_when_moving()
        assert self._state.spec
        spec = resized(self._state.spec, target, self._state, now())
        gone: tuple[str, ...] = ()
        if policy and measurements is not None:
            gone = leaving(self._state, spec, policy, measurements)
        agree(self._directory, spec)
        self._recorder.record(events.ClusterResized(spec=spec.to_dict(), gives_up=gone))
