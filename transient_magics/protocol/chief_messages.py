"""Messages over a run's port: from workers and parameter servers to the chief, and its replies.

The first message on a connection (`FirstWord`) contains the run's token. After a `Join`, the worker
(`FromWorker`) and the chief (`ToWorker`) both send messages at any time. After `Files`, the client
sends a `Fetch` for each file. The chief answers a refused request with `{"ok": false}` and an
`error`. A worker and its chief ignore messages of newer versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from . import checks, messages
from .checks import Amount, Count, Name, checked_file
from .messages import Message, message
from .step_parts import Measure

EPOCHS = "epochs"
"""The field of a worker's metrics with what its steps add to the training metrics, by epoch.

Epochs count from the first step of the run. Each has the number of steps, and then their sums
(runtime/training/user_model/training_metrics.py).
"""

# --- first messages -------------------------------------------------------------------------------


@message("join")
class Join(Message):
    """A worker's request for a number; `number` is its previous one, if any."""

    token: str = field(repr=False)
    name: Name
    accelerator: str = ""
    number: Count | None = None


@dataclass(frozen=True, kw_only=True)
class File:
    """A file whose bytes follow."""

    name: Annotated[str, checked_file]
    size: Count
    sha256: str


@message("checkpoint")
class Checkpoint(Message):
    """The notice that worker `number` has written the requested checkpoint; its files follow."""

    token: str = field(repr=False)
    number: Count
    step: Count
    seconds: Amount
    files: tuple[File, ...]


What = Literal["records", "whole", "graphs", "phases", "blocks"]


@message("files")
class Files(Message):
    """A request for the files of the records, of the graphs, or of the phases (runtime/phases.py).

    The answer comes when they are complete: `files`, each as a `File`. Records that come in blocks
    are in `streamed`, by name only. If `what` is `blocks`, each block is a file.
    """

    token: str = field(repr=False)
    what: What = "records"


@message("grant")
class Grant(Message):
    """A request for the token that opens the run's records in their bucket: `access`, `expires`.

    A client uses it to read blocks directly from the bucket. It takes the same connection as the
    records themselves, and opens nothing else.
    """

    token: str = field(repr=False)


@message("load")
class Load(Message):
    """The resources that the process of the parameter server `name` has used so far.

    `parameter_server/server_load.py` sends it.
    """

    token: str = field(repr=False)
    name: Name
    cpu_seconds: Amount
    clock: float
    cores: Count


@message("calls")
class Calls(Message):
    """The connection of the program that evaluates and calls the cell's callbacks.

    `programs/callbacks.py` opens it. The chief sends an `EpochEnded` at the end of each epoch. The
    answer is `Called`, which the program also sends first, when training may begin.
    """

    token: str = field(repr=False)


@message("fetch")
class Fetch(Message):
    """A request for the bytes of one file, after `Files`.

    Its name may contain folders; the name of a block is its number.
    """

    name: str


@message("epoch ended")
class EpochEnded(Message):
    """A request to evaluate the checkpoint of `step`, and to call the callbacks.

    An `epoch` below 0 stands for none: only the end of the training is left. `sums` are those of
    its training metrics. `last`: no epoch follows. The evaluation may take `seconds`. `awaited`:
    training waits for it. `before` has the fields of the last evaluation about its part of the dev
    split.
    """

    step: Count
    epoch: int = -1
    sums: tuple[float, ...] = ()
    last: bool = False
    seconds: Amount = 60.0
    awaited: bool = True
    before: Mapping[str, object] = field(default_factory=dict[str, object])


@message("called")
class Called(Message):
    """The effects of callbacks, and the metrics that they received, `logs`.

    The learning rate is `rate` times the declared one. `stop`, a clause: why training ends.
    `output`: what they printed. `error`: why the run cannot continue. `evaluation` is the answer of
    the program `evaluate`; empty if nothing was evaluated.
    """

    logs: Mapping[str, float] = field(default_factory=dict[str, float])
    rate: Amount = 1.0
    stop: str = ""
    output: str = ""
    error: str = ""
    evaluation: Mapping[str, object] = field(default_factory=dict[str, object])


# --- messages of a worker that has joined ---------------------------------------------------------


@message("stepping")
class Stepping(Message):
    """The notice that the worker applied its first gradient.

    `speed` is the speed of its accelerator relative to a K80; 0 without a GPU. `program` is the
    fingerprint of the run's program in the worker's process, as JSON
    (runtime/training/reproducibility.py).
    """

    loss: float | None = None
    samples: Count = 0
    speed: Amount = 0.0
    gpu: bool = False
    program: str = ""


@message("metrics")
class Metrics(Message):
    """Measurements of one second of the worker's steps, in the form of the run's metrics."""

    line: Mapping[str, object]

    @property
    def step(self) -> int:
        """The latest step of the run that the worker has seen; 0: the line does not report one."""
        step = self.line.get("step")
        return step if isinstance(step, int) else 0


@message("alive")
class Alive(Message):
    """The heartbeat after a second without a step."""


@message("noticed")
class Noticed(Message):
    """The notice that the worker's VM received a preemption notice."""


@message("exhausted")
class Exhausted(Message):
    """The report that the mini-batch did not fit into memory; `fits` examples fit."""

    fits: Count = 0


@message("unsaved")
class Unsaved(Message):
    """The report that the requested checkpoint could not be written or sent."""

    reason: str


@message("trouble")
class Trouble(Message):
    """The report of an error that stops the worker.

    `fatal`: it would occur on every VM (user code).
    """

    reason: str
    fatal: bool = False


@message("reading")
class Reading(Message):
    """A note for the user about the examples that the worker will read."""

    note: str


@message("took")
class Took(Message):
    """The result of the measure of one turn.

    `seconds` are the times of its steps (empty: the measure failed), each of `examples` examples.
    `bytes` is the size of the files from which the examples are read.
    """

    turn: Count
    seconds: tuple[Amount, ...] = ()
    examples: Count = 0
    bytes: Count = 0


@message("leaving")
class Leaving(Message):
    """The notice that the worker leaves: finished, revoked, lost or told to leave."""

    reason: str


@message("lease")
class Lease(Message):
    """A request for `wanted` more blocks of the records.

    The worker repeats an unanswered request under the same `serial`. It has leases on the blocks
    `held` and has used those `done` in its steps; `cached` lists blocks that its cache gained since
    the last request. In total it found `hits` blocks in the cache, which saved `saved` bytes. It
    copied `misses` blocks of `fetched` bytes, `straight` of these from the bucket and not from the
    chief. It had nothing to read for `waited` seconds. It holds at most `bound` blocks at a time.
    `detour`: why it switched from the bucket to the chief.
    """

    serial: Count
    held: tuple[Count, ...] = ()
    done: tuple[Count, ...] = ()
    cached: tuple[Count, ...] = ()
    wanted: Count = 0
    bound: Count = 0
    hits: Count = 0
    misses: Count = 0
    saved: Count = 0
    fetched: Count = 0
    straight: Count = 0
    waited: Amount = 0.0
    detour: str = ""


# --- messages of the chief to a worker ------------------------------------------------------------


@message("joined")
class Joined(Message):
    """The acceptance of the worker under `number`; `active` workers train.

    `phase` is the step at which the present phase of the run began (run.RunSpec).
    """

    number: Count
    active: Count
    phase: Count = 0


@message("active")
class Active(Message):
    """The number of workers that train now."""

    active: Count


@message("batch")
class Batch(Message):
    """The size of the worker's mini-batches, and the weight `share` of their gradient."""

    size: Count
    share: Amount


@dataclass(frozen=True, kw_only=True)
class LeasedBlock:
    """A block of `records` records: its size in bytes, its CRC32C, and its file and offset."""

    number: Count
    size: Count
    records: Count
    crc32c: Count
    file: str = ""
    offset: Count = 0


@message("leased")
class Leased(Message):
    """Blocks leased to the worker, in addition to those that it holds.

    Empty: the worker has all that are available.
    """

    blocks: tuple[LeasedBlock, ...] = ()


@message("save")
class Save(Message):
    """A request to write a checkpoint and send it."""


@message("take")
class Take(Message):
    """A request to take a measure for `seconds`, and to report it under the number of the turn."""

    turn: Count
    measure: Measure
    seconds: Amount


@message("proceed")
class Proceed(Message):
    """The global step at which the worker waits for the next such message (None: it does not wait).

    The learning rate is divided by the workers' divisor and multiplied by `rate`.
    """

    limit: Count | None = None
    rate: Amount = 1.0


@message("stop")
class Stop(Message):
    """The notice that the run has made its steps.

    `again`: only those of a phase; the worker's process starts again for the next one.
    """

    again: bool = False


@message("leave")
class Leave(Message):
    """A request to leave the run."""

    reason: str = "told to leave"


@dataclass(frozen=True)
class Refused:
    """An error as the chief's answer: it serves another run, or does not accept this worker."""

    error: str


FirstWord = Join | Checkpoint | Files | Grant | Load | Calls
FromWorker = (
    Join
    | Stepping
    | Metrics
    | Alive
    | Noticed
    | Exhausted
    | Unsaved
    | Trouble
    | Reading
    | Took
    | Leaving
    | Lease
)
ToWorker = Joined | Active | Batch | Leased | Save | Take | Proceed | Stop | Leave
_FIRST: Mapping[str, type[FirstWord]] = messages.kinds(*get_args(FirstWord))
_FROM_WORKER: Mapping[str, type[FromWorker]] = messages.kinds(*get_args(FromWorker))
_TO_WORKER: Mapping[str, type[ToWorker]] = messages.kinds(*get_args(ToWorker))
_CALLBACKS: Mapping[str, type[EpochEnded] | type[Called]] = {
    EpochEnded.do: EpochEnded,
    Called.do: Called,
}
_FETCH: Mapping[str, type[Fetch]] = {Fetch.do: Fetch}


def read_first(line: bytes) -> FirstWord:
    """Read the first message on a connection to the chief. Raises ValueError if it is invalid."""
    return messages.read(line, _FIRST)


def read_from_worker(line: bytes) -> FromWorker:
    """Read a message of a worker that has joined. Raises ValueError if it is invalid.

    A message of a newer version counts as a heartbeat.
    """
    try:
        return messages.read(line, _FROM_WORKER)
    except messages.UnknownWord:
        return Alive()


def read_to_worker(line: bytes) -> ToWorker | Refused | None:
    """Read a message of the chief to a worker; None: of a newer version. Raises ValueError."""
    values = checks.parsed_object(line)
    if "do" not in values and values.get("ok") is False:
        return Refused(str(values.get("error", "")))
    try:
        return messages.read(line, _TO_WORKER)
    except messages.UnknownWord:
        return None


def read_fetch(line: bytes) -> Fetch:
    """Read the request for a file. Raises ValueError if it is invalid."""
    return messages.read(line, _FETCH)


def read_callbacks(line: bytes) -> EpochEnded | Called:
    """Read a message between the chief and the program that calls callbacks. Raises ValueError."""
    return messages.read(line, _CALLBACKS)
