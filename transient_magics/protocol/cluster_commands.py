"""Commands of clients to the controller of a cluster, or to the mirror that represents it here.

A command is one line over the cluster's command socket, and so is its answer: `{"ok": true}` with
the requested values, or an error as a message (`errors.to_message`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from . import messages
from .checks import Amount, Count, KindOfWork, Name, NameOrNone, at_least
from .messages import Message, message

GiveUp = Literal["slowest", "youngest", "riskiest", "costliest"]
"""The rule that selects the workers to delete when a cluster shrinks."""


@message("ping")
class Ping(Message):
    """A liveness check; the answer has `pid`, and `trouble`: one sentence on what blocks work."""


@message("declare")
class Declare(Message):
    """A command to begin the work of this kind that is declared in the cluster's folder.

    It has no effect if the work has begun.
    """

    kind: KindOfWork
    name: Name


@message("stop")
class Stop(Message):
    """A command to end the work: a run or a study's trials after a last checkpoint.

    It has no effect if the work is over. `reason`: a clause for the journal (default: its user
    stopped it). The answer is an UnknownWorkError if the cluster has no work of this kind and name.
    """

    kind: KindOfWork
    name: Name
    reason: str = ""


@message("extend study")
class ExtendStudy(Message):
    """A command to add `trials` to a study, which may have ended.

    `request`: an identifier that the sender chooses. A client that lost the answer repeats the
    command with it, and the repetition adds no trials.
    """

    study: Name
    trials: Annotated[int, at_least(1)]
    request: NameOrNone = ""


@message("move")
class Move(Message):
    """A command to start a waiting run before the run `before`; empty: before all that wait."""

    run: Name
    before: NameOrNone = ""


@message("save")
class Save(Message):
    """A command to write a checkpoint of the run now."""

    run: Name


@message("evaluate")
class Evaluate(Message):
    """A command to evaluate the run's model in its current state."""

    run: Name


@message("profile")
class Profile(Message):
    """A command to trace a step of a worker of the run; `worker` is empty: of any worker.

    A journal event reports that the trace has arrived.
    """

    run: Name
    worker: NameOrNone = ""


@message("agree")
class Agree(Message):
    """A command to accept the workers that were proposed for a run with a deadline.

    If `run` is empty, it accepts the proposal to give up workers. `proposal` is the number of the
    event that proposed it.
    """

    run: NameOrNone
    proposal: Count


@message("delete")
class Delete(Message):
    """A command to delete every VM of the cluster. `reason` is a clause for its journal."""

    reason: str = "asked by the user"


@message("revoke")
class Revoke(Message):
    """A command to preempt the VM after `seconds`. The error for an unknown VM lists others."""

    vm: str
    seconds: Amount = 0.0


@message("change machine")
class ChangeMachine(Message):
    """A command to stop the worker's VM, change its machine type, and start it again.

    Empty: the machine type as rented.
    """

    vm: str
    machine_type: str = ""


@message("resize")
class Resize(Message):
    """A command to scale the cluster to this declaration (`ClusterSpec.to_dict`).

    `give_up`: which workers to delete if there are more; None: those with the highest indices.
    """

    spec: Mapping[str, object]
    give_up: GiveUp | None = None


@message("relocate")
class Relocate(Message):
    """A command to move the cluster to the machines, zones and parameter servers of `spec`.

    `spec` is a declaration of the cluster (`ClusterSpec.to_dict`). The new VMs exist before the old
    ones are deleted. Unless `agreed`, the answer only reports the cost: `bytes` and `dollars` of
    the transfer, the `hourly` price (before: `hourly_before`) in US dollars, and when Compute
    Engine ends the cluster, `ends_at` (`ends_at_before`).
    """

    spec: Mapping[str, object]
    agreed: bool = False


@message("logs")
class Logs(Message):
    """A request for the last `lines` of the VM's log of the run, as `text`; None: the latest."""

    vm: str
    run: Name | None = None
    lines: Count = 200


Command = (
    Ping
    | Declare
    | Stop
    | ExtendStudy
    | Move
    | Save
    | Evaluate
    | Profile
    | Agree
    | Delete
    | Revoke
    | ChangeMachine
    | Resize
    | Relocate
    | Logs
)
_KNOWN: Mapping[str, type[Command]] = messages.kinds(*get_args(Command))


def read(line: bytes) -> Command:
    """Read the command on a line. Raises ValueError if it is invalid."""
    return messages.read(line, _KNOWN)
