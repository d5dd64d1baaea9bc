"""What VMs tell: events of a run, as its chief writes them down, of jobs and Dask clusters, and
what an agent does.

These classes are all that is taken from a VM. Chief and agent make their lines of them (`told`), so
that what is sent and what is let in is one and the same; `from_chief`, `from_job`, `from_dask` and
`from_agent` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import checks
from .agent_commands import Role
from .checks import Amount, Count, Name, NameOrNone
from .events import FACT, Event, event, taken
from .step_parts import Measure

VM = "a VM"


@event("worker.joined", FACT)
class WorkerJoined(Event):
    """A worker process takes part in a run, under a `number` that is never used twice; `active`
    workers now.
    """

    run: Name
    worker: Name
    number: Count
    active: Count


@event("worker.left", FACT)
class WorkerLeft(Event):
    """A worker process takes no part any more. `reason`: finished, revoked, lost, or told to leave."""

    run: Name
    worker: Name
    number: Count
    active: Count
    reason: str


@event("worker.batch_resized", FACT)
class WorkerBatchResized(Event):
    """A worker takes mini-batches of `new` examples (of text: tokens), not of `old`.

    `reason`: static, dynamic, revocation, join or oom.
    """

    run: Name
    worker: Name
    old: Count
    new: Count
    reason: str


@event("train.started", FACT)
class TrainStarted(Event):
    """The chief initialised or restored the model; training goes on from `step`.

    `parameters`: of the model (0: not told).
    """

    run: Name
    step: Count
    parameters: Count = 0


@event("train.progress", FACT)
class TrainProgress(Event):
    """Where the run stands, over the whole cluster.

    `server_bytes`: the most memory that its process on the first parameter server's VM has had (0:
    not told). `waiting`: the share of their steps for which workers waited for mini-batches.
    """

    run: Name
    step: Count
    loss: float | None = None
    steps_per_second: Amount = 0.0
    samples_per_second: Amount = 0.0
    active: Count = 0
    server_bytes: Count = 0
    waiting: Amount = 0.0


@event("train.data", FACT)
class TrainData(Event):
    """How the run reads its records, which come in `blocks` of `bytes` in all; `epochs` are
    complete.

    Workers found `hits` blocks in their caches, `saved_bytes` that did not cross the network, and
    copied `misses`, `fetched_bytes`, `straight_bytes` of which came from the bucket and not through
    ps-0; they had nothing to read for `waited_seconds` in all. A worker holds `bound` blocks at
    most (0: none has asked yet). `again`: blocks that were leased once more, because who held them
    was lost.
    """

    run: Name
    blocks: Count
    records: Count = 0
    bytes: Count = 0
    epochs: Count = 0
    bound: Count = 0
    again: Count = 0
    hits: Count = 0
    misses: Count = 0
    saved_bytes: Count = 0
    fetched_bytes: Count = 0
    straight_bytes: Count = 0
    waited_seconds: Amount = 0.0


@event("train.reread", FACT)
class TrainReread(Event):
    """A worker is gone that held `blocks` of the records, of the `bound` that one may hold: others
    read them again.
    """

    run: Name
    worker: Name
    blocks: Count
    bound: Count = 0


@event("train.detour", FACT)
class TrainDetour(Event):
    """Blocks that were to come straight from the bucket come through ps-0, for `reason`: said once,
    of one worker.

    Workers try the bucket again, after pauses that grow.
    """

    run: Name
    worker: Name
    reason: str


@event("train.checkpoint", FACT)
class TrainCheckpoint(Event):
    """A checkpoint was written; `seconds` it took, its size in `bytes`, `path` within the run's
    folder.

    `next_seconds` is when the next is planned, of a run whose interval follows from what its
    checkpoints cost. `worker` wrote it (`--chief worker`); the chief did where it is empty.
    `asked`: it was begun because somebody asked for one, and so has every step that was made
    before.
    """

    run: Name
    step: Count
    path: str
    seconds: Amount = 0.0
    bytes: Count = 0
    worker: NameOrNone = ""
    next_seconds: Amount | None = None
    asked: bool = False


@event("train.unsaved", FACT)
class TrainUnsaved(Event):
    """A checkpoint could not be written (`reason`). Training goes on, and it is tried again until
    one is written.

    Told once of failures that follow each other, and always to who asked for one.
    """

    run: Name
    step: Count
    reason: str


@event("train.shipped", FACT)
class TrainShipped(Event):
    """The checkpoint of `step` is in the bucket: `path` is what TensorFlow calls it there
    (`gs://...`).
    """

    run: Name
    step: Count
    path: str
    seconds: Amount = 0.0
    bytes: Count = 0


@event("train.unshipped", FACT)
class TrainUnshipped(Event):
    """A checkpoint could not be brought into the bucket (`reason`); the controller brings it to
    this machine.
    """

    run: Name
    reason: str


@event("train.slow", FACT)
class TrainSlow(Event):
    """The cluster makes `speed` examples per second where its workers were seen to make `expected`.

    The likely `bottleneck` is `worker` (which one says `worker`), `input pipeline`, `parameter
    server` (its CPU; of several, `server` says which) or `network`. With so many parameter
    `servers`, one more than there are, it would make `with_servers` examples per second (0: not
    known).
    """

    run: Name
    speed: Amount
    expected: Amount
    bottleneck: str
    worker: NameOrNone = ""
    server: NameOrNone = ""
    servers: Count = 0
    with_servers: Amount = 0.0


@event("train.recovered", FACT)
class TrainRecovered(Event):
    """The cluster, which was slow, makes `speed` of the `expected` examples per second again."""

    run: Name
    speed: Amount
    expected: Amount


@event("train.evaluated", FACT)
class TrainEvaluated(Event):
    """The dev split's metrics at `step`, by name; those `undefined` are no numbers.

    They are of so many `batches` and `examples` (0: not told), which are the whole split if it is
    `complete`; else `of` how many (0: not known), or of an `endless` one, or one too long to count.
    `drawn`: how many elements (examples or batches) were drawn among so many first ones; later
    evaluations of the run take the same ones.
    """

    run: Name
    step: Count
    metrics: Mapping[str, float]
    batches: Count = 0
    examples: Count = 0
    complete: bool = True
    undefined: tuple[str, ...] = ()
    of: Count = 0
    endless: bool = False
    drawn: Count = 0
    among: Count = 0


@event("train.unevaluated", FACT)
class TrainUnevaluated(Event):
    """The checkpoint of `step` could not be evaluated (`reason`). Training goes on, and the next
    one is evaluated.
    """

    run: Name
    step: Count
    reason: str


@event("train.best", FACT)
class TrainBest(Event):
    """The checkpoint of `step` has the best evaluation so far, and stays until there is a better
    one.

    By `metric`, whose value is `value`. `path` is within the run's folder, `shipped` what
    TensorFlow calls it in the bucket (`gs://...`), told once it is there.
    """

    run: Name
    step: Count
    metric: str
    value: float
    path: str = ""
    shipped: str = ""
    seen: str = ""
    """Of how many examples the value is, in words, where not of the whole split."""


@event("train.order", FACT)
class TrainOrder(Event):
    """Workers cannot begin at any of their examples: why not, and what to do about it. Told once,
    by the first one.
    """

    run: Name
    reason: str


@event("train.unjudged", FACT)
class TrainUnjudged(Event):
    """Evaluations have no `metric`, by which the run is judged: no checkpoint is the best, its
    steps end it.

    `metrics` are those that there are. Told once.
    """

    run: Name
    step: Count
    metric: str
    metrics: tuple[str, ...] = ()


@event("train.measured", FACT)
class TrainMeasured(Event):
    """A measure of a run that measures stalls was taken, in its `repeat`-th turn (from 1 on): the
    mean `seconds` of a step by worker, and of how many `steps`.

    `straggler`: the seconds that a step of all workers would wait for the slowest, beyond the mean
    one. `examples` of a step; `bytes` of the files that a worker reads its examples from (0: it
    reads none).
    """

    run: Name
    measure: Measure
    repeat: Count
    seconds: Mapping[Name, Amount]
    steps: Mapping[Name, Count]
    straggler: Amount = 0.0
    examples: Count = 0
    bytes: Count = 0


@event("train.made", FACT)
class TrainMade(Event):
    """The run has its steps, and the last checkpoint is written: its workers are free for other
    runs, while that is evaluated and brought home.
    """

    run: Name
    step: Count


@event("train.finished", FACT)
class TrainFinished(Event):
    """The run reached its steps (or was stopped by the user); its results are on this machine or in
    its bucket.

    `reason`, a clause, is why it ended before its steps were made (`--stop-when`).
    """

    run: Name
    step: Count
    loss: float | None = None
    seconds: Amount = 0.0
    checkpoint: str = ""
    stopped: bool = False
    reason: str = ""


@event("train.failed", FACT)
class TrainFailed(Event):
    """The run ended without reaching its steps. `reason` is one sentence."""

    run: Name
    reason: str
    step: Count = 0


@dataclass(frozen=True, kw_only=True)
class AgentLine(Event):
    """What the agent of a VM tells. It is about that VM, and becomes an event only where the
    controller makes one.
    """


@dataclass(frozen=True, kw_only=True)
class AgentStarted(AgentLine):
    """An agent took charge of the VM."""

    kind = "agent.started"
    pid: Count


@dataclass(frozen=True, kw_only=True)
class OfProcess(AgentLine):
    """What all that is told of a run's process on the VM has: what it does there, and under which
    name.
    """

    run: Name
    role: Role
    name: Name


@dataclass(frozen=True, kw_only=True)
class ProcessStarted(OfProcess):
    """A process of a run was started."""

    kind = "process.started"
    pid: Count | None


@dataclass(frozen=True, kw_only=True)
class ProcessExited(OfProcess):
    """It ended with `code` (None: nobody knows); `tail` is the end of what it said."""

    kind = "process.exited"
    code: int | None
    tail: str


@dataclass(frozen=True, kw_only=True)
class ProcessGaveUp(OfProcess):
    """It ended too often to be started again; `said` are its last words."""

    kind = "process.gave_up"
    said: str


@dataclass(frozen=True, kw_only=True)
class ProcessUnfit(OfProcess):
    """It ended because this VM cannot do what it was rented for, and is not started again; `reason`
    is a clause.
    """

    kind = "process.unfit"
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrafficCounted(AgentLine):
    """What the VM has sent and received since it started, in bytes."""

    kind = "vm.traffic"
    sent: Count
    received: Count


@dataclass(frozen=True, kw_only=True)
class PreemptionNoticed(AgentLine):
    """The VM's metadata server announced its preemption: work on the VM has `seconds`, as its own
    scheduling says.
    """

    kind = "vm.preemption_notice"
    seconds: Amount = 30.0


_OF_CHIEF: dict[str, type[Event]] = {
    each.kind: each
    for each in (
        WorkerJoined,
        WorkerLeft,
        WorkerBatchResized,
        TrainStarted,
        TrainProgress,
        TrainData,
        TrainReread,
        TrainDetour,
        TrainCheckpoint,
        TrainUnsaved,
        TrainShipped,
        TrainUnshipped,
        TrainSlow,
        TrainRecovered,
        TrainEvaluated,
        TrainUnevaluated,
        TrainBest,
        TrainUnjudged,
        TrainMeasured,
        TrainMade,
        TrainFinished,
        TrainFailed,
        TrainOrder,
    )
}
_OF_AGENT: dict[str, type[AgentLine]] = {
    each.kind: each
    for each in (
        AgentStarted,
        ProcessStarted,
        ProcessExited,
        ProcessGaveUp,
        ProcessUnfit,
        TrafficCounted,
        PreemptionNoticed,
    )
}


def told(event: Event) -> dict[str, object]:
    """The fields of a line that tells the event, its texts no longer than is let in."""
    return {
        name: checks.clipped(value) if isinstance(value, str) else value
        for name, value in event.values.items()
    }


def from_chief(line: bytes, run: str, since: int, until: int) -> Event:
    """The event on a line of the chief of `run`, told of a moment from `since` to `until` (ns),
    give or take a day.

    Raises ValueError for everything else, whatever it is.
    """
    found = taken(line, _OF_CHIEF, VM, since, until)
    if found.values["run"] != run:
        raise ValueError(f"a {found.kind} event of another run")
    return found


def from_agent(line: bytes, since: int, until: int) -> AgentLine:
    """As `from_chief`, of a line of an agent."""
    found = taken(line, _OF_AGENT, VM, since, until)
    assert isinstance(found, AgentLine)
    return found
