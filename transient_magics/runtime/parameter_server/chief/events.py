"""Events that a chief's state handles, and instructions that it returns.

Plain values between the process (chief.py) and the decisions (state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....protocol.chief_messages import Called, Lease, Took, ToWorker
from ....protocol.events import Event
from ....protocol.objective import Best
from ...files.blocks import Index
from ...phases import Phase
from ..server_load import Load


# --- events --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Joined:
    """A worker requests a number; `number` is the one that it had, if any."""

    connection: int
    name: str
    accelerator: str = ""
    number: int | None = None


@dataclass(frozen=True)
class Stepping:
    """The worker applied its first gradient. Sent again to a restarted chief."""

    connection: int
    loss: float | None = None
    samples: int = 0
    speed: float = 0.0
    """Speed of its accelerator relative to a K80; 0 if unknown."""
    program: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fingerprint of the run's program in its process."""


@dataclass(frozen=True)
class Built:
    """The chief has executed the run's program, with this fingerprint.

    The fingerprint is empty if the chief read the graph from a file.
    """

    program: Mapping[str, str]


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life of a worker; `line` has its metrics of about a second, if any."""

    connection: int
    line: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Noticed:
    """The worker's VM is under notice.

    It trains until shortly before the end, but gets no duties.
    """

    connection: int


@dataclass(frozen=True)
class MeasureTaken:
    """The worker has taken a measure of stalls."""

    connection: int
    result: Took


@dataclass(frozen=True)
class Reading:
    """A note for the user about the examples that the worker will read."""

    connection: int
    note: str


@dataclass(frozen=True)
class Leaving:
    """The worker leaves, with the reason: finished, revoked, lost or told to leave."""

    connection: int
    reason: str


@dataclass(frozen=True)
class Disconnected:
    """The connection ended. The worker may have sent Leaving before."""

    connection: int


@dataclass(frozen=True)
class Trouble:
    """A worker cannot continue; `fatal`: neither could any other, as with errors in user code."""

    connection: int
    reason: str
    fatal: bool = False


@dataclass(frozen=True)
class Exhausted:
    """A step needed more memory than the worker has; `fits` examples fit."""

    connection: int
    fits: int


@dataclass(frozen=True)
class Indexed:
    """The records are on the chief's disk, and come in these blocks."""

    index: Index


@dataclass(frozen=True)
class Leasing:
    """A worker reports which blocks it has, and requests more."""

    connection: int
    lease: Lease


@dataclass(frozen=True)
class Prepared:
    """The variables have values: they were initialised, restored, or never lost.

    `batch` is the declared mini-batch, and `best` the best checkpoint on this VM. `metrics`: how
    many numbers a step adds to the training metrics of its epoch.
    """

    step: int
    batch: int = 0
    best: Best | None = None
    metrics: int = 0


@dataclass(frozen=True)
class StepSeen:
    """The current global step."""

    step: int


@dataclass(frozen=True)
class SaveDone:
    """A checkpoint was written."""

    step: int
    name: str
    seconds: float
    bytes: int
    worker: str = ""
    """Worker that wrote it; "" for the chief."""


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint could not be written."""

    reason: str


@dataclass(frozen=True)
class SaveRequested:
    """The user or the agent requests a checkpoint."""


@dataclass(frozen=True)
class EvaluationRequested:
    """An evaluation of the current variables is requested."""


@dataclass(frozen=True)
class StopRequested:
    """The end of the run is requested, with a checkpoint."""


@dataclass(frozen=True)
class EvaluationDone:
    """An evaluation of the checkpoint of `step` has ended.

    The fields are those of the event train.evaluated; `reason` says why there are no metrics.
    """

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    batches: int = 0
    examples: int = 0
    complete: bool = True
    undefined: tuple[str, ...] = ()
    program: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fingerprint of the run's program in the process that evaluated."""
    of: int = 0
    endless: bool = False
    drawn: int = 0
    among: int = 0
    called: Called | None = None
    """The effects of the callbacks after it."""


@dataclass(frozen=True)
class CallbacksReady:
    """The callbacks were called at the beginning: training may begin."""

    called: Called


@dataclass(frozen=True)
class PhaseFound:
    """The cell was executed behind the present phase; None: it does not call `fit` once more."""

    phase: Phase | None


@dataclass(frozen=True)
class Failed:
    """The run cannot continue."""

    reason: str


@dataclass(frozen=True)
class ServerLoad:
    """CPU time that the process of the parameter server `name` has used so far."""

    name: str
    load: Load


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class EndedEpoch:
    """An epoch, at its end: its `index` in the run, its number, its last step.

    `sums` are those of its training metrics.
    """

    index: int
    number: int
    step: int
    sums: tuple[float, ...] = ()


# --- instructions --------------------------------------------------------------------------------
@dataclass(frozen=True)
class Emit:
    """Append an event."""

    event: Event

    @property
    def kind(self) -> str:
        """Kind of the event."""
        return self.event.kind

    @property
    def values(self) -> Mapping[str, Any]:
        """Fields of the event."""
        return self.event.values


@dataclass(frozen=True)
class Record:
    """Append a line of metrics."""

    line: Mapping[str, Any]


@dataclass(frozen=True)
class Send:
    """Send a worker a message."""

    connection: int
    message: ToWorker


@dataclass(frozen=True)
class Save:
    """Write a checkpoint; SaveDone or SaveFailed follows."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the checkpoint of `step`, and call the callbacks; EvaluationDone follows.

    `ended`: the epoch that ends with it. `last`: no step follows.
    """

    step: int
    ended: EndedEpoch | None = None
    last: bool = False


@dataclass(frozen=True)
class EpochOver:
    """Report an epoch, with the `metrics` of its evaluation or with what callbacks returned."""

    ended: EndedEpoch
    metrics: Mapping[str, float]
    called: Called | None = None


@dataclass(frozen=True)
class FindPhase:
    """Find the phase after the checkpoint of `step`; PhaseFound or Failed follows."""

    step: int


@dataclass(frozen=True)
class BeginPhase:
    """Store that this phase begins, and start this process and the workers' again for it."""

    phase: Phase


@dataclass(frozen=True)
class KeepBest:
    """Keep the checkpoint of the best evaluation, and report it.

    `seen` says which part of the split was evaluated.
    """

    best: Best
    seen: str = ""


@dataclass(frozen=True)
class Persist:
    """Write `to_dict` to disk before the next instruction."""


@dataclass(frozen=True)
class Release:
    """Release what the parameter servers keep for the worker with this number."""

    number: int


@dataclass(frozen=True)
class Finish:
    """End the chief's process with this exit code."""

    code: int


Instruction = (
    Emit
    | Record
    | Send
    | Save
    | Evaluate
    | EpochOver
    | FindPhase
    | BeginPhase
    | KeepBest
    | Persist
    | Release
    | Finish
)
