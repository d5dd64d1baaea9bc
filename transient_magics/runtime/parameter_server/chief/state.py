"""What the chief decides: who is in, under which number, when to save, and when a run has ended.

A pure state machine. `handle(event, now)` takes what happened and returns what is to be done; no
clock, socket, file or TensorFlow in here. The chief (chief.py) is its edge. `now` is any monotonic
clock's seconds. What must survive a restart of the chief is in `to_dict` and written before a
number is given out, so that no number is ever used twice. Who trains is not in there: the run's
events say it (workers.py).
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
from ....protocol.measures.objective import Best
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
from ...role import DONE, FAILED
from ...training.batching import Rule
from ...training.reproducibility import fingerprint_difference
from ..server_load import Shares
from .blocks import Lending
from .events import (
    Built,
    Disconnected,
    Emit,
    Evaluate,
    EvaluationAsked,
    EvaluationDone,
    Exhausted,
    Failed,
    Finish,
    Heard,
    Indexed,
    Instruction,
    Joined,
    Leasing,
    Leaving,
    Measured,
    Noticed,
    Persist,
    Prepared,
    Reading,
    Record,
    Release,
    SaveAsked,
    SaveDone,
    SaveFailed,
    ServerLoad,
    Stepping,
    StepSeen,
    StopAsked,
    Tell,
    Tick,
    Trouble,
)
from .progress import Judge, Progress
from .saving import Saving, Why
from .speed_alarm import Slow, SpeedAlarm
from .stall_turns import Turns
from .workers import Batches, Member, Roster

SILENCE = 5.0
"""Seconds without a word after which a training worker counts as lost."""
SILENCE_BEFORE_TRAINING = 120.0
"""The same for one that is still importing and building."""
SILENCE_AT_THE_BARRIER = 2.5
"""The same for one that the others wait for at a synchronous step; a sign of life comes every
second.
"""
REJOIN_WITHIN = 20.0
"""Seconds that a restarted chief waits for the workers it knew."""
FINISH_WITHIN = 5.0
"""Seconds within which workers end when the run has its steps."""
LAST_SAVE_WITHIN = 300.0
"""Seconds for which the last checkpoint is tried again, as on a disk that is full: what was learnt
is in it alone.
"""
SAME_ERRORS = 3
"""How often an error ends a run that nobody else trains; with other numbers it is the same: each
batch has its own.
"""
_NUMBERS = re.compile(r"\d[\d\s.,-]*")
_LEAVE = messages.Leave()
_SEED_IT = (
    "The cell draws from a source that the run's seed does not reach (secrets, os.urandom, the clock). "
    "Seed what it draws, as in numpy.random.default_rng(0)."
)


class Phase(Enum):
    """Where a run is."""

    PREPARING = "preparing"
    TRAINING = "training"
    FINISHING = "finishing"
    ENDED = "ended"


class ChiefState:
    """The chief of one run."""

    def __init__(
        self,
        spec: RunSpec,
        kept: Mapping[str, Any],
        now: float,
        roster: Roster,
        judge: Judge | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`kept`: what `to_dict` gave, nothing where the run begins; `roster`: who trained when it
        was written; `judge`: what is thought of its evaluations so far; `turns`: of a run that
        measures stalls, those to come.
        """
        self.spec = spec
        self.phase = Phase.PREPARING
        self.members = _remembered(roster, now)
        kept_given = {int(number): name for number, name in kept.get("given", {}).items()}
        self._given = {**roster.joined, **kept_given}
        self.next_number = max(
            [int(kept.get("next_number", 0)), *(number + 1 for number in roster.joined)]
        )
        self.step = 0
        self._batches = Batches(
            spec.name, spec.batching, spec.workers, Rule.of(spec), kept.get("batches")
        )
        self._lending: Lending | None = None
        self._lending_saved: Mapping[str, Any] | None = kept.get("blocks")
        self._alarm = SpeedAlarm(spec.alarm_below, spec.alarm_after, spec.mode == "sync")
        self._shares = Shares()
        self._progress = Progress(spec.name)
        self._saving = Saving(spec, now)
        self._judge = judge or Judge(spec)
        self._ended_early = ""
        if spec.stalls:
            self._turns = turns or Turns(spec)
        else:
            self._turns = None
        self._evaluating = False
        self._evaluation_due = False
        self._finish_by: float | None = None
        self._last_by: float | None = None
        self._stopping = self._noted = False
        self._troubles: Counter[str] = Counter()
        self._program: Mapping[str, str] = kept.get("program", {})

    def succeed(self, roster: Roster, judge: Judge, turns: Turns, now: float) -> None:
        """Go on in the place of a chief elsewhere, as one that is made with these would, beside who
        has joined here.
        """
        self.members = {**_remembered(roster, now), **self.members}
        self._given = {**roster.joined, **self._given}
        self.next_number = max([self.next_number, *(number + 1 for number in roster.joined)])
        self._judge = judge
        self._turns = turns if self.spec.stalls else None

    @property
    def active(self) -> int:
        """How many workers train."""
        return sum(member.active for member in self.members.values())

    @property
    def _ending(self) -> bool:
        """Nobody is to train any more."""
        return self._stopping or self.phase is Phase.FINISHING

    @property
    def _written(self) -> bool:
        """The last checkpoint is there; what is left is to evaluate it."""
        return self.phase is Phase.FINISHING and self._finish_by is None and not self._saving.why

    @property
    def is_awaited(self) -> bool:
        """Whether its evaluations are waited for: that which ends the run, and each of a trial,
        which may prune it.
        """
        return self.phase is Phase.FINISHING or bool(self.spec.study)

    @property
    def next_mark(self) -> int:
        """The global step at which something is due next: the end, a checkpoint or an evaluation."""
        marks = [self.spec.train_steps]
        if self.spec.checkpoint_steps:
            marks.append(max(self._saving.step, 0) + self.spec.checkpoint_steps)
        if self.spec.eval_steps:
            marks.append((self.step // self.spec.eval_steps + 1) * self.spec.eval_steps)
        return min(marks)

    @property
    def seconds_left(self) -> float:
        """Until the last step, at the speed that was told last."""
        speed = self._progress.speed
        if speed:
            return (self.spec.train_steps - self.step) / speed
        return math.inf

    @property
    def saver(self) -> Member | None:
        """The worker that writes a checkpoint just now; None while nobody does, or the chief
        itself.
        """
        if self._saving.writer is None:
            return None
        return self.members.get(self._saving.writer)

    def live(self, now: float) -> int:
        """How many workers a synchronous step waits for: those that train and can be heard.

        A restarted chief does not wait for those that it only remembers.
        """
        connected = [
            member
            for member in self.members.values()
            if member.active and member.connection is not None
        ]
        return sum(now - member.heard < SILENCE_AT_THE_BARRIER for member in connected)

    def to_dict(self) -> dict[str, Any]:
        """What a restarted chief must know."""
        given = {str(number): name for number, name in self._given.items()}
        if self._lending_saved:
            lent = {"blocks": self._lending_saved}
        else:
            lent = {}
        if self._program:
            program = {"program": dict(self._program)}
        else:
            program = {}
        return {
            "next_number": self.next_number,
            "given": given,
            **self._batches.to_dict(),
            **lent,
            **program,
        }

    def handle(self, event: Any, now: float) -> list[Instruction]:
        """What follows from `event`."""
        if self.phase is Phase.ENDED:
            if isinstance(event, Joined):
                return self._refuse(event)
            return []
        match event:
            case Joined():
                return self._join(event, now)
            case Stepping(connection, loss, samples, speed, program):
                self._progress.stepped(loss, samples)
                member = self._of(connection)
                if wrong := self._compare(member.name if member else "a worker", program):
                    return wrong
                return self._heard(connection, now, stepping=True, speed=speed)
            case Built(program):
                return self._compare("the chief", program)
            case Heard(connection, line):
                if line and (member := self._of(connection)):
                    self._alarm.heard(member.name, line, now)
                done = [*self._heard(connection, now), *self._metrics(line)]
                return [
                    *done,
                    *self._batches.measured(self._of(connection), line, self.members.values(), now),
                ]
            case Exhausted(connection, fits):
                heard = self._heard(connection, now)
                return [
                    *heard,
                    *self._batches.exhausted(self._of(connection), fits, self.members.values()),
                ]
            case Measured(connection, told):
                heard = self._heard(connection, now)
                if self._turns and (member := self._of(connection)):
                    self._turns.took(member.number, member.name, told)
                return [*heard, *self._measure(now)]
            case Noticed(connection):
                if member := self._of(connection):
                    member.noticed = True
                return self._heard(connection, now)
            case Reading(connection, note):
                if self._noted:
                    order = []
                else:
                    order = [Emit(TrainOrder(run=self.spec.name, reason=note))]
                self._noted = True
                return [*self._heard(connection, now), *order]
            case Leaving(connection, reason):
                return self._leave(self._of(connection), reason, now)
            case Disconnected(connection):
                return self._leave(self._of(connection), "lost", now)
            case Trouble(connection, reason, fatal):
                self._troubles[alike := _NUMBERS.sub("#", reason)] += 1
                alone = not any(
                    member.active and member.connection != connection
                    for member in self.members.values()
                )
                if fatal or (alone and self._troubles[alike] >= SAME_ERRORS):
                    return self._fail(reason)
                return []
            case Indexed(index):
                if self.spec.seed is not None:
                    seed = self.spec.seed
                else:
                    seed = int(1000 * self.spec.declared_at)
                self._lending = Lending(self.spec.name, index, seed, self._lending_saved, now)
                return []
            case Leasing(connection, lease):
                return [*self._heard(connection, now), *self._lend(connection, lease)]
            case Prepared(step, batch, best):
                return [
                    *self._prepared(step, best, now),
                    *self._batches.prepared(batch, self.members.values()),
                ]
            case StepSeen(step):
                return self._seen(step, now)
            case SaveAsked():
                self._saving.asked = True
                return self._save_as_asked()
            case EvaluationAsked() if self.phase is Phase.TRAINING:
                self._evaluation_due = True
                return self._save(Why.EVALUATION)
            case EvaluationAsked():
                return []
            case StopAsked():
                return self._stop()
            case SaveDone():
                return self._saved(event, now)
            case SaveFailed(reason):
                return self._save_failed(reason, now)
            case EvaluationDone():
                return self._evaluated(event)
            case Failed(reason):
                return self._fail(reason)
            case ServerLoad(name, load):
                self._alarm.served(name, load)
                self._shares.heard(name, load)
                return []
            case Tick():
                return [*self._tick(now), *self._look_at_speed(now), *self._measure(now)]
        raise TypeError(f"not an event of the chief: {event!r}")

    # --- who is in ---------------------------------------------------------------------------------------------------
    def _join(self, event: Joined, now: float) -> list[Instruction]:
        if self._ending:
            return self._refuse(event)
        if event.number is not None and self._given.get(event.number) == event.name:
            claimed = event.number
        else:
            claimed = None
        known = None
        done = list[Instruction]()
        for other in [member for member in self.members.values() if member.name == event.name]:
            if other.number == claimed:
                known = other
            elif (
                claimed is not None and other.number > claimed
            ):  # it was frozen, and its successor is there already
                return [_go(event.connection)]
            else:  # a new process of the same VM: the old one is no more
                done += self._leave(other, "lost", now)
        if known is not None and not known.lost:
            known.connection = event.connection
            known.heard = now
            return [*done, self._welcome(known), *self._batches.again(known)]
        if known is not None:
            del self.members[known.number]
        if self._full():
            return [*done, _go(event.connection)]
        number = self.next_number if claimed is None else claimed
        self.next_number = max(self.next_number, number + 1)
        self._given[number] = event.name
        member = Member(event.name, number, event.connection, now, accelerator=event.accelerator)
        self.members[number] = member
        return [*done, Persist(), self._welcome(member)]

    def _refuse(self, event: Joined) -> list[Instruction]:
        """Nobody trains here any more.

        A chief that is told to stop may have a successor, as where another parameter server has
        moved: who joins is not told to leave for good, but waits for that one, or to be stopped as
        well.
        """
        if self._stopping:
            return []
        return [Tell(event.connection, messages.Leave(reason="finished"))]

    def _welcome(self, member: Member) -> Instruction:
        return Tell(
            member.connection or 0,
            messages.Joined(number=member.number, active=max(self.active, 1)),
        )

    def _full(self) -> bool:
        staying = [
            member for member in self.members.values() if not member.lost and not member.noticed
        ]
        present = sum(member.connection is not None for member in staying)
        turns = 2 if self.spec.finish_by else 1  # those that take over from others join beside them
        return bool(self.spec.max_workers) and present >= turns * self.spec.max_workers

    def _of(self, connection: int) -> Member | None:
        return next(
            (member for member in self.members.values() if member.connection == connection), None
        )

    def _heard(
        self, connection: int, now: float, stepping: bool = False, speed: float = 0.0
    ) -> list[Instruction]:
        member = self._of(connection)
        if member is None:  # another process has taken its name, or its place
            if self._stopping:
                return []
            return [_go(connection)]
        member.heard = now
        member.speed = speed or member.speed
        if member.lost:  # it was frozen, and is back
            if self._full():
                del self.members[member.number]
                return [_go(connection)]
            member.lost = False
            stepping = stepping or member.stepped
        if not stepping or member.active:
            return []
        member.active = member.stepped = True
        self._progress.begin(self.step, now)
        joined = self._joined(member)
        return [joined, *self._rebatch("join"), Persist(), *self._tell_active()]

    def _leave(
        self, member: Member | None, reason: str, now: float, silent: bool = False
    ) -> list[Instruction]:
        """Take a member out; one that is only silent may go on with its session when it thaws."""
        if member is None:
            return []
        was_active = member.active
        member.active = False
        member.lost = silent
        released = self._take_back(member)
        if not silent:
            del self.members[member.number]
            released += [] if self._ending else [Release(member.number)]
        if not was_active:
            return [*released, *self._all_left(now)]
        left = self._left(member, reason)
        done = [left, *released, *self._rebatch("revocation"), Persist(), *self._tell_active()]
        if self._saving.writer == member.number:
            done += self._saving.order(self._able_to_save())
        return [*done, *self._all_left(now)]

    def _lend(self, connection: int, lease: messages.Lease) -> list[Instruction]:
        """Blocks for a worker; not when nobody needs any more, nor for one that was told to go."""
        member = self._of(connection)
        if self._lending is None or member is None or self._ending:
            return []
        detour = self._lending.detour(member.name, lease)
        return [
            Tell(connection, self._lending.asked(member.number, lease)),
            *([Emit(detour)] if detour else []),
        ]

    def _take_back(self, member: Member) -> list[Instruction]:
        """Lease the blocks of a member that is gone, or silent, to others."""
        if self._lending and not self._ending:
            told = self._lending.lost(member.number, member.name)
        else:
            told = None
        if told:
            return [Emit(told)]
        return []

    def _rebatch(self, reason: str) -> list[Instruction]:
        """Divide the examples anew among those who train; not while everybody leaves because it is
        over.
        """
        if self._ending:
            return []
        return self._batches.changed(self.members.values(), reason)

    def _joined(self, member: Member) -> Emit:
        who = {"worker": member.name, "number": member.number}
        return Emit(WorkerJoined(run=self.spec.name, active=self.active, **who))

    def _left(self, member: Member, reason: str) -> Emit:
        who = {"worker": member.name, "number": member.number}
        return Emit(WorkerLeft(run=self.spec.name, active=self.active, reason=reason, **who))

    def _tell_active(self) -> list[Instruction]:
        return self._tell_all(messages.Active(active=max(self.active, 1)))

    def _tell_all(self, message: messages.ToWorker) -> list[Instruction]:
        return [
            Tell(member.connection, message)
            for member in self.members.values()
            if member.connection is not None
        ]

    # --- how far it is -----------------------------------------------------------------------------------------------
    def _metrics(self, line: Mapping[str, Any] | None) -> list[Instruction]:
        if line is None:
            return []
        if (share := self._shares.largest) is not None:
            line = {**line, "server_share": round(share, 3)}
        if self._progress.measured(line):
            return [Record(line)]
        step, worker = self._progress.diverged
        reason = f"the loss is not a number any more since step {step:,}, first on {worker}: lower learning_rate"
        return [Record(line), *self._fail(reason)]

    def _prepared(self, step: int, best: Best | None, now: float) -> list[Instruction]:
        self.phase = Phase.TRAINING
        self.step = step
        self._saving.restored(step, now)
        started = Emit(TrainStarted(run=self.spec.name, step=step))
        if step or self._turns:
            first = []
        else:
            first = self._save(Why.FIRST)
        return [
            started,
            *self._judge.begins(best),
            *first,
            *self._save_as_asked(),
            *self._seen(step, now),
        ]

    def _measure(self, now: float) -> list[Instruction]:
        """The next turn of a run that measures stalls, and its end."""
        if self._turns is None or self.phase is not Phase.TRAINING:
            return []
        able = {
            number: member
            for number, member in self.members.items()
            if member.active and not member.noticed
        }
        takes, measured = self._turns.look(able, now)
        told: list[Instruction] = [
            Tell(able[number].connection or 0, take) for number, take in takes.items()
        ]
        if self._turns.in_vain:
            return self._fail(
                f"no worker could take the measure {self._turns.in_vain}; their logs say why"
            )
        if measured is None:
            return told
        self.step = self._turns.made
        if not self._turns.over:
            return [Emit(measured), *told]
        self.phase = Phase.ENDED
        finished = TrainFinished(run=self.spec.name, step=self.step)
        return [Emit(measured), *self._tell_all(messages.Stop()), Emit(finished), Finish(DONE)]

    def _seen(self, step: int, now: float) -> list[Instruction]:
        if self._turns:  # its steps are made to be measured; the chief looks because a lost server's values go missing
            return []
        before = self.step
        self.step = step
        if (
            step < before and self._lending
        ):  # another parameter server was lost, and all are as they were saved last
            self._lending.rewind(self._lending_saved)
        if self.phase is not Phase.TRAINING:
            return []
        done: list[Instruction] = [*self._progress.tell(step, self.active, now)]
        early = self._judge.verdict if step < self.spec.train_steps else ""
        if step >= self.spec.train_steps or early:
            self._ended_early = early
            self.phase = Phase.FINISHING
            self._finish_by = now + FINISH_WITHIN
            done += self._progress.tell(step, self.active, now, last=True)
            return [*done, *self._tell_all(messages.Stop()), *self._all_left(now)]
        every = self.spec.eval_steps
        if every and step // every > before // every:
            self._evaluation_due = True
            return [*done, *self._save(Why.EVALUATION)]
        return [*done, *(self._save(Why.DUE) if self._saving.due(step, now) else [])]

    def _look_at_speed(self, now: float) -> list[Instruction]:
        active = [member.name for member in self.members.values() if member.active]
        disturbed = self._evaluating or self.phase is not Phase.TRAINING
        verdict = self._alarm.look(active, now, disturbed, saving=bool(self._saving.why))
        if verdict is None:
            return []
        speeds = {
            name: round(value, 1)
            for name, value in asdict(verdict).items()
            if isinstance(value, float)
        }
        kind = TrainSlow if isinstance(verdict, Slow) else TrainRecovered
        return [Emit(kind(run=self.spec.name, **{**asdict(verdict), **speeds}))]

    # --- saving, and the end -----------------------------------------------------------------------------------------
    def _save(self, why: Why) -> list[Instruction]:
        return self._saving.begin(why, self._able_to_save())

    def _able_to_save(self) -> list[Member]:
        """Workers that may be told to; not at the end, when they are told to leave, nor with an end
        in sight.
        """
        training = self.phase is Phase.TRAINING and not self._stopping
        return [
            member
            for member in self.members.values()
            if training and member.active and not member.noticed
        ]

    def _save_as_asked(self) -> list[Instruction]:
        """At once, or after the one that is being written: the latest steps are not in that."""
        if self._saving.asked and self.phase is Phase.TRAINING:
            return self._save(Why.ASKED)
        return []

    def _saved(self, event: SaveDone, now: float) -> list[Instruction]:
        why, told = self._saving.done(event, now)
        done: list[Instruction] = [Emit(told)]
        if self._lending:
            self._lending_saved = self._lending.saved()
            done.append(Persist())
        if self._stopping and why not in (Why.STOP, Why.FINAL):
            return [
                *done,
                *self._save(Why.STOP),
            ]  # it was begun before the end: the last steps are not in it
        if self._stopping:
            self.phase = Phase.ENDED
            return [*done, Finish(DONE)]
        if self.phase is Phase.FINISHING and why is not Why.FINAL:
            return [*done, *self._all_left(now)]
        done += self._save_as_asked()
        if why is Why.FINAL and event.step < self.spec.train_steps and not self._ended_early:
            return [
                *done,
                *self._fail(
                    f"the last steps went with a parameter server; {event.step} are left to resume"
                ),
            ]
        if why is Why.FINAL and self._lending:
            done.append(Emit(self._lending.told))
        if why is Why.FINAL:
            done.append(Emit(TrainMade(run=self.spec.name, step=event.step)))
        if (why is Why.FINAL or self._evaluation_due) and not self._evaluating:
            self._evaluating = True
            self._evaluation_due = False
            return [*done, Evaluate(event.step)]
        return done

    def _save_failed(self, reason: str, now: float) -> list[Instruction]:
        known = self._saving.failing
        why = self._saving.failed(now)
        if known and why is not Why.ASKED:
            told: list[Instruction] = []
        else:
            told = [Emit(TrainUnsaved(run=self.spec.name, step=self.step, reason=reason))]
        if self._stopping and why not in (Why.STOP, Why.FINAL):
            return [*told, *self._save(Why.STOP)]
        if why is Why.FINAL:  # once more, as soon as a save may be tried again
            self._finish_by = now
            self._last_by = self._last_by or now + LAST_SAVE_WITHIN
        if self._stopping:  # whoever stops it knows what was saved; a successor may go on from that
            self.phase = Phase.ENDED
            return [*told, Finish(DONE)]
        if self._last_by and now >= self._last_by:
            return [*told, *self._fail(f"the last checkpoint could not be written: {reason}")]
        # Training goes on, and the next save tries again.
        return [*told, *self._save_as_asked(), *self._all_left(now)]

    def _evaluated(self, event: EvaluationDone) -> list[Instruction]:
        self._evaluating = False
        if wrong := self._compare("the evaluation", event.program):
            return wrong
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
        unevaluated = TrainUnevaluated(run=self.spec.name, step=event.step, reason=event.reason)
        if event.reason:
            judged = []
        else:
            judged = self._judge.evaluated(evaluated)
        done: list[Instruction] = [Emit(unevaluated if event.reason else evaluated), *judged]
        if not self._written:
            return done
        if event.step != self._saving.step:
            return [*done, Evaluate(self._saving.step)]
        self.phase = Phase.ENDED
        finished = TrainFinished(
            run=self.spec.name,
            step=event.step,
            loss=self._progress.loss,
            checkpoint=self._saving.path,
            reason=self._ended_early,
        )
        return [*done, Emit(finished), Finish(DONE)]

    def _all_left(self, now: float) -> list[Instruction]:
        """Once training is over and nobody steps any more, write the last checkpoint."""
        if self.phase is not Phase.FINISHING or self._finish_by is None or self._saving.why:
            return []
        if (self.active and now < self._finish_by) or not self._saving.may_try(now):
            return []
        self._finish_by = None
        left = [member for member in self.members.values() if member.active]
        done: list[Instruction] = []
        for member in left:
            member.active = False
            done.append(self._left(member, "lost"))
        return [*done, *self._save(Why.FINAL)]

    def _stop(self) -> list[Instruction]:
        """End early, keeping what was learnt: also the steps since the last look at the step."""
        self._stopping = True
        if self.phase is Phase.PREPARING or self._written or self._turns:
            self.phase = Phase.ENDED
            return [Finish(DONE)]
        return self._save(Why.STOP)

    def _fail(self, reason: str) -> list[Instruction]:
        failed = Emit(TrainFailed(run=self.spec.name, step=self.step, reason=reason))
        told = self._tell_all(_LEAVE)
        self.phase = Phase.ENDED
        return [failed, *told, Finish(FAILED)]

    def _compare(self, who: str, program: Mapping[str, str]) -> list[Instruction]:
        """Fail the run where `who` executes another program than the processes before."""
        if wrong := fingerprint_difference(self._program, program):
            return self._fail(
                f"{who} does not execute the same program as the other processes: {wrong}. {_SEED_IT}"
            )
        self._program = {**program, **self._program}
        return []

    def _tick(self, now: float) -> list[Instruction]:
        done: list[Instruction] = []
        for member in list(self.members.values()):
            if member.lost or now - member.heard < (
                SILENCE if member.active else SILENCE_BEFORE_TRAINING
            ):
                continue
            done += self._leave(member, "lost", now, silent=member.connection is not None)
        if self._lending and self.phase is Phase.TRAINING and (told := self._lending.due(now)):
            done.append(Emit(told))
        return [*done, *self._all_left(now)]


def _remembered(roster: Roster, now: float) -> dict[int, Member]:
    """Who trained with the chief before, and may come again."""
    heard = now + REJOIN_WITHIN - SILENCE
    return {
        number: Member(name, number, None, heard, active=True, stepped=True)
        for number, name in roster.training.items()
    }


def _go(connection: int) -> Tell:
    return Tell(connection, _LEAVE)
