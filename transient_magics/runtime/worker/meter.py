"""A worker's measurements: a line of metrics a second, parts of steps, gradient noise and traces.

The training thread adds steps, and the thread of the chief's connection takes the sums. The global
step before and after a step says how many gradients of other workers were applied while this
worker computed its own (staleness).
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...files import write_atomically
from ...protocol import layout
from ...protocol.chief_messages import EPOCHS
from ...protocol.step_parts import Operation, StepParts, Trace, packed
from ..folder import RunFolder
from ..role import log
from ..tf.graph_mode import tensorflow
from ..training.graph.worker import WorkerGraph

_CLOCK_TOLERANCE = 0.01
"""Seconds by which two clocks may differ about one step."""
_TRAVEL = ("pull", "push")

COUNT = 8
"""Mini-batches of one estimate.

The noise of |G|^2 falls with the number of their pairs, and the cost grows with their number.
"""

AT_LEAST = 300.0
TIMES = 100.0
"""Pause between two traces: the larger one of seconds, and this many times a trace's extra cost."""
WARM = 20
"""Steps before a trace; the first steps also fill TensorFlow's caches."""
_CHECK_SECONDS = 0.5
_LABEL = re.compile(r"\S+ = (\w+)\(")
_TRANSFER = re.compile(r"edge_\d+_.+ from \S+ to \S+")


class Meter:
    """Sums over the steps since the last line of metrics.

    The training thread adds steps, and another thread takes the lines.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._last_step_at = 0.0
        self.steps = 0
        """Steps in all."""
        self.usual = 0.0
        """Slow average of a step's seconds; the limit of the watchdog depends on it."""
        # Sums since the last line:
        self._count = 0
        self._step = 0
        self._samples = 0
        self._batch = 0
        self._staleness = 0
        self._loss = 0.0
        self._compute = 0.0
        self._wait = 0.0
        self._gap = 0.0
        self._divisor = 0.0
        self._traced = 0.0
        self._gradients: list[Gradients] = []
        self._parts = StepParts()
        self._epochs: dict[int, list[Any]] = {}
        """Number of steps of each epoch, and the sum of what they add to its training metrics."""

    def add(
        self,
        step: int,
        loss: float,
        samples: int,
        batch: int,
        compute: float,
        wait: float,
        staleness: int,
        divisor: float,
        parts: StepParts,
    ) -> None:
        """Add one step.

        Parameters
        ----------
        step
            Global step after it.
        loss
            Its loss.
        samples, batch
            Examples that it had, and size of its mini-batch.
        compute, wait
            Seconds of computing, and of waiting.
        staleness
            Gradients of other workers that were applied while this one was computed.
        divisor
            Divisor of its learning rate.
        parts
            Parts of its seconds.
        """
        with self._lock:
            now = time.monotonic()
            if self.steps:
                self._gap = max(self._gap, now - self._last_step_at)
            self._last_step_at = now
            self.steps += 1
            if not self.usual:
                self.usual = compute
            else:
                self.usual = 0.9 * self.usual + 0.1 * compute
            self._count += 1
            self._step = step
            self._batch = batch
            self._divisor = divisor
            self._samples += samples
            self._loss += loss
            self._compute += compute
            self._wait += wait
            self._staleness += staleness
            self._parts = self._parts.plus(parts)

    def add_metrics(self, epoch: int, added: Any) -> None:
        """Add what a step adds to the training metrics of an epoch, a NumPy vector."""
        with self._lock:
            sums = self._epochs.get(epoch)
            if sums is None:
                self._epochs[epoch] = [1, added.astype("float64")]
            else:
                sums[0] += 1
                sums[1] += added

    def traced(self, seconds: float) -> None:
        """Add a traced step of `seconds`: no sum counts it, and its time is reported separately."""
        with self._lock:
            self._traced += seconds
            self._last_step_at += seconds

    def measured(self, gradients: Gradients) -> None:
        """Add an estimate of the gradients' noise; a line seldom has more than one."""
        with self._lock:
            self._gradients.append(gradients)

    def take(self) -> dict[str, Any] | None:
        """Return the line of metrics since the last one; None if there was no step."""
        with self._lock:
            if not self._count:
                return None
            loss = self._loss / self._count
            line = {
                "time": time.time_ns(),
                "worker": self._worker,
                "step": self._step,
                "steps": self._count,
                "samples": self._samples,
                "loss": round(loss, 6) if math.isfinite(loss) else None,
                "batch_size": self._batch,
                "compute_seconds": round(self._compute, 6),
                "wait_seconds": round(self._wait, 6),
                "gap_seconds": round(self._gap, 6),
                "staleness": round(self._staleness / self._count, 2),
                "learning_rate_divisor": round(self._divisor, 6),
                "split": self._parts.rounded,
            }
            if self._traced:
                line["traced_seconds"] = round(self._traced, 6)
            for name in ("squared", "signal", "noise") if self._gradients else ():
                values = [getattr(gradients, name) for gradients in self._gradients]
                line[f"gradient_{name}"] = float(f"{sum(values) / len(values):.6g}")
            if self._epochs:
                line[EPOCHS] = {
                    str(epoch): [steps, *map(_rounded, added)]
                    for epoch, (steps, added) in self._epochs.items()
                }
            self._clear()
            return line

    def _clear(self) -> None:
        self._count = 0
        self._step = 0
        self._samples = 0
        self._batch = 0
        self._staleness = 0
        self._loss = 0.0
        self._compute = 0.0
        self._wait = 0.0
        self._gap = 0.0
        self._divisor = 0.0
        self._traced = 0.0
        self._gradients = []
        self._parts = StepParts()
        self._epochs = {}


def _rounded(value: float) -> float | None:
    """Return nine digits of a number; None for one that is not finite, which JSON lacks."""
    if math.isfinite(value):
        return float(f"{value:.9g}")
    return None


# The parts of one step's seconds, from moments that its graph records.
#
# A step waits for its mini-batch, then for variables that are still missing, then computes until
# the last gradient, then pushes until all gradients are applied. Each part begins where the part
# before it ended. A moment that comes before the moment that it should follow took no exposed time.
# Pulling begins with the step, and each gradient is sent as soon as it is computed, after the loss:
# these parts of pulling and pushing are hidden.


def moments(built: WorkerGraph) -> list[object]:
    """Return the tensors of a step's moments, in the order that `parts` takes."""
    return [built.fed, built.pulled, built.forward, built.backward]


def metrics(built: WorkerGraph) -> list[object]:
    """Return the fetch of what a step adds to the training metrics; empty if it adds nothing."""
    if built.metrics is None:
        return []
    return [built.metrics]


def fetches(built: WorkerGraph) -> list[object]:
    """Return the fetches of an asynchronous step; measures time the same step."""
    return [
        built.loss,
        built.before,
        built.after,
        built.examples,
        built.weight,
        moments(built),
        metrics(built),
        built.step,
    ]


def parts(began: float, seen: Sequence[float], ended: float) -> StepParts:
    """Return the parts of a step.

    Parameters
    ----------
    began, ended
        Start and end of the step, in seconds since 1970.
    seen
        Values of `moments`, by the same clock.
    """

    def within(moment: float, earliest: float) -> float:
        return min(max(float(moment), earliest), max(ended, began))

    fed = within(seen[0], began)
    pulled = within(seen[1], began)
    ready = max(fed, pulled)
    backward = within(seen[3], ready)
    forward = min(within(seen[2], ready), backward)
    return StepParts(
        input=fed - began,
        pull=ready - fed,
        compute=backward - ready,
        push=max(ended - backward, 0.0),
        hidden_pull=min(fed, pulled) - began,
        hidden_push=backward - forward,
        own=backward - forward,
    )


def whole(
    parts: StepParts,
    seconds: float,
    taking: float,
    barrier: float,
    between: float,
    pace: float = 0.0,
) -> StepParts:
    """Return the parts of a step with the time around it.

    Parameters
    ----------
    parts
        Parts of its run in TensorFlow.
    seconds
        Duration since the end of the step before.
    taking
        Seconds until its examples were in this process.
    barrier
        Seconds at the barrier.
    between
        Seconds from the end of the step before to the start of this one.
    pace
        Seconds that an emulated accelerator computes (0: none). Waiting in that time is hidden.
    """
    if parts.step > seconds + _CLOCK_TOLERANCE:
        return StepParts(rest=seconds)  # the clock was set during the step
    parts = parts._replace(input=parts.input + taking, barrier=barrier)
    left = max(seconds - between - parts.step, 0.0)
    if not pace:
        return parts._replace(rest=between + left)
    computed = max(parts.compute, min(pace, parts.step - barrier + left))
    waited = parts.input + parts.pull + parts.push
    longer = max(parts.step - barrier + left - computed, 0.0)
    if waited:
        part = min(longer / waited, 1.0)
    else:
        part = 0.0
    exposed = {name: part * getattr(parts, name) for name in ("input", "pull", "push")}
    hidden = {
        f"hidden_{name}": getattr(parts, f"hidden_{name}") + (1 - part) * getattr(parts, name)
        for name in _TRAVEL
    }
    rest = between + max(longer - waited, 0.0)
    return parts._replace(
        **exposed, **hidden, compute=computed, rest=rest, own=max(pace, parts.compute)
    )


# The noise of a worker's gradients: planners compute from it how steps depend on the mini-batch.
#
# With G the gradient over all data and Sigma the covariance of the gradient of one example, a
# mini-batch of b examples has E|g|^2 = |G|^2 + tr(Sigma) / b. Squared norms at two sizes give both
# terms, and their ratio tr(Sigma) / |G|^2 is the noise scale, in examples (S. McCandlish, J.
# Kaplan, D. Amodei et al., "An empirical model of large-batch training", arXiv 1812.06162, appendix
# A.1). Scavenger (S. Tyagi, P. Sharma, CCGrid 2023, arXiv 2303.06659) takes the norms of the
# gradients of K workers and of their mean, which only synchronous training has.
#
# Here one worker takes the part of all K. From time to time it computes the gradients of COUNT
# mini-batches that are never applied, and takes the squared norms of each and of their mean. That
# is the same estimate with K = COUNT, for synchronous and asynchronous training, even with one
# worker. The gradients that it applies would not do. The next one is computed after the step of the
# last one, which has turned its noise around: their product is too small by the learning rate times
# g' H g (H: the Hessian). Once a run fluctuates around its minimum it is even negative.
#
# All gradients of an estimate are of the same variables. The worker reads them once and keeps them
# until the last gradient, while steps are taken in between. Those steps, its own and others', would
# turn G away: at a learning rate of half the inverse of the largest curvature, with 8 workers, the
# mean of eight successive gradients has a fifth of the squared norm. Rows of embeddings are the
# exception: which rows a mini-batch needs is known only with it. So they are read for each
# gradient, and steps change them.
#
# Each gradient takes a forward and a backward pass, and a mini-batch that no step uses. An estimate
# begins only when it fits into a share of the worker's time, by the time of a step and of all
# estimates so far. At other times it costs nothing: the graph of a step is unchanged. Nothing is
# sent to the parameter servers.


@dataclass(frozen=True, slots=True)
class Gradients:
    """An estimate of the gradients' signal and noise.

    Take the averages of many estimates before their ratio.
    """

    squared: float
    """Mean squared norm of the gradient of a mini-batch: signal + noise / batch."""
    signal: float
    """|G|^2; it has no bias, so it is sometimes negative."""
    noise: float
    """tr(Sigma)"""


def estimate(local: float, aggregated: float, batch: float, count: int) -> Gradients:
    """Return the estimate from `count` gradients.

    Parameters
    ----------
    local
        Mean of their squared norms.
    aggregated
        Squared norm of their mean.
    batch
        Examples of each; the harmonic mean if they differ, because noise is proportional to
        1 / batch.
    count
        Number of gradients.
    """
    signal = (count * aggregated - local) / (count - 1)
    noise = (local - aggregated) * batch * count / (count - 1)
    return Gradients(local, signal, noise)


class NoiseProbe:
    """Measures the noise of gradients within `share` of the worker's time.

    A share of 0 never measures, and a share of 1 measures beside every step.
    """

    def __init__(self, built: WorkerGraph, share: float) -> None:
        self._cleared = built.cleared
        self._variables = built.variables
        self._fetches = [built.squared, built.summed, built.examples]
        self._share = share
        self._began = 0.0
        self.spent = 0.0
        """Seconds that all estimates took."""
        self._cost = 0.0
        self._session: Any = None
        self._values: dict[Any, Any] = {}
        """The variables of the present estimate."""
        self._norms: list[float] = []
        self._shares: list[float] = []

    def begin(self, seconds: float) -> None:
        """Start to measure after the first step, which took `seconds`.

        TensorFlow prepared its graph during most of that time, as it will for the first gradient.
        """
        self._began = time.monotonic()
        self._cost = seconds

    def due(self, usual: float, others: int = 0) -> bool:
        """Return whether to compute the next gradient now.

        `usual` is the time of a step in seconds; `others` is the number of workers that wait.
        """
        if not self._began or not self._share:
            return False
        if self._norms or self._share == 1:
            return True
        left = self._share / (1 + others) * (time.monotonic() - self._began) - self.spent
        return left >= self._cost + COUNT * usual

    def measure(self, session: Any, feeds: Mapping[Any, Any]) -> Gradients | None:
        """Compute the next gradient of an estimate; return the estimate after its last gradient.

        The first gradient is of the current variables, and the others are of the same values.
        `feeds` feeds the mini-batch.
        """
        began = time.monotonic()
        if session is not self._session or not self._norms:
            _, values = session.run([self._cleared, list(self._variables)])
            self._values = dict(zip(self._variables, values, strict=True))
            self._session = session
            self._norms = []
            self._shares = []
        squared, summed, examples = session.run(self._fetches, {**feeds, **self._values})
        self._norms.append(float(squared))
        self._shares.append(1 / max(int(examples), 1))
        self.spent += time.monotonic() - began
        self._cost = 0.0
        if len(self._norms) < COUNT:
            return None
        local = sum(self._norms) / COUNT
        batch = COUNT / sum(self._shares)
        self._norms = []
        self._values = {}
        found = estimate(local, float(summed) / COUNT**2, batch, COUNT)
        if math.isfinite(found.noise) and math.isfinite(found.signal):
            return found
        return None

    def give_up(self) -> None:
        """Never measure again."""
        self._share = 0.0
        self._norms = []
        self._values = {}


class Tracer:
    """Full traces of single steps of the worker `name` of the run in `folder`.

    A file in the run's folder on this VM requests a trace. TensorFlow records every operation of a
    traced step, also on the parameter servers, which makes it several times slower (3 to 10 times
    were reported, TensorFlow's issue 5981). So no speed and no mini-batch size counts a traced
    step, and traces cost at most a hundredth of the time: the next one is taken no earlier than
    max(300 s, 100 times the extra cost of the last one).
    """

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._request = folder.path / layout.TRACE_WANTED
        self._checked_at = 0.0
        self._next = 0.0

    def options(self, steps: int) -> dict[str, Any]:
        """Return TensorFlow's arguments to trace the next step if requested; else nothing.

        `steps` is the number of steps so far. Checks for the request at most every half second.
        """
        now = time.monotonic()
        if steps < WARM or now - self._checked_at < _CHECK_SECONDS:
            return {}
        self._checked_at = now
        if not self._request.exists():
            return {}
        if now < self._next:
            self._answer(layout.TRACE_REFUSED, f"{self._next - now:.0f}".encode())
            self._clear_request()
            return {}
        tf = tensorflow()
        return {
            "options": tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
            "run_metadata": tf.RunMetadata(),
        }

    def took(
        self, options: dict[str, Any], step: int, began: float, seconds: float, usual: float
    ) -> None:
        """Write the trace of a step on another thread.

        `began` is its start in seconds since 1970, `seconds` its duration, `usual` that of others.
        """
        self._next = time.monotonic() + max(AT_LEAST, TIMES * (seconds - usual))
        # Before the trace is written: the next check would refuse the request that is served now.
        self._clear_request()
        writing = (options["run_metadata"], step, began, seconds, usual)
        threading.Thread(target=self._write, args=writing, daemon=True, name="trace").start()

    def _write(self, metadata: Any, step: int, began: float, seconds: float, usual: float) -> None:
        working = time.thread_time()
        names = list[str]()
        operations = list[Operation]()
        for device, operation in _operations(metadata, began):
            if device not in names:
                names.append(device)
            operations.append(operation._replace(device=names.index(device)))
        trace = Trace(self._name, step, began, seconds, tuple(names), tuple(operations))
        self._answer(layout.TRACE, packed(trace))
        cost = seconds - usual + time.thread_time() - working
        self._next = max(self._next, time.monotonic() + TIMES * cost)
        log(f"step {step} was traced: it took {seconds:.3f} s, {cost:.3f} s more than usual")

    def _answer(self, name: str, content: bytes) -> None:
        try:
            write_atomically(self._folder.path / name, content, durable=False)
        except OSError as error:  # a full disk costs the trace, not training
            log(f"no trace is written: {error}")

    def _clear_request(self) -> None:
        with contextlib.suppress(OSError):  # the process that wrote it removes it, too
            self._request.unlink(missing_ok=True)


def _operations(metadata: Any, began: float) -> Iterator[tuple[str, Operation]]:
    """Yield the operations of the step, each with its device."""
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name in ("_SOURCE", "_SINK"):
                continue
            if node.all_start_nanos:
                start = node.all_start_nanos / 1e3
            else:
                start = float(node.all_start_micros)
            begin = start + node.op_start_rel_micros
            end = start + node.all_end_rel_micros
            if found := _LABEL.match(node.timeline_label):
                kind = found[1]
            else:
                kind = node.node_name.rpartition(":")[2]
            if found := _TRANSFER.search(node.timeline_label):
                label = found[0]
            else:
                label = ""
            yield (
                device.device,
                Operation(
                    0, node.node_name, kind, begin - 1e6 * began, max(end - begin, 0.0), label
                ),
            )
