"""The chief's vocabulary: what can happen to a run, and what is to be done about it.

Plain values that travel between the chief's edge (chief.py) and its state machine (state.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ....protocol.chief_messages import Lease, Took, ToWorker
from ....protocol.events import Event
from ....protocol.measures.objective import Best
from ...files.blocks import Index
from ..server_load import Load


# --- what can happen -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Joined:
    """A worker asks for a number; `number` is the one it had, if any."""

    connection: int
    name: str
    accelerator: str = ""
    number: int | None = None


@dataclass(frozen=True)
class Stepping:
    """The worker applied its first gradient; again after it found the chief anew."""

    connection: int
    loss: float | None = None
    samples: int = 0
    speed: float = 0.0
    """Of its accelerator, relative to a K80's, where the worker knows it."""
    program: Mapping[str, str] = field(default_factory=dict[str, str])
    """The fingerprint of the run's program in its process."""


@dataclass(frozen=True)
class Built:
    """The chief has executed the run's program, with this fingerprint; empty where it read the
    graph from a file.
    """

    program: Mapping[str, str]


@dataclass(frozen=True)
class Heard:
    """Any sign of life of a worker; with `line`, its metrics of about a second."""

    connection: int
    line: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Noticed:
    """The worker's VM is under notice: it trains on until shortly before the end, but must not be
    counted on.
    """

    connection: int


@dataclass(frozen=True)
class Measured:
    """The worker has taken a measure of the stalls."""

    connection: int
    told: Took


@dataclass(frozen=True)
class Reading:
    """The user should know this of the examples that the worker is about to read."""

    connection: int
    note: str


@dataclass(frozen=True)
class Leaving:
    """The worker says goodbye: finished, revoked or told to leave."""

    connection: int
    reason: str


@dataclass(frozen=True)
class Disconnected:
    """The connection ended without a goodbye."""

    connection: int


@dataclass(frozen=True)
class Trouble:
    """A worker cannot go on. `fatal`: it would be the same everywhere (user code)."""

    connection: int
    reason: str
    fatal: bool = False


@dataclass(frozen=True)
class Exhausted:
    """A step took more memory than the worker has; `fits` examples fit."""

    connection: int
    fits: int


@dataclass(frozen=True)
class Indexed:
    """The records are there, and come in these blocks."""

    index: Index


@dataclass(frozen=True)
class Leasing:
    """A worker says which blocks it holds, and asks for more."""

    connection: int
    lease: Lease


@dataclass(frozen=True)
class Prepared:
    """The variables live: initialised, restored, or found alive. `batch` is the declared
    mini-batch, `best` the best of the checkpoints that are here.
    """

    step: int
    batch: int = 0
    best: Best | None = None


@dataclass(frozen=True)
class StepSeen:
    """The global step now."""

    step: int


@dataclass(frozen=True)
class SaveDone:
    """A checkpoint was written."""

    step: int
    name: str
    seconds: float
    bytes: int
    worker: str = ""
    """Who wrote it; empty for the chief."""


@dataclass(frozen=True)
class SaveFailed:
    """A checkpoint could not be written."""

    reason: str


@dataclass(frozen=True)
class SaveAsked:
    """Somebody wants a checkpoint now."""


@dataclass(frozen=True)
class EvaluationAsked:
    """Somebody wants the model as it is evaluated now."""


@dataclass(frozen=True)
class StopAsked:
    """The run is to end now, with a checkpoint."""


@dataclass(frozen=True)
class EvaluationDone:
    """Metrics of the checkpoint at `step`, as train.evaluated tells them; `reason` if there are
    none.
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


@dataclass(frozen=True)
class Failed:
    """The run cannot go on."""

    reason: str


@dataclass(frozen=True)
class ServerLoad:
    """What the process of the parameter server `name` has taken so far."""

    name: str
    load: Load


@dataclass(frozen=True)
class Tick:
    """Time passed."""


# --- what is to be done ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Emit:
    """Append an event."""

    event: Event

    @property
    def kind(self) -> str:
        """Of the event."""
        return self.event.kind

    @property
    def values(self) -> Mapping[str, Any]:
        """The event's own fields."""
        return self.event.values


@dataclass(frozen=True)
class Record:
    """Append a line of metrics."""

    line: Mapping[str, Any]


@dataclass(frozen=True)
class Tell:
    """Send a worker a message."""

    connection: int
    message: ToWorker


@dataclass(frozen=True)
class Save:
    """Write a checkpoint; SaveDone or SaveFailed follows."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the checkpoint of `step`; EvaluationDone follows."""

    step: int


@dataclass(frozen=True)
class KeepBest:
    """Have the checkpoint of the best evaluation stay, and tell of it; `seen`: which part of the
    split that was of.
    """

    best: Best
    seen: str = ""


@dataclass(frozen=True)
class Persist:
    """Write `to_dict` to disk before going on."""


@dataclass(frozen=True)
class Release:
    """Have the parameter servers forget the worker with this number."""

    number: int


@dataclass(frozen=True)
class Finish:
    """The chief's process ends with this code."""

    code: int


Instruction = Emit | Record | Tell | Save | Evaluate | KeepBest | Persist | Release | Finish
