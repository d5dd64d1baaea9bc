"""The workers of a run as its chief knows them, who of them trains, and their mini-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....protocol import chief_messages as messages
from ....protocol.measures.step_parts import step_parts
from ....protocol.vm_events import WorkerBatchResized
from ...training.batching import BatchController, Rule, accelerator_speed
from .events import Emit, Instruction, Persist, Tell

DECIDE_EVERY = 3.0
"""Seconds between two looks at whether the sizes still are right."""


@dataclass
class Member:
    """A worker with a number. It is active from its first gradient until it leaves or falls silent."""

    name: str
    number: int
    connection: int | None
    heard: float
    active: bool = False
    lost: bool = False
    stepped: bool = False
    """It made a step, with this chief or the one before: it trains on when it is heard again."""
    noticed: bool = False
    """Its VM is under notice, and another one may be on its way into its place."""
    accelerator: str = ""
    speed: float = 0.0


# Who trains, as the events of the run say.
#
# A chief that was killed may have told an event and not yet kept what followed from it, or the
# other way round. So what its successor takes over of the workers is what was told: in the journal
# nobody joins or leaves twice, or never.


@dataclass(frozen=True)
class Roster:
    """Workers by number: all that ever `joined`, and those of them that have not left."""

    joined: Mapping[int, str] = field(default_factory=dict)
    training: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def after(cls, events: Iterable[Mapping[str, Any]]) -> Roster:
        """The roster at the end of these events."""
        joined = dict[int, str]()
        training = dict[int, str]()
        for event in events:
            if event["kind"] == "worker.joined":
                joined[event["number"]] = training[event["number"]] = event["worker"]
            elif event["kind"] == "worker.left":
                training.pop(event["number"], None)
        return cls(joined, training)


# The chief's part in mini-batches: which worker it tells which size, when, and what it says about
# it.
#
# Between the chief's state machine and the arithmetic of batching.py. With `--batching uniform`
# nothing here says anything. A preemption notice needs no rule of its own: its worker trains on
# until shortly before the end, also beside whoever takes its place, and says goodbye; at that
# moment the others take over its examples.


class Batches:
    """Mini-batches of one run."""

    def __init__(
        self, run: str, policy: str, workers: int, rule: Rule, kept: Mapping[str, Any] | None = None
    ) -> None:
        self._run = run
        self._policy = policy
        self._workers = workers
        self._rule = rule
        if kept:
            self._controller = BatchController(policy, kept["batch"], workers, kept, rule)
        else:
            self._controller = None
        if self._controller:
            self._told: dict[int, int] = dict(self._controller.sizes)
        else:
            self._told = {}
        self._decided = 0.0

    def to_dict(self) -> dict[str, Any]:
        """What a restarted chief must know."""
        if self._controller:
            return {"batches": self._controller.to_dict()}
        return {}

    def prepared(self, batch: int, members: Iterable[Member]) -> list[Instruction]:
        """The declared mini-batch is known. After a restart, somebody may have come or left whose
        size was not kept.
        """
        if self._policy == "uniform" or not batch:
            return []
        if self._controller is None:
            self._controller = BatchController(self._policy, batch, self._workers, rule=self._rule)
        return self.changed(members, "join")

    def changed(self, members: Iterable[Member], reason: str) -> list[Instruction]:
        """Somebody joined or left: `reason` is `join` or `revocation`."""
        if self._controller is None:
            return []
        present = {member.number: member for member in members if member.active}
        before = self._controller.total
        speeds = {
            number: member.speed or _known_speed(member) for number, member in present.items()
        }
        self._controller.members(speeds)
        if self._policy == "static" and self._controller.total != before:
            reason = "static"  # the cluster fills up: this is the division that was declared
        return self._tell(present.values(), reason)

    def again(self, member: Member) -> list[Instruction]:
        """A worker is back on the line and may have missed something."""
        if self._controller is None or member.number not in self._controller.sizes:
            return []
        return [self._message(member)]

    def measured(
        self,
        member: Member | None,
        line: Mapping[str, Any] | None,
        members: Iterable[Member],
        now: float,
    ) -> list[Instruction]:
        """A second of a worker's steps; perhaps the sizes are to change."""
        if self._controller is None or member is None or line is None:
            return []
        steps = int(line.get("steps") or 0)
        size = int(line.get("batch_size") or 0)
        self._controller.observe(member.number, size, _own_seconds(line), steps)
        if now - self._decided < DECIDE_EVERY:
            return []
        self._decided = now
        if self._controller.decide():
            return self._tell(members, self._policy)
        return []

    def exhausted(
        self, member: Member | None, fits: int, members: Iterable[Member]
    ) -> list[Instruction]:
        """A worker ran out of memory, and goes on with `fits` examples."""
        if self._controller is None or member is None:
            return []
        self._controller.exhausted(member.number, fits)
        return self._tell(members, "oom")

    def _tell(self, members: Iterable[Member], reason: str) -> list[Instruction]:
        """Tell everybody its size and share (the mean may have changed); tell the world what
        changed.
        """
        assert self._controller is not None
        sizes = self._controller.sizes
        done = list[Instruction]()
        present = [member for member in members if member.number in sizes]
        for member in present:
            new = sizes[member.number]
            old = self._told.get(member.number, self._controller.batch)
            self._told[member.number] = new
            if new != old:
                resized = WorkerBatchResized(
                    run=self._run, worker=member.name, old=old, new=new, reason=reason
                )
                done.append(Emit(resized))
        told = [self._message(member) for member in present]
        return [*done, *([Persist()] if done else []), *told]

    def _message(self, member: Member) -> Tell:
        assert self._controller is not None
        size = self._controller.sizes[member.number]
        share = self._controller.share(member.number)
        return Tell(member.connection or 0, messages.Batch(size=size, share=share))


def _own_seconds(line: Mapping[str, Any]) -> float:
    """How long the worker itself computed: what it waited for says nothing of how many examples it
    can bear.

    A slow link, a busy parameter server or a slow disk would be paid for with fewer examples, which
    mend none of them.
    """
    parts = step_parts(line.get("split"))
    if parts and parts.own:
        return parts.own
    return float(line.get("compute_seconds") or 0.0)


def _known_speed(member: Member) -> float:
    """From the name of its GPU; 0 where that says nothing, so that what was known of it before
    stays.
    """
    if member.accelerator:
        return accelerator_speed(member.accelerator)
    return 0.0
