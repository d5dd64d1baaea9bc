"""The decisions of a run's chief: who trains, when to save, and when the run ends. Pure.

`ChiefState.handle(event, now)` takes what happened (events.py) and returns instructions. It uses no
clock, socket, file or TensorFlow: chief.py sends it events and carries the instructions out. `now`
is the time of any monotonic clock, in seconds.

A chief may be killed at any moment, and another one continues its run. What the next one must know
is in `to_dict`, and is written before a number is given out, so that no number is used twice. Who
trains is not in it, because the run's events say that (workers.py).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

from ....protocol import chief_messages as messages
from ....protocol.objective import Best
from ....protocol.run import RunSpec
from ....protocol.vm_events import (
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMade,
    TrainOrder,
    TrainRecovered,
    TrainSlow,
    TrainStarted,
    TrainUnevaluated,
    TrainUnsaved,
    WorkerJoined,
    WorkerLeft,
)
from ...files.blocks import Index
from ...phases import Phase as TrainingPhase
from ...role import DONE, FAILED
from ...training.batching import Rule
from ...training.reproducibility import fingerprint_difference
from ..server_load import Shares
from .blocks import Lending
from .epochs import Epochs
from .events import (
    BeginPhase,
    Built,
    CallbacksReady,
    Disconnected,
    Emit,
    EndedEpoch,
    Evaluate,
    EvaluationDone,
    EvaluationRequested,
    Exhausted,
    Failed,
    FindPhase,
    Finish,
    Heartbeat,
    Indexed,
    Instruction,
    Joined,
    Leasing,
    Leaving,
    MeasureTaken,
    Noticed,
    Persist,
    PhaseFound,
    Prepared,
    Reading,
    Record,
    Release,
    SaveDone,
    SaveFailed,
    SaveRequested,
    Send,
    ServerLoad,
    Stepping,
    StepSeen,
    StopRequested,
    Tick,
    Trouble,
)
from .progress import Judge, Progress
from .saving import Saving, Why
from .speed_alarm import Slow, SpeedAlarm
from .stall_turns import Turns
from .workers import Batches, Member, Roster

SILENCE = 5.0
"""Time in seconds without a message after which a training worker counts as lost."""
SILENCE_BEFORE_TRAINING = 120.0
"""Time limit of a worker that still imports and builds."""
SILENCE_AT_THE_BARRIER = 2.5
"""Time limit of a worker for which a synchronous step waits; heartbeats come every second."""
REJOIN_WITHIN = 20.0
"""Time in seconds that a restarted chief waits for the workers of its predecessor."""
FINISH_WITHIN = 5.0
"""Time in seconds that workers have to leave once the run has its steps."""
LAST_SAVE_WITHIN = 300.0
"""Time in seconds for which the last checkpoint is tried again, as on a full disk.

The steps since the checkpoint before it are nowhere else.
"""
SAME_ERRORS = 3
"""A run with a single worker fails after this many equal errors, counted over the whole run.

Errors are equal if only numbers differ, because each batch has its own.
"""
_NUMBERS = re.compile(r"\d[\d\s.,-]*")
_SEED_IT = (
    "The cell draws from a source that the run's seed does not reach (secrets, os.urandom, the "
    "clock). Seed what it draws, as in numpy.random.default_rng(0)."
)


class Phase(Enum):
    """The phase of a run; each one ends with the next."""

    PREPARING = "preparing"
    """The chief initialises or restores the variables."""
    TRAINING = "training"
    FINISHING = "finishing"
    """The run has its steps. Workers leave, then the last checkpoint is written and evaluated."""
    ENDED = "ended"


class LastSave(Enum):
    """The progress of the checkpoint that follows a run's last step."""

    NOT_ORDERED = "not ordered"
    """Not yet, or it failed and is tried again."""
    ORDERED = "ordered"
    WRITTEN = "written"


class ChiefState:
    """The state of one run's chief.

    `handle` is the only method that changes it, `succeed` apart. Its parts have modules of their
    own: mini-batches and members (workers.py), leases of records (blocks.py), speed
    (speed_alarm.py), progress and evaluations (progress.py), epochs (epochs.py), checkpoints
    (saving.py) and measures of stalls (stall_turns.py).

    Parameters
    ----------
    spec
        Declaration of the run.
    kept
        What `to_dict` returned before the chief restarted; nothing for a new run.
    now
        Time of any monotonic clock, in seconds.
    roster
        Workers that joined and trained before, from the run's events.
    judge
        Judgement of earlier evaluations, from the run's events.
    turns
        Measures that are left, of a run that measures stalls.
    epochs
        The epochs that are over, from the run's events.
    """

    def __init__(
        self,
        spec: RunSpec,
        kept: Mapping[str, Any],
        now: float,
        roster: Roster,
        judge: Judge | None = None,
        turns: Turns | None = None,
        epochs: Epochs | None = None,
    ) -> None:
        self.spec = spec
        if kept.get("phase", 0) != spec.phase_begin:
            # Mini-batches and data were those of an earlier phase of the training.
            kept = {name: kept[name] for name in ("next_number", "given") if name in kept}
        self.phase = Phase.PREPARING
        self.step = 0
        # Workers:
        self.members = _remembered(roster, now)
        kept_given = {int(number): name for number, name in kept.get("given", {}).items()}
        self._given = {**roster.joined, **kept_given}
        """Names of all workers that ever had a number, by number."""
        after_roster = (number + 1 for number in roster.joined)
        self.next_number = max(int(kept.get("next_number", 0)), *after_roster, 0)
        self._batches = Batches(
            spec.name, spec.batching, spec.workers, Rule.of(spec), kept.get("batches")
        )
        self._lending: Lending | None = None
        self._lending_saved: Mapping[str, Any] | None = kept.get("blocks")
        """Leases at the last checkpoint: a restart or a lost server takes the run back to it."""
        self._alarm = SpeedAlarm(spec.alarm_below, spec.alarm_after, spec.mode == "sync")
        self._shares = Shares()
        self._turns: Turns | None = None
        if spec.stalls:
            self._turns = turns or Turns(spec)
        # Progress, checkpoints and evaluations:
        self._progress = Progress(spec.name)
        self._saving = Saving(spec, now)
        self._judge = judge or Judge(spec)
        self._epochs = epochs or Epochs(spec)
        self._evaluated_epoch: EndedEpoch | None = None
        """The epoch whose end is being evaluated."""
        self._evaluating = False
        self._evaluating_since = 0.0
        self._evaluation_due = False
        """Whether the next checkpoint is evaluated."""
        # The end:
        self._ended_early = ""
        """Why the run ends before its last step, a clause; "" if it does not."""
        self._leave_by = math.inf
        """Time until which the last checkpoint waits for workers to leave.

        Infinite until the run is `FINISHING`.
        """
        self._last_save = LastSave.NOT_ORDERED
        self._last_save_by: float | None = None
        """Until when a failed last checkpoint is tried again."""
        self._stopping = False
        """Whether a stop was requested: the run ends with a checkpoint, to be resumed later."""
        self._failed = False
        self._waiting: list[int] = []
        """Connections of workers that joined between two phases of the training."""
        self._continues = False
        """Whether this process starts again for the next phase of the training."""
        self._troubles: Counter[str] = Counter()
        self._noted = False
        """Whether the note about the order of examples was reported."""
        self._program: Mapping[str, str] = kept.get("program", {})
        """Fingerprint of the program that all processes should execute."""

    def succeed(
        self, roster: Roster, judge: Judge, turns: Turns, epochs: Epochs, now: float
    ) -> None:
        """Continue the run of a chief on another VM, with what its events say.

        Workers that have joined here stay.
        """
        self.members = {**_remembered(roster, now), **self.members}
        self._given = {**roster.joined, **self._given}
        self.next_number = max([self.next_number, *(number + 1 for number in roster.joined)])
        self._judge = judge
        self._epochs = epochs
        if self.spec.stalls:
            self._turns = turns

    # --- what others read ------------------------------------------------------------------------
    @property
    def active(self) -> int:
        """Number of workers that train."""
        return sum(member.active for member in self.members.values())

    @property
    def is_awaited(self) -> bool:
        """Whether the run waits for its evaluation: the last one, or any of a study's trial.

        A trial may be pruned after each evaluation. Workers may wait at the end of an epoch.
        """
        awaited = bool(self.spec.study) or self._epochs.holds
        return self.phase is Phase.FINISHING or awaited

    @property
    def next_mark(self) -> int:
        """Next global step at which something is due: the end, a checkpoint or an evaluation."""
        marks = [self.spec.train_steps]
        if self.spec.checkpoint_steps:
            marks.append(max(self._saving.step, 0) + self.spec.checkpoint_steps)
        if self.spec.eval_steps:
            made = self.step - self.spec.phase_begin
            evaluated = made // self.spec.eval_steps + 1
            marks.append(self.spec.phase_begin + evaluated * self.spec.eval_steps)
        return min([*marks, self.limit])

    @property
    def limit(self) -> int:
        """The global step at which training ends, or waits for callbacks."""
        limit = self._epochs.limit
        if limit is None:
            return self.spec.train_steps
        return min(limit, self.spec.train_steps)

    @property
    def rate(self) -> float:
        """The factor of the learning rate that callbacks have set."""
        return self._epochs.rate

    @property
    def seconds_left(self) -> float:
        """Seconds until the last step, at the last reported speed; infinite before that."""
        speed = self._progress.speed
        if not speed:
            return math.inf
        return (self.spec.train_steps - self.step) / speed

    @property
    def saver(self) -> Member | None:
        """Worker that is writing a checkpoint; None if no worker is."""
        if self._saving.writer is None:
            return None
        return self.members.get(self._saving.writer)

    def live(self, now: float) -> int:
        """Return how many workers a synchronous step waits for: active ones with a heartbeat.

        Workers of a previous chief do not count until they connect.
        """
        return sum(
            now - member.seen_at < SILENCE_AT_THE_BARRIER
            for member in self.members.values()
            if member.active and member.connection is not None
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what a restarted chief must know and the run's events do not say."""
        given = {str(number): name for number, name in self._given.items()}
        kept = {
            "next_number": self.next_number,
            "given": given,
            **self._batches.to_dict(),
            **self._epochs.to_dict(),
        }
        if self._lending_saved:
            kept["blocks"] = self._lending_saved
        if self._program:
            kept["program"] = dict(self._program)
        if self.spec.phase_begin:
            kept["phase"] = self.spec.phase_begin
        return kept

    # --- events ----------------------------------------------------------------------------------
    def handle(self, event: Any, now: float) -> list[Instruction]:
        """Change the state by an event, and return what the chief should do, in order.

        Once the run has ended nothing changes it. Workers that join are then sent away, except
        after a stop or before another phase (`_refuse`).

        Parameters
        ----------
        event
            One of the classes of events.py.
        now
            Time of the event, in seconds of a monotonic clock.

        Raises
        ------
        TypeError
            `event` is not of these classes.
        """
        if self.phase is Phase.ENDED:
            if isinstance(event, Joined):
                return self._refuse(event)
            return []
        match event:
            # From workers, by connection:
            case Joined():
                return self._join(event, now)
            case Stepping():
                return self._first_step(event, now)
            case Heartbeat(connection, line):
                return self._heartbeat(connection, line, now)
            case Noticed(connection):
                return self._notice(connection, now)
            case Exhausted(connection, fits):
                return self._exhausted(connection, fits, now)
            case Reading(connection, note):
                return self._note_order(connection, note, now)
            case Leasing(connection, lease):
                return [
                    *self._update_liveness(connection, now),
                    *self._lend(connection, lease),
                ]
            case MeasureTaken(connection, result):
                return self._measure_taken(connection, result, now)
            case Trouble(connection, reason, fatal):
                return self._trouble(connection, reason, fatal)
            case Leaving(connection, reason):
                return self._leave(self._member_at(connection), reason, now)
            case Disconnected(connection):
                return self._leave(self._member_at(connection), "lost", now)
            # From the chief's own work:
            case Built(program):
                return self._compare_program("the chief", program)
            case Indexed(index):
                self._start_lending(index, now)
                return []
            case Prepared(step, batch, best, numbers):
                started = self._start(step, best, numbers, now)
                return [*started, *self._batches.prepared(batch, self.members.values())]
            case StepSeen(step):
                return self._advance(step, now)
            case SaveDone():
                return self._saved(event, now)
            case SaveFailed(reason):
                return self._save_failed(reason, now)
            case EvaluationDone():
                return self._evaluated(event)
            case CallbacksReady(called):
                return self._begin_epochs(called)
            case PhaseFound(phase):
                return self._phase_found(phase)
            case Failed(reason):
                return self._fail(reason)
            # From the agent or the user:
            case SaveRequested():
                self._saving.requested = True
                return self._save_if_requested()
            case EvaluationRequested():
                return self._evaluate_now()
            case StopRequested():
                return self._stop()
            # From the clock:
            case ServerLoad(name, load):
                self._alarm.add_load(name, load)
                self._shares.add(name, load)
                return []
            case Tick():
                return [*self._tick(now), *self._check_speed(now), *self._measure(now)]
        raise TypeError(f"not an event of the chief: {event!r}")

    def _first_step(self, event: Stepping, now: float) -> list[Instruction]:
        self._progress.add_first_step(event.loss, event.samples)
        member = self._member_at(event.connection)
        process = member.name if member else "a worker"
        if failure := self._compare_program(process, event.program):
            return failure
        return self._update_liveness(event.connection, now, stepping=True, speed=event.speed)

    def _heartbeat(
        self, connection: int, line: Mapping[str, Any] | None, now: float
    ) -> list[Instruction]:
        if line and (member := self._member_at(connection)):
            self._alarm.add_metrics(member.name, line, now)
            member.step = int(line.get("step") or 0)
        instructions = [*self._update_liveness(connection, now), *self._record(line)]
        if self.phase is Phase.ENDED:  # its loss is no longer finite
            return instructions
        member = self._member_at(connection)  # `_update_liveness` may have dismissed it
        resized = self._batches.measured(member, line, self.members.values(), now)
        return [*instructions, *resized]

    def _notice(self, connection: int, now: float) -> list[Instruction]:
        if member := self._member_at(connection):
            member.noticed = True
        return self._update_liveness(connection, now)

    def _exhausted(self, connection: int, fits: int, now: float) -> list[Instruction]:
        instructions = self._update_liveness(connection, now)
        member = self._member_at(connection)
        return [*instructions, *self._batches.exhausted(member, fits, self.members.values())]

    def _note_order(self, connection: int, note: str, now: float) -> list[Instruction]:
        """Report the note about the order of examples: once, because all workers send it."""
        instructions = self._update_liveness(connection, now)
        if not self._noted:
            self._noted = True
            instructions.append(Emit(TrainOrder(run=self.spec.name, reason=note)))
        return instructions

    def _measure_taken(
        self, connection: int, result: messages.Took, now: float
    ) -> list[Instruction]:
        instructions = self._update_liveness(connection, now)
        if self._turns and (member := self._member_at(connection)):
            self._turns.add_result(member.number, member.name, result)
        return [*instructions, *self._measure(now)]

    def _trouble(self, connection: int, reason: str, fatal: bool) -> list[Instruction]:
        """Fail the run if the error would be the same everywhere, or no other worker trains.

        A report of an error is not a sign of life: its process ends after it.
        """
        error = _NUMBERS.sub("#", reason)
        self._troubles[error] += 1
        others_train = any(
            member.active and member.connection != connection for member in self.members.values()
        )
        if fatal or (not others_train and self._troubles[error] >= SAME_ERRORS):
            return self._fail(reason)
        return []

    def _evaluate_now(self) -> list[Instruction]:
        if self.phase is not Phase.TRAINING:
            return []
        self._evaluation_due = True
        return self._save(Why.EVALUATION)

    def _tick(self, now: float) -> list[Instruction]:
        """Take out silent workers, and do what is due by the clock."""
        instructions: list[Instruction] = []
        for member in list(self.members.values()):
            limit = SILENCE if member.active else SILENCE_BEFORE_TRAINING
            if not member.lost and now - member.seen_at >= limit:
                # A process with an open connection may only be frozen, and come back.
                frozen = member.connection is not None
                instructions += self._leave(member, "lost", now, frozen=frozen)
        if self._lending and self.phase is Phase.TRAINING and (data := self._lending.due(now)):
            instructions.append(Emit(data))
        if self._evaluating and self._epochs.give_up(now - self._evaluating_since):
            instructions += self._send_all(self._epochs.proceed)
        return [*instructions, *self._save_when_left(now)]

    # --- workers ---------------------------------------------------------------------------------
    def _join(self, event: Joined, now: float) -> list[Instruction]:
        """Give a worker a number: a new one, or the one that it had before it connected again.

        It is dismissed if the run is full, or if its VM has already started a newer process.
        """
        if self._ending:
            return self._refuse(event)
        claimed = None
        if event.number is not None and self._given.get(event.number) == event.name:
            claimed = event.number
        previous = None
        instructions = list[Instruction]()
        for member in [member for member in self.members.values() if member.name == event.name]:
            if member.number == claimed:
                previous = member
            elif claimed is not None and member.number > claimed:
                # This process was frozen, and its VM has already started another one.
                return [*instructions, _dismiss(event.connection)]
            else:
                # A new process of the same VM: the old one is gone.
                instructions += self._leave(member, "lost", now)
        if previous is not None and not previous.lost:
            previous.connection = event.connection
            previous.seen_at = now
            resent = self._batches.resend(previous)
            return [*instructions, *self._welcome(previous), *resent]
        if previous is not None:
            # It thawed, and joins as a new member under its number. There is no Release, because
            # its process lives: it keeps its session or, if dismissed below, closes it.
            del self.members[previous.number]
        if self._is_full():
            return [*instructions, _dismiss(event.connection)]
        number = self.next_number if claimed is None else claimed
        self.next_number = max(self.next_number, number + 1)
        self._given[number] = event.name
        member = Member(event.name, number, event.connection, now, accelerator=event.accelerator)
        self.members[number] = member
        # On disk first: a restarted chief must not give the same number to another worker.
        return [*instructions, Persist(), *self._welcome(member)]

    def _refuse(self, event: Joined) -> list[Instruction]:
        """Send a worker away that joins at the end of the run.

        A chief that was stopped may have a successor, for example if another parameter server
        moved. Then the worker gets no answer: it connects to the successor, or is stopped as well.
        """
        if self._stopping or self._continues:
            return []
        if self._is_between_phases:
            self._waiting.append(event.connection)
            return []
        if self._failed:
            return [_dismiss(event.connection)]
        return [Send(event.connection, messages.Leave(reason="finished"))]

    def _welcome(self, member: Member) -> list[Instruction]:
        connection = member.connection or 0
        message = messages.Joined(
            number=member.number, active=max(self.active, 1), phase=self.spec.phase_begin
        )
        if self.spec.ends_epochs:
            # Also without a limit: a worker that connects again still has the one before.
            return [Send(connection, message), Send(connection, self._epochs.proceed)]
        return [Send(connection, message)]

    def _is_full(self) -> bool:
        """Return whether the run has as many connected workers as it may have.

        A run with a deadline may have twice as many: new workers join before those that they
        replace leave.
        """
        if not self.spec.max_workers:
            return False
        connected = [
            member
            for member in self.members.values()
            if member.connection is not None and not member.lost and not member.noticed
        ]
        most = self.spec.max_workers
        if self.spec.finish_by:
            most = 2 * most
        return len(connected) >= most

    def _member_at(self, connection: int) -> Member | None:
        for member in self.members.values():
            if member.connection == connection:
                return member
        return None

    def _update_liveness(
        self, connection: int, now: float, stepping: bool = False, speed: float = 0.0
    ) -> list[Instruction]:
        """Note that a worker sent a message, and change its membership if that follows.

        One of four things happens:

        - A connection without a member is dismissed: a newer process has its name, or another
          worker its place. A stopped chief dismisses none, because its successor may keep them.
        - A member that counted as lost was only frozen: it returns or, in a full run, is dismissed.
        - A worker that makes steps and is not active becomes active.
        - Otherwise only the time of its last message changes.

        Parameters
        ----------
        connection
            Connection of the worker.
        now
            Time of the message.
        stepping
            Whether the worker reports its first step.
        speed
            Speed of its accelerator relative to a K80; 0 if it reports none.
        """
        member = self._member_at(connection)
        if member is None:
            if self._stopping or self._is_between_phases:
                return []
            return [_dismiss(connection)]
        member.seen_at = now
        member.speed = speed or member.speed
        if member.lost:
            if self._is_full():
                # Without a Release: its process lives, and closes its own session as it leaves.
                del self.members[member.number]
                return [_dismiss(connection)]
            member.lost = False
            stepping = stepping or member.stepped
        if not stepping or member.active:
            return []
        member.active = True
        member.stepped = True
        self._progress.start(self.step, now)
        joined = Emit(
            WorkerJoined(
                run=self.spec.name, worker=member.name, number=member.number, active=self.active
            )
        )
        return [joined, *self._resize_batches("join"), Persist(), *self._send_active()]

    def _leave(
        self, member: Member | None, reason: str, now: float, frozen: bool = False
    ) -> list[Instruction]:
        """Take a member out.

        A member that may only be `frozen` keeps its number and its session, in case it comes back.
        The session of any other is released on the parameter servers.
        """
        if member is None:
            return []
        was_active = member.active
        member.active = False
        member.lost = frozen
        released = self._take_blocks_back(member)
        if not frozen:
            del self.members[member.number]
            if not self._ending:
                released.append(Release(member.number))
        if not was_active:
            return [*released, *self._save_when_left(now)]
        instructions = [
            self._left(member, reason),
            *released,
            *self._resize_batches("revocation"),
            Persist(),
            *self._send_active(),
        ]
        if self._saving.writer == member.number:
            # What it wrote of the checkpoint is lost with it.
            instructions += self._saving.assign(self._able_to_save())
        return [*instructions, *self._save_when_left(now)]

    def _left(self, member: Member, reason: str) -> Emit:
        left = WorkerLeft(
            run=self.spec.name,
            worker=member.name,
            number=member.number,
            active=self.active,
            reason=reason,
        )
        return Emit(left)

    def _resize_batches(self, reason: str) -> list[Instruction]:
        """Divide the examples among the active workers, but not while all leave at the end."""
        if self._ending:
            return []
        return self._batches.changed(self.members.values(), reason)

    def _send_active(self) -> list[Instruction]:
        """Send all workers how many train: their learning rate may depend on it."""
        return self._send_all(messages.Active(active=max(self.active, 1)))

    def _send_all(self, message: messages.ToWorker) -> list[Instruction]:
        return [
            Send(member.connection, message)
            for member in self.members.values()
            if member.connection is not None
        ]

    # --- records in blocks -----------------------------------------------------------------------
    def _start_lending(self, index: Index, now: float) -> None:
        seed = self.spec.seed
        if seed is None:
            seed = int(1000 * self.spec.declared_at)
        self._lending = Lending(self.spec.name, index, seed, self._lending_saved, now)

    def _lend(self, connection: int, lease: messages.Lease) -> list[Instruction]:
        """Lease blocks to a worker, unless the run ends or the worker was sent away."""
        member = self._member_at(connection)
        if self._lending is None or member is None or self._ending:
            return []
        detour = self._lending.detour(member.name, lease)
        leased = Send(connection, self._lending.grant(member.number, lease))
        if detour is None:
            return [leased]
        return [leased, Emit(detour)]

    def _take_blocks_back(self, member: Member) -> list[Instruction]:
        """Make the blocks of a member that is gone or frozen available to others."""
        if self._lending is None or self._ending:
            return []
        reread = self._lending.release(member.number, member.name)
        if reread is None:
            return []
        return [Emit(reread)]

    # --- progress --------------------------------------------------------------------------------
    def _start(self, step: int, best: Best | None, numbers: int, now: float) -> list[Instruction]:
        """Start training at `step`: the variables are initialised or restored."""
        self.phase = Phase.TRAINING
        self.step = step
        self._saving.restored(step, now)
        self._epochs.start(step, numbers)
        # Steps after the checkpoint are made again; the chief before may have stored their metrics.
        self._epochs.rewind(step)
        instructions: list[Instruction] = [
            Emit(TrainStarted(run=self.spec.name, step=step)),
            *self._judge.start(best),
        ]
        if not step and not self._turns:
            instructions += self._save(Why.FIRST)
        return [*instructions, *self._save_if_requested(), *self._advance(step, now)]

    def _record(self, line: Mapping[str, Any] | None) -> list[Instruction]:
        """Record a line of metrics; fail the run if its loss is no longer finite."""
        if line is None:
            return []
        line = self._epochs.add(line)
        share = self._shares.largest
        if share is not None:
            line = {**line, "server_share": round(share, 3)}
        if self._progress.add_metrics(line):
            return [Record(line)]
        step, worker = self._progress.diverged
        reason = (
            f"the loss is not a number any more since step {step:,}, first on {worker}: "
            "lower learning_rate"
        )
        return [Record(line), *self._fail(reason)]

    def _advance(self, step: int, now: float) -> list[Instruction]:
        """Do what is due at a global step: report progress, save, evaluate, or finish."""
        if self._turns:
            # The steps of measures do not count. The chief reads the step only to notice a lost
            # parameter server, whose variables it then restores.
            return []
        before = self.step
        self.step = step
        if step < before:
            # Another parameter server was lost, and all variables are back at the last checkpoint.
            self._epochs.rewind(step)
            if self._lending:
                self._lending.rewind(self._lending_saved)
        if self.phase is not Phase.TRAINING:
            return []
        instructions: list[Instruction] = [*self._progress.report(step, self.active, now)]
        early = ""
        if step < self.spec.train_steps:
            early = self._epochs.stop or self._judge.verdict
        if step >= self.spec.train_steps or early:
            self._ended_early = early
            self.phase = Phase.FINISHING
            self._leave_by = now + FINISH_WITHIN
            instructions += self._progress.report(step, self.active, now, last=True)
            stop = self._send_all(messages.Stop(again=self._may_continue))
            return [*instructions, *stop, *self._save_when_left(now)]
        if self._epochs.holds:
            return [*instructions, *self._end_epoch(step, now)]
        instructions += self._epochs.due(step, now, self._evaluated_epoch)
        every = self.spec.eval_steps
        begin = self.spec.phase_begin
        if every and (step - begin) // every > (before - begin) // every:
            self._evaluation_due = True
            return [*instructions, *self._save(Why.EVALUATION)]
        if self._saving.due(step, now):
            instructions += self._save(Why.DUE)
        return instructions

    def _begin_epochs(self, called: messages.Called) -> list[Instruction]:
        """Let the workers begin once the callbacks were called."""
        if called.error:
            return self._fail(called.error)
        self._epochs.begin(called)
        return self._send_all(self._epochs.proceed)

    def _end_epoch(self, step: int, now: float) -> list[Instruction]:
        """Save for the end of an epoch that callbacks wait for, or as usual before it."""
        if not self._epochs.reached(step, now):
            if self._saving.due(step, now):
                return self._save(Why.DUE)
            return []
        if self._evaluating or self._saving.why or not self._saving.may_try(now):
            return []
        training = [
            member
            for member in self.members.values()
            if member.active and member.connection is not None and member.step < self.limit
        ]
        if training and not self._epochs.is_late(now):
            return []
        self._evaluation_due = True
        # On disk first: a restarted chief would have no training metrics of the epoch.
        return [Persist(), *self._save(Why.EVALUATION)]

    def _check_speed(self, now: float) -> list[Instruction]:
        """Report that the cluster became slow, or fast again."""
        active = [member.name for member in self.members.values() if member.active]
        disturbed = self._evaluating or self.phase is not Phase.TRAINING
        verdict = self._alarm.check(active, now, disturbed, saving=bool(self._saving.why))
        if verdict is None:
            return []
        values: dict[str, Any] = asdict(verdict)
        for name, value in values.items():
            if isinstance(value, float):
                values[name] = round(value, 1)
        kind = TrainSlow if isinstance(verdict, Slow) else TrainRecovered
        return [Emit(kind(run=self.spec.name, **values))]

    def _measure(self, now: float) -> list[Instruction]:
        """Request the next measure of a run that measures stalls; end the run after the last."""
        if self._turns is None or self.phase is not Phase.TRAINING:
            return []
        able = {
            number: member
            for number, member in self.members.items()
            if member.active and not member.noticed
        }
        takes, measured = self._turns.advance(able, now)
        requests: list[Instruction] = [
            Send(able[number].connection or 0, take) for number, take in takes.items()
        ]
        if failing := self._turns.failing:
            return self._fail(
                f"no worker could complete the measure {failing}; see the logs of the workers"
            )
        if measured is None:
            return requests
        self.step = self._turns.count
        if not self._turns.done:
            return [Emit(measured), *requests]
        self.phase = Phase.ENDED
        finished = TrainFinished(run=self.spec.name, step=self.step)
        return [Emit(measured), *self._send_all(messages.Stop()), Emit(finished), Finish(DONE)]

    # --- checkpoints and evaluations -------------------------------------------------------------
    def _save(self, why: Why) -> list[Instruction]:
        return self._saving.begin(why, self._able_to_save())

    def _able_to_save(self) -> list[Member]:
        """Return the workers that may write a checkpoint.

        Empty at the end, when all workers leave: the chief writes the last one itself.
        """
        if self.phase is not Phase.TRAINING or self._stopping:
            return []
        return [member for member in self.members.values() if member.active and not member.noticed]

    def _save_if_requested(self) -> list[Instruction]:
        """Save if requested.

        A checkpoint in progress lacks the last steps, so the request stays until it is written:
        `_saved` calls this again.
        """
        if self._saving.requested and self.phase is Phase.TRAINING:
            return self._save(Why.ASKED)
        return []

    def _saved(self, event: SaveDone, now: float) -> list[Instruction]:
        """Report a written checkpoint, and do what it was written for.

        A stop ends the run with the first checkpoint that was begun after it. Next comes the end of
        training: a checkpoint that was begun before it is followed by the final one. A checkpoint
        that was requested follows if this one lacks the last steps. The final one, or one that was
        written for an evaluation, is evaluated.
        """
        why, checkpoint = self._saving.done(event, now)
        if why is Why.FINAL:
            self._last_save = LastSave.WRITTEN
        instructions: list[Instruction] = [Emit(checkpoint)]
        if self._lending:
            self._lending_saved = self._lending.to_dict()
            instructions.append(Persist())
        if self._stopping and why not in (Why.STOP, Why.FINAL):
            # It was begun before the stop, and lacks the last steps.
            return [*instructions, *self._save(Why.STOP)]
        if self._stopping:
            self.phase = Phase.ENDED
            return [*instructions, Finish(DONE)]
        if self.phase is Phase.FINISHING and why is not Why.FINAL:
            return [*instructions, *self._save_when_left(now)]
        instructions += self._save_if_requested()
        final = why is Why.FINAL
        if final and event.step < self.spec.train_steps and not self._ended_early:
            reason = (
                "the last steps were lost with a parameter server; the run can be resumed from "
                f"step {event.step}"
            )
            return [*instructions, *self._fail(reason)]
        if final and self._lending:
            instructions.append(Emit(self._lending.summary))
        if final and not self._may_continue:
            instructions.append(Emit(TrainMade(run=self.spec.name, step=event.step)))
        if (final or self._evaluation_due) and not self._evaluating:
            self._evaluating_since = now
            instructions.append(self._evaluate(event.step, last=final))
        return instructions

    def _evaluate(self, step: int, *, last: bool) -> Evaluate:
        """Begin an evaluation, also of the epoch that ends at this step."""
        self._evaluating = True
        self._evaluation_due = False
        self._evaluated_epoch = None
        if last or self._epochs.holds or self.spec.eval_steps == self.spec.epoch_steps:
            self._evaluated_epoch = self._epochs.ending(step, last)
        return Evaluate(step, self._evaluated_epoch, last)

    def _save_failed(self, reason: str, now: float) -> list[Instruction]:
        """Report a checkpoint that could not be written, and try again if the run needs it."""
        failed_before = self._saving.failing
        why = self._saving.failed(now)
        instructions: list[Instruction] = []
        if not failed_before or why is Why.ASKED:
            unsaved = TrainUnsaved(run=self.spec.name, step=self.step, reason=reason)
            instructions.append(Emit(unsaved))
        if self._stopping and why not in (Why.STOP, Why.FINAL):
            return [*instructions, *self._save(Why.STOP)]
        if why is Why.FINAL:
            # Again, as soon as saving may be tried (`_save_when_left`), until `_last_save_by`.
            self._last_save = LastSave.NOT_ORDERED
            self._last_save_by = self._last_save_by or now + LAST_SAVE_WITHIN
        if self._stopping:
            # Events say what was saved before, and the run may be resumed from that.
            self.phase = Phase.ENDED
            return [*instructions, Finish(DONE)]
        if self._last_save_by and now >= self._last_save_by:
            failed = self._fail(f"the last checkpoint could not be written: {reason}")
            return [*instructions, *failed]
        # Training continues, and the next save tries again.
        return [*instructions, *self._save_if_requested(), *self._save_when_left(now)]

    def _evaluated(self, event: EvaluationDone) -> list[Instruction]:
        """Report and judge an evaluation; the last one ends the run."""
        self._evaluating = False
        # A phase begins with the last checkpoint of the phase before, whose program evaluates it.
        # Step 0 has no phase before.
        is_of_phase = event.step > self.spec.phase_begin or not event.step
        if is_of_phase and (failure := self._compare_program("the evaluation", event.program)):
            return failure
        instructions = [*self._report_evaluation(event), *self._report_epoch(event)]
        if event.called and event.called.error:
            return [*instructions, *self._fail(event.called.error)]
        if self._last_save is not LastSave.WRITTEN:
            return instructions
        if event.step != self._saving.step:
            return [*instructions, self._evaluate(self._saving.step, last=True)]
        if self._may_continue:
            return [*instructions, FindPhase(event.step)]
        return [*instructions, *self._finish()]

    def _report_epoch(self, event: EvaluationDone) -> list[Instruction]:
        """Report the epoch that ended with an evaluation, and let its workers continue."""
        ended = self._evaluated_epoch
        self._evaluated_epoch = None
        if ended is None or (event.called and event.called.error):
            return []
        before = self._epochs.before(ended)
        over = self._epochs.over(ended, event.metrics, event.called)
        instructions: list[Instruction] = [*before, over]
        if self._epochs.holds:
            instructions += self._send_all(self._epochs.proceed)
        return instructions

    def _report_evaluation(self, event: EvaluationDone) -> list[Instruction]:
        if event.called and not (event.metrics or event.undefined or event.reason):
            return []  # callbacks were called without validation data
        if event.reason:
            run = self.spec.name
            return [Emit(TrainUnevaluated(run=run, step=event.step, reason=event.reason))]
        evaluated = TrainEvaluated(
            run=self.spec.name,
            step=event.step,
            metrics=dict(event.metrics),
            batches=event.batches,
            examples=event.examples,
            complete=event.complete,
            undefined=tuple(event.undefined),
            of=event.of,
            endless=event.endless,
            drawn=event.drawn,
            among=event.among,
        )
        return [Emit(evaluated), *self._judge.evaluated(evaluated)]

    # --- the end ---------------------------------------------------------------------------------
    @property
    def _may_continue(self) -> bool:
        """Whether another phase may follow the present one."""
        return bool(self.spec.phase_steps)

    @property
    def _is_between_phases(self) -> bool:
        """Whether workers wait until it is known whether another phase follows."""
        return self._may_continue and self.phase is Phase.FINISHING

    def _phase_found(self, phase: TrainingPhase | None) -> list[Instruction]:
        """Begin the next phase, if any: all processes execute the cell up to that call of `fit`."""
        if phase is None:
            return self._finish()
        self.phase = Phase.ENDED
        self._continues = True
        return [BeginPhase(phase)]

    def _finish(self) -> list[Instruction]:
        """End the run, whose steps are made, saved and evaluated."""
        self.phase = Phase.ENDED
        finished = TrainFinished(
            run=self.spec.name,
            step=self._saving.step,
            loss=self._progress.loss,
            checkpoint=self._saving.path,
            reason=self._ended_early,
        )
        leave = [
            Send(connection, messages.Leave(reason="finished")) for connection in self._waiting
        ]
        return [Emit(finished), *leave, Finish(DONE)]

    @property
    def _ending(self) -> bool:
        """Whether no worker should train any more."""
        return self._stopping or self.phase is Phase.FINISHING

    def _save_when_left(self, now: float) -> list[Instruction]:
        """Write the last checkpoint once training is over and no worker steps any more.

        `FINISH_WITHIN` later, workers that are still there count as lost.
        """
        if self.phase is not Phase.FINISHING or self._last_save is not LastSave.NOT_ORDERED:
            return []
        # A checkpoint in progress lacks the last steps: the last one follows it.
        if self._saving.why or not self._saving.may_try(now):
            return []
        if self.active and now < self._leave_by:
            return []
        self._last_save = LastSave.ORDERED
        instructions: list[Instruction] = []
        for member in [member for member in self.members.values() if member.active]:
            member.active = False
            instructions.append(self._left(member, "lost"))
        return [*instructions, *self._save(Why.FINAL)]

    def _stop(self) -> list[Instruction]:
        """End the run early, with a checkpoint of all steps so far.

        There is none where it would hold nothing new: before the first step, once the last
        checkpoint is written, and in a run that measures stalls, whose steps do not count.
        """
        self._stopping = True
        saved = self._last_save is LastSave.WRITTEN
        if self.phase is Phase.PREPARING or saved or self._turns:
            self.phase = Phase.ENDED
            return [Finish(DONE)]
        return self._save(Why.STOP)

    def _fail(self, reason: str) -> list[Instruction]:
        """End the run for good."""
        self.phase = Phase.ENDED
        self._failed = True
        failed = TrainFailed(run=self.spec.name, step=self.step, reason=reason)
        waiting = [_dismiss(connection) for connection in self._waiting]
        return [Emit(failed), *self._send_all(messages.Leave()), *waiting, Finish(FAILED)]

    def _compare_program(self, process: str, program: Mapping[str, str]) -> list[Instruction]:
        """Fail the run if a process executes another program than the processes before it."""
        if difference := fingerprint_difference(self._program, program):
            return self._fail(
                f"{process} does not execute the same program as the other processes: "
                f"{difference}. {_SEED_IT}"
            )
        self._program = {**program, **self._program}
        return []


def _remembered(roster: Roster, now: float) -> dict[int, Member]:
    """Return the workers that trained with the previous chief, and may connect again."""
    # In the future: they count as lost SILENCE seconds later, which is REJOIN_WITHIN from now.
    seen_at = now + REJOIN_WITHIN - SILENCE
    return {
        number: Member(name, number, None, seen_at, active=True, stepped=True)
        for number, name in roster.training.items()
    }


def _dismiss(connection: int) -> Send:
    return Send(connection, messages.Leave())
