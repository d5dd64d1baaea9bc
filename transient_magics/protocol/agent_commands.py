"""Commands to the agent of a VM, over its socket: from a controller, or a chief on the same VM.

Each line has a line as its answer: `{"ok": true}`, or `{"ok": false}` with an `error`. The answer
to a ping contains the agent's `pid`, its `processes`, whether each is `prepared`, and whether a
fork server has `imported` everything. The answer to a fork contains the `pid`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sized
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Literal, Self, TypeVar, get_args

from . import checks, messages
from .checks import Amount, Count, KindOfWork, Name, NameOrNone
from .messages import Message, message
from .objective import objective_or_none
from .run import FitDeclaration

_Sized = TypeVar("_Sized", bound=Sized)

Role = Literal["ps", "worker", "dispatcher", "prep", "input"]
"""Roles of a process of a run.

The last three are roles of tf.data service: its dispatcher, beside the chief; a server that
prepares mini-batches; and both in one process, for the trials of a study that share a VM.
"""
DISPATCHER: Role = "dispatcher"
INPUT: Role = "input"
Program = Literal["evaluate", "callbacks", "next_phase", "shared_graph"]
"""Programs of `runtime/programs/` that need TensorFlow and run beside a run."""


def _something(value: _Sized) -> _Sized:
    if not value:
        raise ValueError("the message has no content")
    return value


Place = Annotated[str, _something]
"""An address; a server's address contains its port."""


@dataclass(frozen=True)
class Assignment:
    """The role of a VM in a run: `name`, at `index` among the parameter servers at `ps`."""

    run: Name
    role: Role
    name: Name
    address: Place
    ps: Annotated[tuple[Place, ...], _something]
    chief: Place
    index: Count = 0
    gpu: str = ""
    """A worker's GPU; empty: the worker does not look for one."""
    dispatcher: str = ""
    """The address of tf.data service, if other VMs prepare the run's mini-batches; else empty."""
    shares: NameOrNone = ""
    """The study whose trials on the VM share the preparation of mini-batches; empty: not shared."""

    steps: Count = 0
    """With the next six fields: what the cell's `model.fit` declares (run.FitDeclaration)."""
    epoch_steps: Count = 0
    first_epoch: Count = 0
    eval_steps: Count = 0
    keep_best: Annotated[str, objective_or_none] = ""
    callbacks: bool = False
    phase_steps: Count = 0

    @classmethod
    def from_dict(cls, values: object) -> Assignment:
        """Read an assignment from the form of `to_dict`. Raises ValueError with the reason."""
        try:
            return checks.built(cls, values)
        except ValueError as error:
            raise ValueError(f"not an assignment: {error}") from None

    def to_dict(self) -> dict[str, object]:
        """Return the assignment as JSON values."""
        return asdict(self)

    @property
    def fit(self) -> FitDeclaration:
        """The part of the run's declaration that the run leaves to the cell."""
        return FitDeclaration.of(self)

    def arguments(self) -> list[str]:
        """Return the assignment as a role's command line."""
        return ["--assignment", json.dumps(self.to_dict(), separators=(",", ":"))]


def _assignment(command: Assignment) -> Assignment:
    return Assignment(**{field.name: getattr(command, field.name) for field in fields(Assignment)})


@message("ping")
class Ping(Message):
    """A liveness check; the answer lists the running processes."""


@message("warm")
class Warm(Message):
    """A notice that the VM will have this role in the run: import what the role needs.

    `own`: its model is not one of Tensor2Tensor's.
    """

    run: Name
    role: Role
    name: Name
    own: bool = False


@message("assign")
class Assign(Message, Assignment):
    """A command to take this role, and to drop roles in runs that are not among `runs`.

    `standby`: prepare everything and do not begin with the run, which continues elsewhere, until
    the command comes without it.
    """

    runs: tuple[Name, ...] = ()
    standby: bool = False

    @classmethod
    def of(cls, assignment: Assignment, runs: tuple[str, ...], *, standby: bool = False) -> Self:
        """Return the command to take this role."""
        return cls(**asdict(assignment), runs=runs, standby=standby)

    @property
    def assignment(self) -> Assignment:
        """The role to take."""
        return _assignment(self)


@message("make ready")
class MakeReady(Message, Assignment):
    """A command to prepare a worker process for this role, while another one trains on the VM.

    The process uses neither the GPU nor the run until the role is assigned.
    """

    @classmethod
    def of(cls, assignment: Assignment) -> Self:
        """Return the command to prepare for this role."""
        return cls(**asdict(assignment))

    @property
    def assignment(self) -> Assignment:
        """The role to prepare for."""
        return _assignment(self)


@message("stop")
class Stop(Message):
    """A command to end the VM's part in the run.

    `at_once`: without a last checkpoint, because the run continues elsewhere.
    """

    run: Name
    at_once: bool = False


@message("save")
class Save(Message):
    """A command to the run's chief on this VM to write a checkpoint."""

    run: Name


@message("evaluate")
class Evaluate(Message):
    """A command to the run's chief on this VM to evaluate the model in its current state."""

    run: Name


@message("fork")
class Fork(Message):
    """A command to start this program in a process that has imported everything it needs.

    The program runs beside a run, for a process of the run on this VM (`caller`), and ends with its
    caller. The `pid` of the answer is null if no such process is available.
    """

    run: Name
    program: Program
    arguments: tuple[str, ...]
    caller: Count


@message("begin")
class Begin(Message):
    """A command to run a part of a work on this VM, as its `attempt`-th attempt (0: its only one).

    The files of the work are on the VM. `task` is the VM's part, which the kind's own class checks.
    A repeated command changes nothing; another attempt replaces the one before.
    """

    kind: KindOfWork
    work: Name
    attempt: Count = 0
    task: Mapping[str, object] = field(default_factory=dict[str, object])


@message("warn")
class Warn(Message):
    """A warning that another VM of the work will be preempted in `seconds`.

    Only the first warning of an attempt counts.
    """

    kind: KindOfWork
    work: Name
    attempt: Count
    seconds: Amount


@message("end")
class End(Message):
    """A command to end the VM's part of the work gracefully."""

    kind: KindOfWork
    work: Name
    attempt: Count = 0


Command = Ping | Warm | Assign | MakeReady | Stop | Save | Evaluate | Fork | Begin | Warn | End
_KNOWN: Mapping[str, type[Command]] = messages.kinds(*get_args(Command))


def read(line: bytes) -> Command:
    """Read the command on a line. Raises ValueError if it is invalid."""
    return messages.read(line, _KNOWN)
