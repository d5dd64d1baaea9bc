"""What a worker measures: a line of metrics about every second, the parts of a step, gradient
noise, and traces.

The training thread adds its steps, the thread that talks to the chief takes the sums. The global
step before and after tells how many other workers' gradients arrived while ours was computed
(staleness).
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
from ...protocol.measures.step_parts import Operation, StepParts, Trace, packed
from ..folder import RunFolder
from ..role import log
from ..tf.graph_mode import tensorflow
from ..training.graph.worker import WorkerGraph

_UNLIKE = 0.01
"""Seconds by which two clocks may differ about one step."""
_TRAVEL = ("pull", "push")

COUNT = 8
"""Mini-batches of one estimate: the noise of |G|^2 falls with the number of their pairs, their cost
with their own.
"""

AT_LEAST = 300.0
TIMES = 100.0
"""Seconds between two traces, and how many times the last one's extra cost."""
WARM = 20
"""Steps before a trace: the first ones also build what later ones find."""
_LOOK_EVERY = 0.5
_LABEL = re.compile(r"\S+ = (\w+)\(")
_TRANSFER = re.compile(r"edge_\d+_.+ from \S+ to \S+")


class Meter:
    """Sums of the current second."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._clear()
        self._stepped = 0.0
        self.steps = 0
        self.usual = 0.0
        """A slow average of a step's seconds; what counts as stuck depends on it."""

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
        """One step: the global step after it, its loss, examples, mini-batch, seconds of computing
        and of waiting, what its learning rate was divided by, and where its seconds went.
        """
        with self._lock:
            now = time.monotonic()
            if self.steps:
                self._gap = max(self._gap, now - self._stepped)
            self._stepped = now
            self.steps += 1
            if not self.usual:
                self.usual = compute
            else:
                self.usual = 0.9 * self.usual + 0.1 * compute
            self._steps += 1
            self._step = step
            self._batch = batch
            self._divisor = divisor
            self._samples += samples
            self._loss += loss
            self._compute += compute
            self._wait += wait
            self._staleness += staleness
            self._parts = self._parts.plus(parts)

    def traced(self, seconds: float) -> None:
        """A step was made that took so many seconds because it was traced: it is counted nowhere,
        and its time is told.
        """
        with self._lock:
            self._traced += seconds
            self._stepped += seconds

    def measured(self, gradients: Gradients) -> None:
        """What was measured of the gradients since the last line, which seldom has more than one
        such estimate.
        """
        with self._lock:
            self._gradients.append(gradients)

    def take(self) -> dict[str, Any] | None:
        """The line since the last one; None if no step was made."""
        with self._lock:
            if not self._steps:
                return None
            loss = self._loss / self._steps
            line = {
                "time": time.time_ns(),
                "worker": self._worker,
                "step": self._step,
                "steps": self._steps,
                "samples": self._samples,
                "loss": round(loss, 6) if math.isfinite(loss) else None,
                "batch_size": self._batch,
                "compute_seconds": round(self._compute, 6),
                "wait_seconds": round(self._wait, 6),
                "gap_seconds": round(self._gap, 6),
                "staleness": round(self._staleness / self._steps, 2),
                "learning_rate_divisor": round(self._divisor, 6),
                "split": self._parts.told,
            }
            if self._traced:
                line["traced_seconds"] = round(self._traced, 6)
            for name in ("squared", "signal", "noise") if self._gradients else ():
                mean = sum(getattr(gradient, name) for gradient in self._gradients) / len(
                    self._gradients
                )
                line[f"gradient_{name}"] = float(f"{mean:.6g}")
            self._clear()
            return line

    def _clear(self) -> None:
        self._steps = self._step = self._samples = self._batch = self._staleness = 0
        self._loss = self._compute = self._wait = self._gap = self._divisor = 0.0
        self._gradients: list[Gradients] = []
        self._parts = StepParts()
        self._traced = 0.0


# Where the seconds of one step went, from the moments that were seen in it.
#
# The step waits for its mini-batch, then for what it still lacks of the variables, then computes
# until the last gradient is there, then pushes until all are applied; each part begins where the
# one before it ended. A moment that comes before the one it should follow took no exposed time.
# Pulling begins with the step, and gradients leave as soon as each is there, after the loss: that
# much of either was hidden.


def moments(built: WorkerGraph) -> list[object]:
    """What of a step's moments is fetched, in the order that `parts` takes."""
    return [built.fed, built.pulled, built.forward, built.backward]


def fetches(built: WorkerGraph) -> list[object]:
    """What a worker runs in each step; a measured step is the same one."""
    return [
        built.loss,
        built.before,
        built.after,
        built.examples,
        built.weight,
        moments(built),
        built.step,
    ]


def parts(began: float, seen: Sequence[float], ended: float) -> StepParts:
    """The parts of a step from `began` to `ended`; all in seconds since 1970 by one clock."""

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
    """The parts of a step that lasted `seconds` in all, from the end of the one before it.

    `taking`: until its examples were in the process's hands; `between`: from the step before until
    this one began. An emulated accelerator computes for `pace` seconds, and what waited meanwhile
    was hidden. A step in which somebody set the clock is not split.
    """
    if parts.step > seconds + _UNLIKE:
        return StepParts(rest=seconds)
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


# How much of a worker's gradient is noise: what the planner needs to tell how steps depend on the
# mini-batch.
#
# With G the gradient of the whole data and Sigma the covariance of one example's, a mini-batch of b
# examples has E|g|^2 = |G|^2 + tr(Sigma) / b. Squared norms at two sizes tell both parts, and their
# ratio tr(Sigma) / |G|^2 is the noise scale, in examples (S. McCandlish, J. Kaplan, D. Amodei et
# al., "An empirical model of large-batch training", arXiv 1812.06162, appendix A.1). Scavenger (S.
# Tyagi, P. Sharma, CCGrid 2023, arXiv 2303.06659) takes the norms of K workers' gradients and of
# their mean, which only synchronous training has.
#
# Here one worker is all K: now and then it computes the gradients of COUNT mini-batches that nobody
# applies, and takes the squared norm of each, and of their mean. That is the same estimate with K =
# COUNT, for synchronous and asynchronous training alike, also with a single worker. The gradients
# that it does apply would not do: the next one is computed after the last one's step, which has
# turned its noise around, so their product is too small by the learning rate times g' H g (H: the
# Hessian); once a run fluctuates around its minimum it is even negative.
#
# All gradients of an estimate are of the same variables, which the worker reads once and keeps
# until the last of them, while steps pass between them. Those steps, its own and other workers',
# would turn G away: at a learning rate of half the inverse of the largest curvature, with 8
# workers, the mean of eight successive gradients has a fifth of the squared norm. Rows of
# embeddings are the exception: which of them a mini-batch needs is seen with it, so they are read
# for each gradient, and steps on them count.
#
# Each gradient takes a forward and a backward pass and a mini-batch of examples that no step has
# had. An estimate begins only when it fits into a share of the worker's time so far, by what a step
# takes and all estimates took; at other times nothing is done, for the graph of a step is as it
# was. Nothing is sent to the parameter servers.


@dataclass(frozen=True, slots=True)
class Gradients:
    """An estimate. `squared`: the mean squared norm of a mini-batch's gradient, signal + noise /
    batch.

    `signal` is |G|^2 (below zero at times, for it has no bias), `noise` tr(Sigma), both as they
    are: averages of many are taken before their ratio is.
    """

    squared: float
    signal: float
    noise: float


def estimate(local: float, aggregated: float, batch: float, count: int) -> Gradients:
    """From the mean of `count` gradients' squared norms, and the squared norm of their mean.

    `batch`: examples of each, the harmonic mean where they differ, because noise goes with 1 /
    batch.
    """
    signal = (count * aggregated - local) / (count - 1)
    noise = (local - aggregated) * batch * count / (count - 1)
    return Gradients(local, signal, noise)


class NoiseProbe:
    """Measures within `share` of the worker's time. A share of 0 is never, and of 1 beside every
    step.
    """

    def __init__(self, built: WorkerGraph, share: float) -> None:
        self._cleared = built.cleared
        self._variables = built.variables
        self._fetches = [built.squared, built.summed, built.examples]
        self._share = share
        self._began = 0.0
        self.spent = 0.0
        """Seconds that it has taken so far."""
        self._cost = 0.0
        self._session: Any = None
        self._values: dict[Any, Any] = {}
        """The variables of the present estimate."""
        self._norms: list[float] = []
        self._shares: list[float] = []

    def begin(self, seconds: float) -> None:
        """The first step is done and took so long, most of which TensorFlow prepares its graph."""
        self._began = time.monotonic()
        self._cost = seconds

    def due(self, usual: float, others: int = 0) -> bool:
        """Whether to compute the next gradient now. `usual`: seconds of a step; `others` wait while
        this measures.
        """
        if not self._began or not self._share:
            return False
        if self._norms or self._share == 1:
            return True
        left = self._share / (1 + others) * (time.monotonic() - self._began) - self.spent
        return left >= self._cost + COUNT * usual

    def look(self, session: Any, feeds: Mapping[Any, Any]) -> Gradients | None:
        """Compute one gradient, the first of an estimate on the variables as they are now, the
        others on the same.

        Returns the estimate if it was the last one that it takes. `feeds`: what the mini-batch is
        fed with.
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
        """Measure no more."""
        self._share = 0.0
        self._norms = []
        self._values = {}


# A rare full trace of one step, for the user who asks for it by a file in the run's folder on this
# VM.
#
# TensorFlow writes down every operation of a traced step, also those of the parameter servers,
# which makes it several times slower (3 to 10 times were reported, TensorFlow's issue 5981). So a
# traced step is counted in no speed and by no mini-batch, and the next trace is taken when its cost
# is a hundredth of the time since: not before max(300 s, 100 times what the last one cost more than
# a usual step).


class Tracer:
    """Traces of the worker `name` of the run in `folder`."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._wanted = folder.path / layout.TRACE_WANTED
        self._looked = 0.0
        self._next = 0.0

    def options(self, steps: int) -> dict[str, Any]:
        """With what the next step is run, to be traced if somebody wants it; `steps` were made so
        far.
        """
        now = time.monotonic()
        if steps < WARM or now - self._looked < _LOOK_EVERY:
            return {}
        self._looked = now
        if not self._wanted.exists():
            return {}
        if now < self._next:
            self._answer(layout.TRACE_REFUSED, f"{self._next - now:.0f}".encode())
            self._no_longer_wanted()
            return {}
        tf = tensorflow()
        return {
            "options": tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE),
            "run_metadata": tf.RunMetadata(),
        }

    def took(
        self, options: dict[str, Any], step: int, began: float, seconds: float, usual: float
    ) -> None:
        """The step is over, which began at `began` (since 1970) and lasted so many `seconds`, not
        `usual` ones.
        """
        self._next = time.monotonic() + max(AT_LEAST, TIMES * (seconds - usual))
        self._no_longer_wanted()  # while it is being written, too: nobody is refused what he is given
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

    def _no_longer_wanted(self) -> None:
        with contextlib.suppress(OSError):  # who asked takes it away, too
            self._wanted.unlink(missing_ok=True)


def _operations(metadata: Any, began: float) -> Iterator[tuple[str, Operation]]:
    """What ran in the step, and on which device."""
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
