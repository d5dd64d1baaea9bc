"""Events that VMs report: of runs, through their chief, and of agents.

Chief and agent write their lines from these classes (`line_fields`), so the sender and the receiver share
one definition. `from_chief` and `from_agent` read the lines, and refuse all others. The events of
jobs and Dask clusters are in `works/jobs/events.py` and `works/dask/events.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import checks
from .agent_commands import Role
from .checks import Amount, Count, Name, NameOrNone
from .events import FACT, Event, event, read_foreign
from .step_parts import Measure

VM = "a VM"


@event("worker.joined", FACT)
class WorkerJoined(Event):
    """A worker process joined a run; `active` workers train now.

    Its `number` is never reused in the run.
    """

    run: Name
    worker: Name
    number: Count
    active: Count


@event("worker.left", FACT)
class WorkerLeft(Event):
    """A worker process left the run. `reason`: finished, revoked, lost, or told to leave."""

    run: Name
    worker: Name
    number: Count
    active: Count
    reason: str


@event("worker.batch_resized", FACT)
class WorkerBatchResized(Event):
    """A worker's mini-batches changed from `old` to `new` examples (tokens, for text).

    `reason`: static, dynamic, revocation, join or oom.
    """

    run: Name
    worker: Name
    old: Count
    new: Count
    reason: str


@event("train.started", FACT)
class TrainStarted(Event):
    """The chief initialized or restored the model; training continues from `step`.

    `parameters`: the number of parameters of the model (0: not reported). `phase`: which of the
    cell's calls of `fit` is trained (0: it has one), with `steps`, the number of steps of the run
    as far as it is known now.
    """

    run: Name
    step: Count
    parameters: Count = 0
    phase: Count = 0
    steps: Count = 0


@event("train.progress", FACT)
class TrainProgress(Event):
    """The progress of the run over the whole cluster.

    `server_bytes`: the peak memory of its process on the first parameter server's VM (0: not
    reported). `waiting`: the share of step time that workers spent waiting for mini-batches.
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
    """Statistics of how the run reads its records, which come in `blocks` of `bytes` in total.

    `epochs` are complete. Workers found `hits` blocks in their caches, which saved `saved_bytes` of
    network traffic. They copied `misses` blocks of `fetched_bytes`; `straight_bytes` of these came
    from the bucket and not through ps-0. They had no records to read for `waited_seconds` in total.
    A worker holds at most `bound` blocks (0: no worker has requested any). `again`: blocks that
    were leased again because their worker was lost.
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
    """A worker was lost that held `blocks` leased blocks, of at most `bound`.

    Other workers read these blocks again.
    """

    run: Name
    worker: Name
    blocks: Count
    bound: Count = 0


@event("train.detour", FACT)
class TrainDetour(Event):
    """Blocks planned to come directly from the bucket come through ps-0, for `reason`.

    Reported once, for one worker. Workers retry the bucket with backoff.
    """

    run: Name
    worker: Name
    reason: str


@event("train.checkpoint", FACT)
class TrainCheckpoint(Event):
    """A checkpoint of `bytes` was written in `seconds`; `path` is relative to the run's folder.

    `next_seconds`: when the next one is planned, for a run whose interval follows from the measured
    cost of its checkpoints. `worker`: the worker that wrote it (`--chief worker`); empty: the
    chief. `asked`: a user requested the checkpoint, and it contains every step made before the
    request.
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
    """A checkpoint could not be written (`reason`). Training continues, and the chief retries.

    Reported once for consecutive failures, and always after a request for a checkpoint.
    """

    run: Name
    step: Count
    reason: str


@event("train.shipped", FACT)
class TrainShipped(Event):
    """The checkpoint of `step` is in the bucket; `path` is its TensorFlow path (`gs://...`)."""

    run: Name
    step: Count
    path: str
    seconds: Amount = 0.0
    bytes: Count = 0


@event("train.unshipped", FACT)
class TrainUnshipped(Event):
    """A checkpoint could not be copied to the bucket (`reason`).

    The controller copies it to this machine instead.
    """

    run: Name
    reason: str


@event("train.slow", FACT)
class TrainSlow(Event):
    """The run is slow: `speed` examples per second, where its workers had reached `expected`.

    `bottleneck` is the likely cause: `worker` (`worker` names it), `input pipeline`, `parameter
    server` (its CPU; `server` names it if there are several) or `network`. With `servers` parameter
    servers, one more than now, the estimated speed is `with_servers` examples per second (0:
    unknown).
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
    """The run is not slow any more: `speed` of the `expected` examples per second."""

    run: Name
    speed: Amount
    expected: Amount


@event("train.evaluated", FACT)
class TrainEvaluated(Event):
    """The metrics of the dev split at `step`, by name; `undefined` are those that are not numbers.

    They cover `batches` and `examples` (0: not reported). That is the whole split if `complete`.
    Otherwise the split has `of` examples (0: unknown), or is `endless` or too long to count.
    `drawn`: the number of elements (examples or batches) that were drawn from the first `among`
    ones. Later evaluations of the run use the same elements.
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


@event("train.epoch", FACT)
class TrainEpoch(Event):
    """An epoch of the cell's `model.fit` ended at `step`; it has the number that Keras gives it.

    `logs`: the training metrics of its steps, and those of the evaluation at its end (`val_...`).
    Callbacks have set the learning rate to `rate` times the declared one. `stop`, a clause: why
    they end the training. `output`: what they printed.
    """

    run: Name
    epoch: Count
    step: Count
    logs: Mapping[str, float]
    rate: Amount = 1.0
    stop: str = ""
    output: str = ""


@event("train.unevaluated", FACT)
class TrainUnevaluated(Event):
    """The checkpoint of `step` could not be evaluated (`reason`). Training continues.

    The next checkpoint is evaluated.
    """

    run: Name
    step: Count
    reason: str


@event("train.best", FACT)
class TrainBest(Event):
    """The checkpoint of `step` has the best evaluation so far, and is kept until a better one.

    `value` is the value of `metric`. `path` is relative to the run's folder. `shipped` is the
    TensorFlow path in the bucket (`gs://...`), set when the checkpoint is there.
    """

    run: Name
    step: Count
    metric: str
    value: float
    path: str = ""
    shipped: str = ""
    seen: str = ""
    """The number of examples behind the value, in words, unless it covers the whole split."""


@event("train.order", FACT)
class TrainOrder(Event):
    """Workers cannot start at an arbitrary example: `reason` says why, and what to do about it.

    Reported once, by the first worker.
    """

    run: Name
    reason: str


@event("train.unjudged", FACT)
class TrainUnjudged(Event):
    """Evaluations lack `metric`, which judges the run, so the run has no best checkpoint.

    The run ends after its steps. `metrics` are the available metrics. Reported once.
    """

    run: Name
    step: Count
    metric: str
    metrics: tuple[str, ...] = ()


@event("train.measured", FACT)
class TrainMeasured(Event):
    """A measure of a stall-measuring run was completed, in turn `repeat` (from 1).

    `seconds`: the mean time of a step, by worker. `steps`: the number of steps, by worker.
    `straggler`: the seconds that a step of all workers would wait for the slowest worker, beyond
    the mean step. `examples`: the examples of a step. `bytes`: the size of the files from which a
    worker reads its examples (0: it reads none).
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
    """The run has completed its steps, and its last checkpoint is written.

    Its workers are free for other runs while that checkpoint is evaluated and copied to the
    machine of the controller.
    """

    run: Name
    step: Count


@event("train.finished", FACT)
class TrainFinished(Event):
    """The run completed its steps, or the user stopped it.

    Its results are on the controller's machine or in its bucket. `reason`, a clause: why it ended
    before it completed its steps (`--stop-when`).
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
    """The run ended before it completed its steps. `reason` is one sentence."""

    run: Name
    reason: str
    step: Count = 0


@dataclass(frozen=True, kw_only=True)
class AgentLine(Event):
    """A line that the agent of a VM reports about this VM.

    It becomes an event only if the controller creates one from it.
    """


@dataclass(frozen=True, kw_only=True)
class AgentStarted(AgentLine):
    """The agent of the VM started."""

    kind = "agent.started"
    pid: Count


@dataclass(frozen=True, kw_only=True)
class OfProcess(AgentLine):
    """Fields of every line about a process of a run on the VM: its run, role and name."""

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
    """A process ended with `code` (None: unknown); `tail` is the end of its output."""

    kind = "process.exited"
    code: int | None
    tail: str


@dataclass(frozen=True, kw_only=True)
class ProcessGaveUp(OfProcess):
    """A process failed too often to be restarted; `said` is the end of its output."""

    kind = "process.gave_up"
    said: str


@dataclass(frozen=True, kw_only=True)
class ProcessUnfit(OfProcess):
    """A process ended because the VM lacks what it was rented for. It is not restarted.

    `reason` is a clause.
    """

    kind = "process.unfit"
    reason: str


@dataclass(frozen=True, kw_only=True)
class TrafficCounted(AgentLine):
    """Bytes that the VM has sent and received since its start."""

    kind = "vm.traffic"
    sent: Count
    received: Count


@dataclass(frozen=True, kw_only=True)
class PreemptionNoticed(AgentLine):
    """The VM's metadata server announced its preemption.

    Work on the VM has `seconds` left, according to the VM's scheduling.
    """

    kind = "vm.preemption_notice"
    seconds: Amount = 30.0


_OF_CHIEF: dict[str, type[Event]] = {
    event_class.kind: event_class
    for event_class in (
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
        TrainEpoch,
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
    line_class.kind: line_class
    for line_class in (
        AgentStarted,
        ProcessStarted,
        ProcessExited,
        ProcessGaveUp,
        ProcessUnfit,
        TrafficCounted,
        PreemptionNoticed,
    )
}


def line_fields(event: Event) -> dict[str, object]:
    """Return the fields of an event's line, with each text cut to the accepted length."""
    return {
        name: checks.clipped(value) if isinstance(value, str) else value
        for name, value in event.values.items()
    }


def from_chief(line: bytes, run: str, since: int, until: int) -> Event:
    """Read an event from a line of the chief of `run`.

    Its time must lie between `since` and `until` (ns), with a tolerance of one day. Raises
    ValueError for any other line.
    """
    found = read_foreign(line, _OF_CHIEF, VM, since, until)
    if found.values["run"] != run:
        raise ValueError(f"the {found.kind} event belongs to another run")
    return found


def from_agent(line: bytes, since: int, until: int) -> AgentLine:
    """Read an event from a line of an agent, as `from_chief` does for a chief."""
    found = read_foreign(line, _OF_AGENT, VM, since, until)
    assert isinstance(found, AgentLine)
    return found
