"""What a controller, or a chief on the same VM, says to the agent of a VM: over its socket, a line
for a line.

The answer is `{"ok": true}`, to a ping with the agent's `pid`, its `processes`, each with whether
it is `prepared`, and whether a fork server has `imported` everything, to a fork with the `pid`, or
`{"ok": false}` with an `error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sized
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Literal, Self, TypeVar, get_args

from . import checks, messages
from .checks import Amount, Count, KindOfWork, Name, NameOrNone
from .messages import Message, message
from .objective import objective_or_none, patience_or_none
from .run import FitDeclaration

_Sized = TypeVar("_Sized", bound=Sized)

Role = Literal["ps", "worker", "dispatcher", "prep", "input"]
"""The last three are of tf.data service: its dispatcher, beside the chief, a server that prepares
mini-batches, and both in one, for the trials of a study that share a VM.
"""
DISPATCHER: Role = "dispatcher"
INPUT: Role = "input"
Program = Literal["evaluate", "shared_graph"]
"""Of `runtime/programs/`, those that need TensorFlow and run beside a run."""


def _something(value: _Sized) -> _Sized:
    if not value:
        raise ValueError("nothing is in it")
    return value


Place = Annotated[str, _something]
"""An address, of a server with its port."""


@dataclass(frozen=True)
class Assignment:
    """What the controller asks a VM to be in a run: `name`, in the place `index` of the parameter
    servers at `ps`.
    """

    run: Name
    role: Role
    name: Name
    address: Place
    ps: Annotated[tuple[Place, ...], _something]
    chief: Place
    index: Count = 0
    gpu: str = ""
    """A worker's GPU; empty: none is to be looked for."""
    dispatcher: str = ""
    """Where tf.data service is reached, of a run whose mini-batches are prepared on other VMs;
    empty: of any other.
    """
    shares: NameOrNone = ""
    """The study with whose other trials on its VM a worker shares the preparation of mini-batches;
    empty: with none.
    """

    steps: Count = 0
    """With the next three, what the cell's `model.fit` declares (run.FitDeclaration)."""
    epoch_steps: Count = 0
    keep_best: Annotated[str, objective_or_none] = ""
    stop_when: Annotated[str, patience_or_none] = ""

    @classmethod
    def from_dict(cls, values: object) -> Assignment:
        """Read what `to_dict` wrote. Raises ValueError with what is wrong with it."""
        try:
            return checks.built(cls, values)
        except ValueError as error:
            raise ValueError(f"not an assignment: {error}") from None

    def to_dict(self) -> dict[str, object]:
        """The assignment as it is kept."""
        return asdict(self)

    @property
    def fit(self) -> FitDeclaration:
        """The part of the run's declaration that it leaves to the cell."""
        return FitDeclaration(self.steps, self.epoch_steps, self.keep_best, self.stop_when)

    def arguments(self) -> list[str]:
        """The assignment as a role's command line."""
        return ["--assignment", json.dumps(self.to_dict(), separators=(",", ":"))]


def _assignment(command: Assignment) -> Assignment:
    return Assignment(**{each.name: getattr(command, each.name) for each in fields(Assignment)})


@message("ping")
class Ping(Message):
    """Are you there, and what runs?"""


@message("warm")
class Warm(Message):
    """The VM will be this in the run: have imported what that takes. `own`: its model is none of
    Tensor2Tensor's.
    """

    run: Name
    role: Role
    name: Name
    own: bool = False


@message("assign")
class Assign(Message, Assignment):
    """Be this, and nothing in any run that is not among `runs`.

    `standby`: have all of it ready and do not begin with the run, which goes on elsewhere, until
    the same is said without this.
    """

    runs: tuple[Name, ...] = ()
    standby: bool = False

    @classmethod
    def of(cls, assignment: Assignment, runs: tuple[str, ...], *, standby: bool = False) -> Self:
        """The command to be this."""
        return cls(**asdict(assignment), runs=runs, standby=standby)

    @property
    def assignment(self) -> Assignment:
        """What to be."""
        return _assignment(self)


@message("make ready")
class MakeReady(Message, Assignment):
    """Have the process of a worker ready that is to be this as soon as it is told so, while another
    one trains here: it touches neither the GPU nor the run.
    """

    @classmethod
    def of(cls, assignment: Assignment) -> Self:
        """The command to be ready for this."""
        return cls(**asdict(assignment))

    @property
    def assignment(self) -> Assignment:
        """What to be ready for."""
        return _assignment(self)


@message("stop")
class Stop(Message):
    """End what the VM does for the run; `at_once`: without a last checkpoint, for it goes on
    elsewhere.
    """

    run: Name
    at_once: bool = False


@message("save")
class Save(Message):
    """Have the run's chief, which is on this VM, write a checkpoint."""

    run: Name


@message("evaluate")
class Evaluate(Message):
    """Have the run's chief, which is on this VM, evaluate the model as it is."""

    run: Name


@message("fork")
class Fork(Message):
    """Have this program beside a run, for a process of it on this VM (`caller`), in a process that
    has imported all it needs; it ends with its caller. The answer's `pid` is null where no such
    process can be had.
    """

    run: Name
    program: Program
    arguments: tuple[str, ...]
    caller: Count


@message("begin")
class Begin(Message):
    """Run a part of a piece of work, whose files are here, for the `attempt`-th time (0: it has one
    attempt).

    `task` is what this VM does for it, which the kind's own class checks. The same again changes
    nothing; another attempt takes the place of the one before.
    """

    kind: KindOfWork
    work: Name
    attempt: Count = 0
    task: Mapping[str, object] = field(default_factory=dict[str, object])


@message("warn")
class Warn(Message):
    """Another VM of the work ends by preemption in `seconds`. The first warning of an attempt
    counts.
    """

    kind: KindOfWork
    work: Name
    attempt: Count
    seconds: Amount


@message("end")
class End(Message):
    """End what the VM does for the work, in an orderly way."""

    kind: KindOfWork
    work: Name
    attempt: Count = 0


Command = Ping | Warm | Assign | MakeReady | Stop | Save | Evaluate | Fork | Begin | Warn | End
_KNOWN: Mapping[str, type[Command]] = messages.kinds(*get_args(Command))


def read(line: bytes) -> Command:
    """The command on a line. Raises ValueError where there is none."""
    return messages.read(line, _KNOWN)
