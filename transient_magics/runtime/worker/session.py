"""A worker's training: sessions that survive lost parameter servers, and the loop of its steps.

`Training.run` opens one TensorFlow session after the other. In each it waits until the chief has
initialised or restored all variables, and then steps (`_step_until_stopped`). An error that means
that a parameter server is gone ends the session and not the training.
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
from ..training.graph.worker import WorkerGraph
from ..training.step_rules import SMALLEST_RATE, divisor
from ..training.usercode import reason, sentence
from . import gpu
from .blocks import Blocks
from .chief_link import ChiefLink, answer
from .gpu import Pace
from .graph import FinishedGraph, GraphMaker
from .meter import Meter, NoiseProbe, Tracer, whole
from .steps import AsynchronousStep, LocalVariables, StepResult, SynchronousStep

_CHECK_SECONDS = 0.01
"""Pause between two checks whether the chief lets training continue at the limit."""
_POLL_SECONDS = 0.1
"""Pause between two checks whether an unreachable parameter server is back."""
_CLOSE_SECONDS = 2.0
_CLOSE_LOST_SECONDS = 0.2
"""Time limit for closing a session.

Closing hangs where the session's server is gone, and the next session should not wait for it.
"""
_END_POLL_SECONDS = 0.5
"""Pause between two reads of the global step while the worker waits for the chief."""
_SESSIONS_COUNTED_ALIVE = 3
"""Successive sessions without a step that count as progress for the watchdog.

A parameter server that restarts may end a few sessions.
"""
_SESSIONS_BEFORE_FAILURE = 5
"""Successive sessions without a step after which an error fails the run.

Only an error that the user's graph may have caused (`placement.may_be_own`) fails it.
"""
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 2.0
"""Pauses between sessions; they grow while sessions make no step."""


class Training:
    """One worker's part in a run. `run` returns when training has ended or `stop` was set.

    Methods run on the training thread, in the order `make_ready` (only for a run that prepares
    while another run has the VM), `define`, `listen`, `build`, `run`. That thread sets `blocks`
    before `build`, if the records come in blocks. The main thread sets `stop` and `leave_at`, and
    reads `alive`, `starved` and `meter`.
    """

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
        """Time of the last progress (`time.monotonic`), for the watchdog."""
        self.leave_at = math.inf
        """Time by which the last step should end (`time.monotonic`): the VM ends soon after."""
        self.blocks: Blocks | None = None
        """Source of records that come in blocks."""
        self._fruitless = 0
        """Successive sessions that were ready and made no step."""
        self._refused: tuple[int, float] | None = None
        """Size and share that the chief assigned and this worker reported as too large for memory.

        In this session.
        """
        self._pace = Pace(spec.pace_seconds)
        self._tracer = Tracer(folder, assignment.name)
        self._maker = GraphMaker(folder, spec, len(assignment.ps), watch, assignment.dispatcher)
        # Set by `listen`:
        self._address = ""
        self._server: Any = None
        # Set by `build`:
        self._number = 0
        self._config: Any = None
        self._graph: Any = None
        self._built: WorkerGraph
        self._examples: Examples
        self._batch: MiniBatch
        self._noise: NoiseProbe
        self._stepper: AsynchronousStep | SynchronousStep
        self._local: LocalVariables | None = None

    @property
    def starved(self) -> bool:
        """Whether other VMs prepare the mini-batches, and none came since the last progress.

        The main thread reads this only after `build`.
        """
        return not self._spec.reads_records and self._examples.added_at <= self.alive

    def make_ready(self) -> None:
        """Prepare what needs neither the chief nor the GPU, which another run still uses."""
        self._maker.make_ready()

    def define(self) -> None:
        """Import TensorFlow and the run's libraries, and run the cell if its graph needs it."""
        self._maker.define()

    def listen(self) -> None:
        """Start this worker's TensorFlow server.

        Raises
        ------
        GpuUnseenError
            The VM should have a GPU, and TensorFlow does not find it.
        """
        self._address = f"{self._assignment.address}:{_free_port()}"
        config = placement.plain_config(self._spec.threads)
        # A cluster of this task alone. The other tasks come with the session's configuration.
        self._server = tensorflow().train.Server(
            {"boot": [self._address]}, job_name="boot", task_index=0, config=config
        )
        if self._assignment.gpu:
            gpu.require_gpu(self._assignment.gpu, self._server, self._spec.threads)

    def build(self, number: int) -> None:
        """Make the graph of worker number `number`."""
        self._config = placement.worker_config(
            self._assignment.ps, number, self._address, self._spec.threads
        )
        self._number = number
        self._use(self._maker.make(number))
        if self._maker.note:
            self._link.report_note(self._maker.note)

    def _use(self, finished: FinishedGraph) -> None:
        built = finished.built
        self._graph = finished.graph
        self._built = built
        self._examples = Examples(finished.examples, self.blocks)
        self._batch = MiniBatch(finished.examples.batch)
        self._noise = NoiseProbe(built, self._spec.noise_share)
        if self.meter.steps:  # the graph was made again, and the run's first step is over
            self._noise.begin(self.meter.usual)
        if self.blocks is not None:
            self.blocks.moved = self._mark_alive
        if self._spec.mode == "sync":
            self._stepper = SynchronousStep(built, self.stop, self._mark_alive)
        else:
            self._stepper = AsynchronousStep(built, self.stop)
        self._local = None
        if built.push is not None:
            self._local = LocalVariables(built, self._spec, self._number)
        self._mark_alive()

    def run(self) -> None:
        """Step until the end of the run, through as many sessions as that takes.

        Raises
        ------
        TrainingError
            The examples cannot be read, or no step succeeds in several sessions.
        """
        self._pace.start()
        pause = _FIRST_PAUSE
        while not self.stop.is_set():
            if not answer(self._assignment.ps):
                # TensorFlow's own attempts to connect would be refused, and have longer pauses.
                self.stop.wait(_POLL_SECONDS)
                continue
            if self.meter.steps:
                self._watch.lap("servers")
            steps = self.meter.steps
            self._run_session()
            if self.meter.steps > steps:
                pause = _FIRST_PAUSE
            else:
                pause = min(pause * 1.6, _LONGEST_PAUSE)
            self.stop.wait(pause)

    def _run_session(self) -> None:
        """Step in one session until training stops or the session fails; then close it."""
        session = self._open()
        close_seconds = _CLOSE_SECONDS
        rebuild = False
        steps = self.meter.steps
        try:
            if self._wait_until_ready(session):
                self._step_until_stopped(session)
                self._hand_over(session)
        except placement.transient_errors() as error:
            close_seconds = _CLOSE_LOST_SECONDS
            # Report the steps before the loss now: later they would seem to be made after it.
            self._link.send_metrics()
            if self.meter.steps > steps:
                self._watch = Stopwatch(time.time(), "steps again")
            self._log_lost_session(error)
            self._raise_own_error(error)
        except tensorflow().errors.OutOfRangeError as error:
            why = f"the examples cannot be read: {sentence(self._examples.failure or error)}"
            if not self._maker.examples_from_file:
                raise TrainingError(why) from error
            self._maker.give_up_file(why)
            rebuild = True
        finally:
            self._examples.stop()
            placement.close(session, close_seconds)
            if self.meter.steps:
                self._watch.lap("closing")
        if rebuild:
            self._use(self._maker.make(self._number))

    def _log_lost_session(self, error: Exception) -> None:
        summary = str(error).partition("\n")[0][:160]
        log(f"session lost, opening another: {type(error).__name__}: {summary}")

    def _raise_own_error(self, error: Exception) -> None:
        """Raise TrainingError if sessions fail without a step and the graph may be the cause."""
        if self._fruitless >= _SESSIONS_BEFORE_FAILURE and placement.may_be_own(error):
            why = reason(error, self._spec.line_offset)
            raise TrainingError(f"all steps fail: {why}") from error

    # --- the session -----------------------------------------------------------------------------
    def _open(self) -> Any:
        tf = tensorflow()
        return tf.Session(self._server.target, graph=self._graph, config=self._config)

    def _wait_until_ready(self, session: Any) -> bool:
        """Wait until the chief has initialised or restored all variables; False if stopped.

        Waiting counts as progress for the watchdog. Of successive sessions that become ready and
        make no step, only the first `_SESSIONS_COUNTED_ALIVE` count, because the step itself may
        fail in one session after the other.
        """
        while not self.stop.is_set():
            ready = not len(session.run(self._built.missing))
            if ready:
                self._fruitless += 1
            if not ready or self._fruitless <= _SESSIONS_COUNTED_ALIVE:
                self._mark_alive()
            if ready:
                break
            # The run that has the VM ends only once this one is prepared.
            if self._folder.standby.exists():
                self._folder.prepared.touch()
            self.stop.wait(0.1)
        else:
            return False
        session.run(self._built.tables)
        if self._local:
            self._local.pull(session)
        self._examples.start(session)
        self._watch.lap("session")
        return True

    # --- the steps -------------------------------------------------------------------------------
    def _step_until_stopped(self, session: Any) -> None:
        """Take steps in this session until `stop` is set: the loop of all training.

        Each pass is one step: choose the size of the mini-batch, gather it, compute and push its
        gradient, count the step, and do what is due between two steps. Errors of the session end
        the loop. Code here slows every step down, so it takes only microseconds where nothing is
        due.
        """
        meter = self.meter
        out_of_memory = tensorflow().errors.ResourceExhaustedError
        self._refused = None
        first_of_session = True
        last_size = 0
        last_seconds = 0.0
        step = int(session.run(self._built.before))
        previous_end = time.monotonic()
        while not self.stop.is_set():
            if step >= self._limit:
                step = self._wait_for_chief(session, step)
                previous_end = time.monotonic()
                continue
            started = time.monotonic()
            if started + max(meter.usual, last_seconds) > self.leave_at:
                # The VM would end within another step, and the barrier might wait for it.
                self.stop.set()
                break
            size, share = self._next_batch()
            if size != last_size:
                self._link.send_metrics()  # a line of metrics is about steps of one size
                last_size = size
            pace = self._pace.of(size / self._batch.declared)
            # The first step of a session is slow, so a trace of it would mislead.
            tracing = {} if first_of_session else self._tracer.options(meter.steps)
            try:
                feeds = self._feeds(size, share)
                fed = time.monotonic()
                result = self._stepper.take(session, feeds, pace, tracing)
            except out_of_memory:
                if not self._shrink_batch(size):
                    raise
                continue  # the next step reports this time as waited
            self._batch.record(size, float(result.weight))
            if pace and self._spec.mode != "sync":
                # The emulated accelerator would compute for `pace` seconds. This machine is faster,
                # so it waits for the rest; a synchronous step does so in `take`.
                self.stop.wait(max(0.0, pace - (time.monotonic() - started)))
            now = time.monotonic()
            self.alive = now
            self._fruitless = 0
            self._examples.stepped()
            last_seconds = now - started
            step = int(result.after)
            if not result.counted:
                # The gradient came too late for its round, or the round was lost. It is not a step
                # of the run, but from now on the barrier waits for this worker. `previous_end`
                # stays, so that the next step reports this time as waited.
                self._link.report_stepping(loss=None, samples=0, program=self._maker.fingerprint)
                self._save_if_requested(session)
                continue
            first_of_run = not meter.steps
            if tracing:
                # A traced step is slow: the tracer has it, and no speed counts it.
                self._tracer.took(tracing, step, result.clock, last_seconds, meter.usual)
                meter.traced(now - previous_end)
            else:
                rate_divisor = feeds[self._built.divisor]
                self._count(
                    result,
                    size=size,
                    rate_divisor=rate_divisor,
                    pace=pace,
                    previous_end=previous_end,
                    started=started,
                    fed=fed,
                    ended=now,
                )
            previous_end = now
            if first_of_run:
                self._report_first_step(result.loss)
            if first_of_session:
                first_of_session = False
                self._watch.lap("step")
                log(str(self._watch))
                if not first_of_run:
                    # It steps again: the chief should not have to wait for the next heartbeat.
                    self._link.send_metrics()
            # This time counts as waited in the next step: training does not compute in it.
            self._save_if_requested(session)
            if self._local and (step >= self._limit or self._local.is_due(step)):
                self._hand_over(session)
            if step < self._limit:
                previous_end += self._measure_noise(session, size, share)

    @property
    def _limit(self) -> int:
        """The global step at which to wait for the chief: the run's last step, or an epoch's."""
        limit = self._link.limit
        if limit is None:
            return self._spec.train_steps
        return min(limit, self._spec.train_steps)

    def _wait_for_chief(self, session: Any, step: int) -> int:
        """Report the steps so far, and wait at the limit until `stop` is set or steps are left.

        A worker does not step beyond the limit. At the end of the run the chief stops all workers
        once it reads this step. At the end of an epoch it moves the limit after the callbacks were
        called, and may request a checkpoint from a worker before. If a parameter server is
        lost in between, the run returns to its last checkpoint, and this worker has to step again.
        Then the session fails, or the global step is a smaller one. Returns the global step.
        """
        self._link.send_metrics()
        used_at = time.monotonic()
        while step >= self._limit and not self.stop.wait(_CHECK_SECONDS):
            self._mark_alive()
            # With `--chief worker` a worker writes the checkpoint of the epoch, while all wait.
            self._save_if_requested(session)
            if time.monotonic() - used_at < _END_POLL_SECONDS:
                continue
            used_at = time.monotonic()
            found = int(session.run(self._built.before))
            if found < step:
                log(f"the run is back at step {found}: stepping again")
                if self._local:
                    self._local.pull(session)
            elif self._local:
                self._hand_over(session)
            step = found
        return step

    def _next_batch(self) -> tuple[int, float]:
        """Return the number of examples of the next step, and the share of its gradient.

        The share is the size of this mini-batch divided by the mean size of all workers
        (`batching`).
        """
        assigned = self._link.batch
        size, share = self._batch.next(assigned)
        if assigned and assigned[0] > size and assigned != self._refused:
            # A restarted chief does not know what fits into this worker's memory.
            self._refused = assigned
            self._link.report_exhausted(size)
        return size, share

    def _feeds(self, size: int, share: float) -> dict[Any, Any]:
        """Return the feeds of a step of `size` examples; `share` is that of its gradient."""
        built = self._built
        feeds = self._examples.feeds(size)
        feeds[built.divisor] = self._rate_divisor()
        feeds[built.share] = share
        if self._spec.batching != "uniform":
            feeds[built.expected] = self._batch.expected(size)
        return feeds

    def _shrink_batch(self, size: int) -> bool:
        """Use smaller mini-batches than `size`; False if the run or the size does not allow it."""
        if self._spec.batching == "uniform" or not self._batch.shrink(size):
            return False
        fits = self._batch.fits
        log(f"{size} examples do not fit into memory: steps have {fits} from now on")
        self._link.report_exhausted(fits)
        return True

    def _count(
        self,
        result: StepResult,
        *,
        size: int,
        rate_divisor: float,
        pace: float,
        previous_end: float,
        started: float,
        fed: float,
        ended: float,
    ) -> None:
        """Add a step to the metrics.

        Parameters
        ----------
        result
            Values of the step.
        size
            Examples that were requested for its mini-batch.
        rate_divisor
            Divisor of its learning rate.
        pace
            Seconds that an emulated accelerator computes; 0 for a real one.
        previous_end, started, fed, ended
            Times of `time.monotonic`, in this order: the end of the previous step, the start of
            this one, the arrival of its mini-batch in this process, its end.
        """
        staleness = 0
        if self._spec.mode != "sync":
            # Updates by other workers between this step's reading and its own update.
            staleness = max(0, int(result.after) - 1 - int(result.before))
        between = started - previous_end
        total = ended - previous_end
        waited = result.waited + between
        split = whole(result.parts, total, fed - started, result.waited, between, pace)
        examples = int(result.examples)
        self.meter.add(
            step=int(result.after),
            loss=float(result.loss),
            samples=examples,
            batch=examples if self._spec.batching == "uniform" else size,
            compute=total - waited,
            wait=waited,
            staleness=staleness,
            divisor=rate_divisor,
            parts=split,
        )
        if result.metrics is not None and self._spec.epoch_steps:
            made = int(result.after) - self._spec.phase_begin
            epoch = (made - 1) // self._spec.epoch_steps
            self.meter.add_metrics(epoch, result.metrics)

    def _report_first_step(self, loss: float) -> None:
        """Report the first step of this worker to the chief: from now on it counts as training."""
        self._noise.begin(self.meter.usual)
        finite = float(loss) if math.isfinite(loss) else None
        self._link.report_stepping(
            loss=finite, samples=0, speed=self._pace.speed, program=self._maker.fingerprint
        )

    # --- between two steps -----------------------------------------------------------------------
    def _hand_over(self, session: Any) -> None:
        """Push local variables to the parameter servers.

        If another worker has replaced this one, its variables no longer count, and it stops.
        """
        if self._local and not self._local.push(session, int(session.run(self._built.before))):
            self._local = None
            self.stop.set()
        self._mark_alive()

    def _measure_noise(self, session: Any, size: int, share: float) -> float:
        """Measure the noise of one more gradient if that is due; return the seconds it took."""
        others = 0
        if self._spec.mode == "sync":
            others = self._link.active - 1  # all of them wait at the barrier
        if not self._noise.due(self.meter.usual, others):
            return 0.0
        began = time.monotonic()
        try:
            estimate = self._noise.measure(session, self._feeds(size, share))
        except tensorflow().errors.ResourceExhaustedError:
            log("the noise of the gradients is not measured: it does not fit into memory")
            self._noise.give_up()
        else:
            if estimate:
                self.meter.measured(estimate)
        self._mark_alive()
        return time.monotonic() - began

    def _save_if_requested(self, session: Any) -> None:
        if self._link.save_requested.is_set():
            self._save(session)

    def _save(self, session: Any) -> None:
        """Write a checkpoint between two steps, and send it to the chief on another thread."""
        self._link.save_requested.clear()
        built = self._built
        checkpoints = Checkpoints(self._folder.checkpoints, keep=1)
        try:
            step = int(session.run(built.before))
            saved = checkpoints.write(
                step, lambda prefix: session.run(built.saved, {built.checkpoint: prefix})
            )
        except (tensorflow().errors.OpError, OSError) as error:
            self._link.report_unsaved(sentence(error))
            if isinstance(error, placement.transient_errors()):
                raise
            return
        threading.Thread(
            target=self._deliver, args=(saved,), daemon=True, name="checkpoint"
        ).start()

    def _deliver(self, saved: Saved) -> None:
        chief = self._assignment.chief
        try:
            deliver(chief, self._spec.token, self._number, saved, self._folder.checkpoints)
        except (OSError, ValueError) as error:
            log(f"the checkpoint of step {saved.step} did not reach the chief: {error}")
            self._link.report_unsaved(sentence(error))

    # --- small helpers ---------------------------------------------------------------------------
    def _mark_alive(self) -> None:
        self.alive = time.monotonic()

    def _rate_divisor(self) -> float:
        """Return the divisor of the learning rate for the workers that train now."""
        spec = self._spec
        found = divisor(
            spec.lr_policy,
            synchronous=spec.mode == "sync",
            active=self._link.active,
            slots=spec.max_workers,
        )
        return found / max(self._link.rate, SMALLEST_RATE)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
