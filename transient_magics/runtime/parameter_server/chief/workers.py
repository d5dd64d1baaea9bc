"""The workers of a run: who trains, and with which mini-batches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....protocol import chief_messages as messages
from ....protocol.step_parts import step_parts
from ....protocol.vm_events import WorkerBatchResized
from ...training.batching import BatchController, Rule, accelerator_speed
from .events import Emit, Instruction, Persist, Send

DECIDE_EVERY = 3.0
"""Pause in seconds between two checks whether mini-batches have the right sizes."""


@dataclass
class Member:
    """A worker with a number. It is active from its first gradient until it leaves or is lost."""

    name: str
    number: int
    connection: int | None
    seen_at: float
    """Time of its last message."""
    active: bool = False
    lost: bool = False
    """Whether it has been silent for too long. It may only be frozen, and come back."""
    stepped: bool = False
    """Whether it has made a step, with this chief or the one before."""
    noticed: bool = False
    """Whether its VM is under notice; a replacement may already join."""
    accelerator: str = ""
    speed: float = 0.0
    step: int = 0
    """The last global step that it reported."""


@dataclass(frozen=True)
class Roster:
    """Workers by number: all that ever `joined`, and those of them that have not left.

    It follows from the run's events alone. A chief that was killed may have reported an event and
    not yet kept what follows from it, or the other way round. So its successor takes from the
    events who trains: in the journal no worker joins or leaves twice, or never.
    """

    joined: Mapping[int, str] = field(default_factory=dict)
    training: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def after(cls, events: Iterable[Mapping[str, Any]]) -> Roster:
        """Return the roster after these events."""
        joined = dict[int, str]()
        training = dict[int, str]()
        for event in events:
            if event["kind"] == "worker.joined":
                joined[event["number"]] = event["worker"]
                training[event["number"]] = event["worker"]
            elif event["kind"] == "worker.left":
                training.pop(event["number"], None)
        return cls(joined, training)


class Batches:
    """Sizes of a run's mini-batches: which worker gets which size, and when.

    It connects the chief's state with the arithmetic of batching.py, and does nothing with
    `--batching uniform`. A preemption notice needs no rule: its worker trains until shortly before
    the end, even beside its replacement. When it leaves, the others take over its examples.
    """

    def __init__(
        self, run: str, policy: str, workers: int, rule: Rule, kept: Mapping[str, Any] | None = None
    ) -> None:
        self._run = run
        self._policy = policy
        self._workers = workers
        self._rule = rule
        self._controller: BatchController | None = None
        self._sent = dict[int, int]()
        """Size that each worker has, by number."""
        self._decided_at = 0.0
        if kept:
            self._controller = BatchController(policy, kept["batch"], workers, kept, rule)
            self._sent = dict(self._controller.sizes)

    def to_dict(self) -> dict[str, Any]:
        """Return what a restarted chief must know."""
        if self._controller:
            return {"batches": self._controller.to_dict()}
        return {}

    def prepared(self, batch: int, members: Iterable[Member]) -> list[Instruction]:
        """Start with the declared mini-batch `batch`.

        After a restart, sizes are computed again, because a worker may have come or left since they
        were kept.
        """
        if self._policy == "uniform" or not batch:
            return []
        if self._controller is None:
            self._controller = BatchController(self._policy, batch, self._workers, rule=self._rule)
        return self.changed(members, "join")

    def changed(self, members: Iterable[Member], reason: str) -> list[Instruction]:
        """Divide the examples after a worker joined or left; `reason`: `join` or `revocation`."""
        if self._controller is None:
            return []
        present = {member.number: member for member in members if member.active}
        before = self._controller.total
        speeds = {
            number: member.speed or _speed_by_name(member) for number, member in present.items()
        }
        self._controller.members(speeds)
        if self._policy == "static" and self._controller.total != before:
            reason = "static"  # the cluster fills up: this is the declared division
        return self._send_sizes(present.values(), reason)

    def resend(self, member: Member) -> list[Instruction]:
        """Send a worker its size again: it is connected again, and may have missed a message."""
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
        """Add a worker's metrics, and change sizes if that is due."""
        if self._controller is None or member is None or line is None:
            return []
        steps = int(line.get("steps") or 0)
        size = int(line.get("batch_size") or 0)
        self._controller.observe(member.number, size, _own_seconds(line), steps)
        if now - self._decided_at < DECIDE_EVERY:
            return []
        self._decided_at = now
        if self._controller.decide():
            return self._send_sizes(members, self._policy)
        return []

    def exhausted(
        self, member: Member | None, fits: int, members: Iterable[Member]
    ) -> list[Instruction]:
        """Limit a worker that ran out of memory to `fits` examples."""
        if self._controller is None or member is None:
            return []
        self._controller.exhausted(member.number, fits)
        return self._send_sizes(members, "oom")

    def _send_sizes(self, members: Iterable[Member], reason: str) -> list[Instruction]:
        """Send each worker its size and share, and report the sizes that changed.

        Workers with the same size get a message too: the mean may have changed, and so their share.
        """
        assert self._controller is not None
        sizes = self._controller.sizes
        instructions = list[Instruction]()
        present = [member for member in members if member.number in sizes]
        for member in present:
            new = sizes[member.number]
            old = self._sent.get(member.number, self._controller.batch)
            self._sent[member.number] = new
            if new != old:
                resized = WorkerBatchResized(
                    run=self._run, worker=member.name, old=old, new=new, reason=reason
                )
                instructions.append(Emit(resized))
        if instructions:
            instructions.append(Persist())
        return [*instructions, *(self._message(member) for member in present)]

    def _message(self, member: Member) -> Send:
        assert self._controller is not None
        size = self._controller.sizes[member.number]
        share = self._controller.share(member.number)
        return Send(member.connection or 0, messages.Batch(size=size, share=share))


def _own_seconds(line: Mapping[str, Any]) -> float:
    """Return the seconds that the worker itself computed.

    Waiting does not count. Otherwise a slow link, parameter server or disk would lead to fewer
    examples, which would not make any of them faster.
    """
    parts = step_parts(line.get("split"))
    if parts and parts.own:
        return parts.own
    return float(line.get("compute_seconds") or 0.0)


def _speed_by_name(member: Member) -> float:
    """Return the speed of a worker's GPU by its name.

    0 if the name is unknown: the controller keeps the speed that it has.
    """
    if member.accelerator:
        return accelerator_speed(member.accelerator)
    return 0.0
