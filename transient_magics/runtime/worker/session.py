"""A worker's training: its session, and the loop that survives lost parameter servers.

On an error that means "a parameter server went away" the session is
closed, a new one opened, and training goes on when nothing is uninitialised any more.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from typing import Any

from ...errors import TrainingError
from ...protocol.agent_commands import Assignment
from ...protocol.run import RunSpec
from ..files.checkpoints import Checkpoints, Saved, deliver
from ..folder import RunFolder
from ..role import Stopwatch, log
from ..tf import placement
from ..tf.graph_mode import tensorflow
from ..training.batching import MiniBatch
from ..training.examples import Examples
from ..training.step_rules import divisor
from ..training.usercode import reason, sentence
from . import gpu
from .blocks import Blocks
from .chief_link import ChiefLink, answer
from .gpu import Held, Pace
from .graph import GraphMaker, Made
from .meter import Meter, NoiseProbe, Tracer, fetches, parts, whole
from .steps import LocalVariables, Turn

_LOOK_AGAIN = 0.1
"""Seconds between two looks for a parameter server that is away."""
_CLOSING = 2.0
_CLOSING_LOST = 0.2
"""Seconds for the end of a session; that of one whose server is gone hangs, and the next is not
kept waiting.
"""
_FRUITLESS = 3
"""Sessions without a step that count as life all the same: a parameter server that comes back may
lose some.
"""
IN_VAIN = 5
"""Sessions without a step after which the reason is sought here."""


class Training:
    """One worker's part of a run. `run` returns when training is over or `stop` was set."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        assignment: Assignment,
        link: ChiefLink,
        watch: Stopwatch,
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._assignment = assignment
        self._link = link
        self._watch = watch
        self.stop = threading.Event()
        self.meter = Meter(assignment.name)
        self.alive = time.monotonic()
        """When something last moved; the watchdog looks at it."""
        self.leave_at = math.inf
        """When the last step should be over (by `time.monotonic`), because the VM goes soon after.
        """
        self.blocks: Blocks | None = None
        """Where records that come in blocks are from."""
        self._fruitless = 0
        """Sessions in a row that were ready and made no step."""
        self._pace = Pace(spec.pace_seconds)
        self._tracer = Tracer(folder, assignment.name)
        self._maker = GraphMaker(folder, spec, len(assignment.ps), watch, assignment.dispatcher)

    @property
    def starved(self) -> bool:
        """Whether it waits for mini-batches that others prepare: none has come since the last step."""
        return not self._spec.reads_records and self._examples.added_at <= self.alive

    def make_ready(self) -> None:
        """Do ahead of all else what takes neither the chief nor a GPU, which the run before has."""
        self._maker.make_ready()

    def define(self) -> None:
        """Import TensorFlow and what the run names, and run the cell, as far as its graph needs it."""
        self._maker.define()

    def listen(self) -> None:
        """Start this worker's server. Raises GpuUnseenError where it has not the GPU that it should
        have.
        """
        self._address = f"{self._assignment.address}:{_free_port()}"
        config = placement.plain_config(self._spec.threads)
        # A one-task cluster of a throw-away job: who else there is comes with the session, not with
        # the server.
        self._server = tensorflow().train.Server(
            {"boot": [self._address]}, job_name="boot", task_index=0, config=config
        )
        if self._assignment.gpu:
            gpu.require_gpu(self._assignment.gpu, self._server, self._spec.threads)

    def build(self, number: int) -> None:
        """Make this worker's graph under `number`."""
        self._config = placement.worker_config(
            self._assignment.ps, number, self._address, self._spec.threads
        )
        self._number = number
        self._use(self._maker.make(number))
        if self._maker.note:
            self._link.reading(self._maker.note)

    def _use(self, made: Made) -> None:
        built = made.built
        self._graph, self._built, self._examples = (
            made.graph,
            built,
            Examples(made.examples, self.blocks),
        )
        self._batch = MiniBatch(made.examples.batch)
        self._fetches = fetches(built)
        self._held = Held(built, self.stop)
        if self.blocks is not None:
            self.blocks.moved = self._moved
        self._noise = NoiseProbe(built, self._spec.noise_share)
        if self._spec.mode == "sync":
            self._turn = Turn(built, self.stop, self._moved)
        else:
            self._turn = None
        if built.push is not None:
            self._copy = LocalVariables(built, self._spec, self._number)
        else:
            self._copy = None
        self._moved()

    def run(self) -> None:
        """Step until the end of the run, through as many sessions as it takes."""
        self._pace.start()
        lost = placement.transient_errors()
        ended = tensorflow().errors.OutOfRangeError
        pause = 0.2
        while not self.stop.is_set():
            if not answer(
                self._assignment.ps
            ):  # TensorFlow would try in vain, and again only after a while
                self.stop.wait(_LOOK_AGAIN)
                continue
            if self.meter.steps:
                self._watch.lap("servers")
            session = self._open()
            anew = False
            limit = _CLOSING
            steps = self.meter.steps
            try:
                if self._wait_until_ready(session):
                    self._step_until_told(session)
                    self._hand_over(session)
            except lost as error:
                limit = _CLOSING_LOST
                self._link.report()  # of steps before the loss: they are not told as if they were made after it
                if self.meter.steps > steps:
                    self._watch = Stopwatch(time.time(), "steps again")
                log(
                    f"session lost, opening another: {type(error).__name__}: {str(error).splitlines()[0][:160]}"
                )
                if self._fruitless >= IN_VAIN and placement.may_be_own(error):
                    raise TrainingError(
                        f"no step succeeds: {reason(error, self._spec.line_offset)}"
                    ) from error
            except ended as error:
                why = sentence(self._examples.failure or error)
                if not self._maker.examples_from_file:
                    raise TrainingError(f"the examples cannot be read: {why}") from error
                self._maker.give_up_file(f"the examples cannot be read: {why}")
                anew = True
            finally:
                self._examples.stop()
                placement.close(session, limit)
                if self.meter.steps:
                    self._watch.lap("closing")
            if anew:
                self._use(self._maker.make(self._number))
            if self.meter.steps > steps:
                pause = 0.2
            else:
                pause = min(pause * 1.6, 2.0)
            self.stop.wait(pause)

    # --- the session -------------------------------------------------------------------------------------------------
    def _open(self) -> Any:
        tf = tensorflow()
        return tf.Session(self._server.target, graph=self._graph, config=self._config)

    def _wait_until_ready(self, session: Any) -> bool:
        """Wait until the chief has initialised or restored everything; False if we are to stop
        meanwhile.

        That is a sign of life, but not for ever: the step may fail in one session after the other.
        """
        while not self.stop.is_set():
            ready = not len(session.run(self._built.missing))
            self._fruitless += ready
            if not ready or self._fruitless <= _FRUITLESS:
                self._moved()
            if ready:
                break
            if self._folder.standby.exists():
                self._folder.prepared.touch()
            self.stop.wait(0.1)
        else:
            return False
        if self._copy:
            self._copy.pull(session)
        self._examples.start(session)
        self._watch.lap("session")
        return True

    def _step_until_told(self, session: Any) -> None:
        spec = self._spec
        meter = self.meter
        exhausted = tensorflow().errors.ResourceExhaustedError
        finished = time.monotonic()
        last = 0
        refused = None
        lasted = 0.0
        begins = True
        while not self.stop.is_set():
            started = time.monotonic()
            if started + max(meter.usual, lasted) > self.leave_at:
                self.stop.set()  # another step would seldom be finished, and others may wait for it at the barrier
                break
            given = self._link.batch
            size, share = self._batch.next(given)
            if (
                given and given[0] > size and given != refused
            ):  # a chief may have forgotten what fits
                refused = given
                self._link.exhausted(size)
            if size != last:  # a line of metrics is about one size
                self._link.report()
                last = size
            pace = self._pace.of(size / self._batch.declared)
            waited = 0.0
            counted = True
            weight = 0.0
            if begins:
                tracing = {}
            else:
                tracing = self._tracer.options(meter.steps)
            try:
                feeds = self._feeds(size, share)
                rate_divisor = feeds[self._built.divisor]
                fed = time.monotonic()
                clock = time.time()
                if self._turn is None:
                    if pace and not tracing:  # TensorFlow traces no run in two parts
                        loss, before, after, examples, weight, seen = self._held.take(
                            session, feeds, pace
                        )
                    else:
                        loss, before, after, examples, weight, seen, _ = session.run(
                            self._fetches, feeds, **tracing
                        )
                    split = parts(clock, seen, time.time())
                else:
                    made = self._turn.take(session, feeds, pace, **tracing)
                    loss = made.loss
                    before = made.before
                    after = made.after
                    examples = made.examples
                    split = made.parts
                    waited = made.waited
                    counted = made.counted
            except exhausted:
                if spec.batching == "uniform" or not self._batch.shrink(size):
                    raise
                log(f"{size} examples do not fit into memory; {self._batch.fits} it is from now on")
                self._link.exhausted(self._batch.fits)
                continue
            self._batch.record(size, float(weight))
            if self._turn is None and pace:
                # An emulated accelerator: the rest of its step is computing too, only not ours.
                self.stop.wait(max(0.0, pace - (time.monotonic() - started)))
            self.alive = (now := time.monotonic())
            self._fruitless = 0
            self._examples.stepped()
            lasted = now - started
            if not counted:  # too late for its round, or lost with it; but from now on the others wait for this worker
                self._link.stepping(None, 0, program=self._maker.fingerprint)
                continue
            first = not meter.steps
            if self._turn is None:
                staleness = max(0, int(after) - 1 - int(before))
            else:
                staleness = 0
            waited += started - finished
            if spec.batching == "uniform":
                batch = int(examples)
            else:
                batch = size
            computed = now - finished - waited
            split = whole(
                split,
                now - finished,
                fed - started,
                waited - (started - finished),
                started - finished,
                pace,
            )
            if tracing:  # no step like the others
                self._tracer.took(tracing, int(after), clock, now - started, meter.usual)
                meter.traced(now - finished)
            else:
                meter.add(
                    int(after),
                    float(loss),
                    int(examples),
                    batch,
                    computed,
                    waited,
                    staleness,
                    rate_divisor,
                    split,
                )
            finished = now
            if first:
                self._noise.begin(meter.usual)
                if math.isfinite(loss):
                    known_loss = float(loss)
                else:
                    known_loss = None
                self._link.stepping(known_loss, 0, self._pace.speed, self._maker.fingerprint)
            if begins:
                begins = False
                self._watch.lap("step")
                log(str(self._watch))
                if not first:  # that this worker steps again is told at once
                    self._link.report()
            if self._link.save_asked.is_set():
                self._save(session)
            if self._copy and self._copy.is_due(int(after)):
                self._hand_over(session)
            if after >= spec.train_steps:
                # Nobody steps beyond the end; the chief tells everybody as soon as it has seen it.
                self._link.report()
                self.stop.wait()
            else:
                finished += self._measure_noise(session, size, share)

    def _hand_over(self, session: Any) -> None:
        """Where the variables are this worker's own, put them where they are saved; whose place is
        taken ends.
        """
        if self._copy and not self._copy.push(session, int(session.run(self._built.before))):
            self._copy = None
            self.stop.set()
        self._moved()

    def _measure_noise(self, session: Any, size: int, share: float) -> float:
        """Compute one more gradient of such a mini-batch if it is time to; its seconds, not part of
        a step.
        """
        if self._turn:
            others = self._link.active - 1
        else:
            others = 0
        if not self._noise.due(self.meter.usual, others):
            return 0.0
        began = time.monotonic()
        try:
            if found := self._noise.look(session, self._feeds(size, share)):
                self.meter.measured(found)
        except tensorflow().errors.ResourceExhaustedError:
            log("the noise of the gradients is not measured: it does not fit into memory")
            self._noise.give_up()
        self._moved()
        return time.monotonic() - began

    def _feeds(self, size: int, share: float) -> dict[Any, Any]:
        """What a step of `size` examples is fed with, whose gradient has that share."""
        built = self._built
        feeds = self._examples.feeds(size)
        feeds |= {built.divisor: self._rate_divisor(), built.share: share}
        if self._spec.batching != "uniform":
            feeds[built.expected] = self._batch.expected(size)
        return feeds

    def _save(self, session: Any) -> None:
        """Write a checkpoint, as the published systems' chief worker does between two steps, and
        send it off.
        """
        self._link.save_asked.clear()
        built = self._built
        checkpoints = Checkpoints(self._folder.checkpoints, keep=1)
        try:
            step = int(session.run(built.before))
            saved = checkpoints.write(
                step, lambda prefix: session.run(built.saved, {built.checkpoint: prefix})
            )
        except (tensorflow().errors.OpError, OSError) as error:
            self._link.unsaved(sentence(error))
            if isinstance(error, placement.transient_errors()):
                raise
            return
        threading.Thread(
            target=self._deliver, args=(saved,), daemon=True, name="checkpoint"
        ).start()

    def _deliver(self, saved: Saved) -> None:
        given = self._assignment
        try:
            deliver(given.chief, self._spec.token, self._number, saved, self._folder.checkpoints)
        except (OSError, ValueError) as error:
            log(f"the checkpoint of step {saved.step} did not reach the chief: {error}")
            self._link.unsaved(sentence(error))

    def _moved(self) -> None:
        self.alive = time.monotonic()

    def _rate_divisor(self) -> float:
        spec = self._spec
        active = self._link.active
        return divisor(
            spec.lr_policy, synchronous=spec.mode == "sync", active=active, slots=spec.max_workers
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
