"""What is said over a run's port: to its chief by workers and other parameter servers, and by the
chief to workers.

The first message on a connection (`FirstWord`) has the run's token. After a `Join` come a worker's
(`FromWorker`) and the chief's (`ToWorker`) as each has something to say; after `Files`, a `Fetch`
for each file. The chief answers what it refuses with `{"ok": false}` and an `error`. Between a
worker and its chief, words of newer versions are passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from . import checks, messages
from .checks import Amount, Count, Name, checked_file
from .messages import Message, message
from .step_parts import Measure

# --- first words -----------------------------------------------------------------------------------------------------


@message("join")
class Join(Message):
    """A worker asks for a number; `number` is the one it had, if any."""

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
    """The worker with this number has written the checkpoint that it was asked for; its files
    follow.
    """

    token: str = field(repr=False)
    number: Count
    step: Count
    seconds: Amount
    files: tuple[File, ...]


What = Literal["records", "whole", "graphs", "blocks"]


@message("files")
class Files(Message):
    """Which records are there, or which graphs? The answer comes when they are made: `files`, each
    as a `File`.

    Records that come in blocks are in `streamed`, by their names alone. Of `blocks` each is then a
    file.
    """

    token: str = field(repr=False)
    what: What = "records"


@message("grant")
class Grant(Message):
    """The token that opens the run's records in their bucket, for who would read its blocks there:
    `access`, `expires`.

    It goes the way on which the records themselves would go, and opens nothing else.
    """

    token: str = field(repr=False)


@message("load")
class Load(Message):
    """What the process of the parameter server `name` has taken so far
    (parameter_server/server_load.py).
    """

    token: str = field(repr=False)
    name: Name
    cpu_seconds: Amount
    clock: float
    cores: Count


@message("fetch")
class Fetch(Message):
    """After `Files`: the bytes of this one. Its name may have folders; that of a block is its
    number.
    """

    name: str


# --- a worker that has joined ----------------------------------------------------------------------------------------


@message("stepping")
class Stepping(Message):
    """It applied its first gradient. `speed` is its accelerator's, relative to a K80's, where it
    knows that.

    `program` is the fingerprint of the run's program in its process, as JSON
    (runtime/training/reproducibility.py).
    """

    loss: float | None = None
    samples: Count = 0
    speed: Amount = 0.0
    gpu: bool = False
    program: str = ""


@message("metrics")
class Metrics(Message):
    """What a second of its steps measured, as it goes into the run's metrics."""

    line: Mapping[str, object]

    @property
    def step(self) -> int:
        """The run's step that it has seen; 0: the line does not tell one."""
        step = self.line.get("step")
        return step if isinstance(step, int) else 0


@message("alive")
class Alive(Message):
    """A second without a step."""


@message("noticed")
class Noticed(Message):
    """Its VM is under notice."""


@message("exhausted")
class Exhausted(Message):
    """The mini-batch did not fit into memory; `fits` examples do."""

    fits: Count = 0


@message("unsaved")
class Unsaved(Message):
    """The checkpoint that it was asked for could not be written, or not be brought here."""

    reason: str


@message("trouble")
class Trouble(Message):
    """It cannot go on. `fatal`: it would be the same everywhere (user code)."""

    reason: str
    fatal: bool = False


@message("reading")
class Reading(Message):
    """What its user should know of the examples that it is about to read."""

    note: str


@message("took")
class Took(Message):
    """It has taken the measure of that turn: the `seconds` of its steps (none: it could not), each
    of so many `examples`; and how many `bytes` the files have that its examples are read from.
    """

    turn: Count
    seconds: tuple[Amount, ...] = ()
    examples: Count = 0
    bytes: Count = 0


@message("leaving")
class Leaving(Message):
    """It says goodbye: finished, revoked, lost or told to leave."""

    reason: str


@message("lease")
class Lease(Message):
    """It wants so many more blocks of the records. What was not answered is said again under the
    same `serial`.

    It holds these under lease, has had those `done` in its steps, and `cached` are what its cache
    has taken since it said so last. In all it found `hits` of its blocks in the cache and `saved`
    bytes with them, copied `misses` and `fetched` bytes, `straight` of them from the bucket and not
    from the chief, and had nothing to read for `waited` seconds. It holds no more than `bound` at a
    time. `detour`: why it turned from the bucket to the chief.
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


# --- the chief to a worker -------------------------------------------------------------------------------------------


@message("joined")
class Joined(Message):
    """The worker is in, under this number; `active` train."""

    number: Count
    active: Count


@message("active")
class Active(Message):
    """So many train now."""

    active: Count


@message("batch")
class Batch(Message):
    """Take mini-batches of `size`; `share` weighs their gradient."""

    size: Count
    share: Amount


@dataclass(frozen=True, kw_only=True)
class LeasedBlock:
    """A block of `records` records: its size in bytes, its CRC32C, and in which file of the records
    it begins where.
    """

    number: Count
    size: Count
    records: Count
    crc32c: Count
    file: str = ""
    offset: Count = 0


@message("leased")
class Leased(Message):
    """These blocks are the worker's to read, besides those that it holds. None: it has all that
    there are.
    """

    blocks: tuple[LeasedBlock, ...] = ()


@message("save")
class Save(Message):
    """Write a checkpoint and bring it."""


@message("take")
class Take(Message):
    """Take this measure for so many `seconds`, and tell of it under the number of the turn."""

    turn: Count
    measure: Measure
    seconds: Amount


@message("stop")
class Stop(Message):
    """The run has its steps."""


@message("leave")
class Leave(Message):
    """Take no part any more."""

    reason: str = "told to leave"


@dataclass(frozen=True)
class Refused:
    """The chief answers with no message: it is another run's, or this worker is not taken."""

    error: str


FirstWord = Join | Checkpoint | Files | Grant | Load
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
ToWorker = Joined | Active | Batch | Leased | Save | Take | Stop | Leave
_FIRST: Mapping[str, type[FirstWord]] = messages.kinds(*get_args(FirstWord))
_FROM_WORKER: Mapping[str, type[FromWorker]] = messages.kinds(*get_args(FromWorker))
_TO_WORKER: Mapping[str, type[ToWorker]] = messages.kinds(*get_args(ToWorker))
_FETCH: Mapping[str, type[Fetch]] = {Fetch.do: Fetch}


def read_first(line: bytes) -> FirstWord:
    """The first message on a connection to the chief. Raises ValueError where there is none."""
    return messages.read(line, _FIRST)


def read_from_worker(line: bytes) -> FromWorker:
    """A message of a worker that has joined. Raises ValueError; one of a newer version is a sign of
    life, at least.
    """
    try:
        return messages.read(line, _FROM_WORKER)
    except messages.UnknownWord:
        return Alive()


def read_to_worker(line: bytes) -> ToWorker | Refused | None:
    """What the chief says to a worker; None: it is of a newer version. Raises ValueError."""
    values = checks.parsed_object(line)
    if "do" not in values and values.get("ok") is False:
        return Refused(str(values.get("error", "")))
    try:
        return messages.read(line, _TO_WORKER)
    except messages.UnknownWord:
        return None


def read_fetch(line: bytes) -> Fetch:
    """What of the files is asked for. Raises ValueError."""
    return messages.read(line, _FETCH)
