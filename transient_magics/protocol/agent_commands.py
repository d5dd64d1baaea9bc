"""What a controller, or a chief on the same VM, says to the agent of a VM: over its socket, a line for a line.

The answer is `{"ok": true}`, to a ping with the agent's `pid`, its `processes`, each with whether it is `prepared`, and
whether a fork server has `imported` everything, to a fork with the `pid`, or `{"ok": false}` with an `error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sized
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Literal, Self, TypeVar, get_args

from . import checks, messages
from .checks import Amount, Count, Name, NameOrNone
from .messages import Message, message

_Sized = TypeVar("_Sized", bound=Sized)

Role = Literal["ps", "worker", "dispatcher", "prep", "input"]
"""The last three are of tf.data service: its dispatcher, beside the chief, a server that prepares mini-batches, and
both in one, for the trials of a study that share a VM."""
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
    """What the controller asks a VM to be in a run: `name`, in the place `index` of the parameter servers at `ps`."""

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
    """Where tf.data service is reached, of a run whose mini-batches are prepared on other VMs; empty: of any other."""
    shares: NameOrNone = ""
    """The study with whose other trials on its VM a worker shares the preparation of mini-batches; empty: with none."""

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
    """The VM will be this in the run: have imported what that takes. `own`: its model is none of Tensor2Tensor's."""

    run: Name
    role: Role
    name: Name
    own: bool = False


@message("assign")
class Assign(Message, Assignment):
    """Be this, and nothing in any run that is not among `runs`.

    `standby`: have all of it ready and do not begin with the run, which goes on elsewhere, until the same is said
    without this.
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
    """Have the process of a worker ready that is to be this as soon as it is told so, while another one trains here:
    it touches neither the GPU nor the run."""

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
    """End what the VM does for the run; `at_once`: without a last checkpoint, for it goes on elsewhere."""

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
    """Have this program beside a run, for a process of it on this VM (`caller`), in a process that has imported all it
    needs; it ends with its caller. The answer's `pid` is null where no such process can be had."""

    run: Name
    program: Program
    arguments: tuple[str, ...]
    caller: Count


@message("begin job")
class BeginJob(Message):
    """Run a job, whose files are here, for the `attempt`-th time, as that `rank` of the VMs at `addresses`.

    `kept` is the number of the archive with which its folder begins (0: there is none), `packed` that of the last one
    that was told of, behind which those of this attempt are numbered: it is another one where that was lost with its
    machine. `at` is the controller's clock, in seconds since 1970 (0: not told); ranks compare by it when they saved.
    The same again changes nothing, another attempt takes the place of the one before.
    """

    job: Name
    attempt: Count
    rank: Count
    addresses: tuple[str, ...]
    kept: Count = 0
    packed: Count = 0
    at: Amount = 0.0


@message("warn job")
class WarnJob(Message):
    """A VM of the job ends by preemption in `seconds`: this rank ends when all do. The first warning of an attempt
    counts."""

    job: Name
    attempt: Count
    seconds: Amount


@message("end job")
class EndJob(Message):
    """End the job in an orderly way: its processes are told, its folder is packed once more."""

    job: Name
    attempt: Count


@message("begin dask")
class BeginDask(Message):
    """Be this part of a Dask cluster at the VM's `address`: its scheduler, or a worker of the one at `scheduler`.

    The files that it needs are here. The same again changes nothing. `born`: since when the VM runs, in seconds since
    1970 (0: not told). `code`: for a bag, the name of the whole package's code; its driver is in that, and its jobs may
    import it.
    """

    dask: Name
    part: Literal["scheduler", "worker"]
    vm: Name
    address: Place
    scheduler: str = ""
    born: Amount = 0.0
    code: str = ""


@message("end dask")
class EndDask(Message):
    """End what the VM does in the Dask cluster. The answer comes when it has ended."""

    dask: Name


Command = (
    Ping | Warm | Assign | MakeReady | Stop | Save | Evaluate | Fork | BeginJob | WarnJob | EndJob | BeginDask | EndDask
)
_KNOWN: Mapping[str, type[Command]] = messages.kinds(*get_args(Command))


def read(line: bytes) -> Command:
    """The command on a line. Raises ValueError where there is none."""
    return messages.read(line, _KNOWN)
