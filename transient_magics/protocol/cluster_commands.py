"""What clients say to the controller of a cluster, or to the mirror that stands in for it on this
machine.

One line over the cluster's command socket, and one comes back: `{"ok": true}` with what was asked
for, or an error in its parts (`errors.to_message`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from . import messages
from .checks import Amount, Count, KindOfWork, Name, NameOrNone, at_least
from .messages import Message, message

GiveUp = Literal["slowest", "youngest", "riskiest", "dearest"]
"""Which workers go where there are to be fewer."""


@message("ping")
class Ping(Message):
    """Are you there? The answer has `pid`, and `trouble`: what stands in the way, in one sentence."""


@message("declare")
class Declare(Message):
    """Begin the work of this kind whose declaration is in the cluster's folder. Does nothing if it
    has begun.
    """

    kind: KindOfWork
    name: Name


@message("stop")
class Stop(Message):
    """End the work: a run and the trials of a study after a last checkpoint. Does nothing if it is
    over.

    `reason`: a clause for the journal (default: its user stopped it). The answer is an
    UnknownWorkError where the cluster has no work of this kind and name.
    """

    kind: KindOfWork
    name: Name
    reason: str = ""


@message("extend study")
class ExtendStudy(Message):
    """Have so many `trials` more, also of a study that has ended.

    `request`: a word of the sender's own for this wish, which is told twice where an answer was
    lost; the second time nothing is added.
    """

    study: Name
    trials: Annotated[int, at_least(1)]
    request: NameOrNone = ""


@message("move")
class Move(Message):
    """Have the run, which waits, begin before that one; `before` is empty: before all that wait."""

    run: Name
    before: NameOrNone = ""


@message("save")
class Save(Message):
    """Have a checkpoint of the run written now."""

    run: Name


@message("evaluate")
class Evaluate(Message):
    """Have the run's model evaluated as it is now."""

    run: Name


@message("profile")
class Profile(Message):
    """Have a step of a worker of the run traced; `worker` is empty: of any. The journal says when
    the trace is here.
    """

    run: Name
    worker: NameOrNone = ""


@message("agree")
class Agree(Message):
    """Have the workers that were proposed for a run with a deadline, or give up those that were
    proposed where `run` is empty; `proposal`: the number of that event.
    """

    run: NameOrNone
    proposal: Count


@message("delete")
class Delete(Message):
    """End every VM of the cluster. `reason` is a clause for its journal."""

    reason: str = "asked by the user"


@message("revoke")
class Revoke(Message):
    """Have Compute Engine take the VM back, after `seconds`. Which VMs there are, the answer says."""

    vm: str
    seconds: Amount = 0.0


@message("change machine")
class ChangeMachine(Message):
    """Have the worker's VM stopped, made this machine type (empty: what it was rented as), and
    started again.
    """

    vm: str
    machine_type: str = ""


@message("resize")
class Resize(Message):
    """Have what this declaration of the cluster says (`ClusterSpec.to_dict`).

    `give_up`: which workers go where there are more; None: those with the highest places.
    """

    spec: Mapping[str, object]
    give_up: GiveUp | None = None


@message("relocate")
class Relocate(Message):
    """Have the machines, zones and parameter servers that this declaration of the cluster says
    (`ClusterSpec.to_dict`), there before what is there now goes.

    Not `agreed` it is only told what that costs: `bytes` and `dollars` for what follows, `hourly`
    (before: `hourly_before`) in US dollars, and when Compute Engine ends the cluster, `ends_at`
    (`ends_at_before`).
    """

    spec: Mapping[str, object]
    agreed: bool = False


@message("logs")
class Logs(Message):
    """The answer's `text` is the last `lines` of what the VM wrote in the run; None: in the latest."""

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
    """The command on a line. Raises ValueError where there is none."""
    return messages.read(line, _KNOWN)
