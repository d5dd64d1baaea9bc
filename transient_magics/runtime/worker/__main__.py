"""The process of one worker: `python -m transient_magics.runtime.worker`.

It gets a number from the chief, copies the records, builds its graph and trains until the chief
ends the run.

SIGUSR1 ends it earlier: it finishes the step in flight, leaves and exits with 0. SIGTERM is the
preemption notice of its VM, from the agent or from the VM's own shutdown. Steps until the end of
the VM still count, so it trains on and leaves shortly before.

The main thread only waits for events and watches over the training, which has a thread of its own:
Python's signal handlers do not run while the main thread is in a blocking TensorFlow call.
"""

from __future__ import annotations

import math
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ...errors import CellError, DeclarationError
from ..files import blocks, data_files
from ..metadata import notice_seconds
from ..role import AGAIN, DONE, FAILED, STUCK, UNFIT, Role, Stopwatch, log
from ..tf.graph_mode import has_gpu
from ..training.usercode import to_transient_error
from .blocks import Blocks, BucketBlocks
from .chief_link import CHIEF_GONE, ChiefLink, answer
from .gpu import GpuUnseenError

if TYPE_CHECKING:
    from .session import Training

_POLL_AHEAD = 0.05
"""Pause between two checks whether the previous worker has left this VM."""
_LAST_STEP = 4.0
"""Time that the step in flight has to end, in seconds, after training was stopped."""
_BEFORE_END = 1.0
"""Time between a worker's last step and the end of its VM, in seconds, for leaving the run.

A step that ends later is killed with the VM, and the chief finds the worker lost.
"""
_GRAPH_WITHIN = 1.0
"""Time in seconds that the import of TensorFlow waits for the run's graph.

With the graph, only a part of TensorFlow is imported.
"""
_STUCK_BEFORE_FIRST = 90.0
_STUCK_AT_LEAST = 20.0
_WATCH_SECONDS = 1.0
_CHECK_SHARE = 0.25
"""Share of the stall limit after which the watchdog checks whether the servers answer.

Time counts towards the limit only while they do.
"""
_FROZEN = 5.0
"""Seconds between two checks that mean that this process was frozen.

It was stopped by SIGSTOP, or its VM was suspended or migrated.
"""
_CRASHED = 1


class Worker:
    """One worker process: events reach its main thread, which decides when the process ends."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._watch = Stopwatch(role.requested_at)
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._leave_at = math.inf
        """When to leave (`time.monotonic`); finite once the VM is under notice."""
        self._failure: BaseException | None = None
        declared = role.spec.notice_seconds
        self._notice_seconds = notice_seconds() if declared is None else declared
        assignment = role.assignment
        self._link = ChiefLink(assignment.chief, role.spec.token, assignment.name, _accelerator())
        self._training: Training | None = None
        self._blocks: Blocks | None = None
        self._steps_when_away = 0
        """Steps at the last check that found a parameter server unreachable."""

    def run(self) -> NoReturn:
        """Train, and end the process."""
        signal.signal(signal.SIGUSR1, lambda *_: self._events.put("dismissed"))
        signal.signal(signal.SIGTERM, lambda *_: self._events.put("noticed"))
        self._link.on_stop = lambda: self._events.put("stopped by the chief")
        threading.Thread(target=self._train, daemon=True, name="training").start()
        while True:
            began = time.monotonic()
            timeout = max(0.0, min(_WATCH_SECONDS, self._leave_at - began))
            try:
                event = self._events.get(timeout=timeout)
            except queue.Empty:
                if time.monotonic() >= self._leave_at:
                    self._leave("revoked")
                self._watchdog(asleep=time.monotonic() - began)
                continue
            match event:
                case "noticed":
                    self._train_on()
                case "trained":
                    self._leave(self._link.stop_reason or "revoked", stepping=False)
                case "dismissed":
                    self._leave("told to leave")
                case "stopped by the chief":
                    self._leave(self._link.stop_reason or "told to leave")
                case "failed":
                    self._fail()

    # --- the training thread ---------------------------------------------------------------------
    def _train(self) -> None:
        """Prepare and train; put the outcome into the queue of events."""
        try:
            self._prepare_and_train()
        except BaseException as error:  # noqa: BLE001 - user code and TensorFlow raise anything
            traceback.print_exc()
            self._failure = error
            self._events.put("failed")

    def _prepare_and_train(self) -> None:
        role = self._role
        ahead = role.folder.ahead.exists()
        if not ahead:
            self._link.start()
            if role.spec.phase_steps or role.spec.phase_begin:
                self._take_phase()
        copying = _Copying(role, self._link)
        copying.start()
        if role.spec.stalls:
            from .measuring import Measuring as Training
        else:
            from .session import Training
        training = Training(role.folder, role.spec, role.assignment, self._link, self._watch)
        if ahead:
            self._stand_by(training)
        copying.graphs.wait(_GRAPH_WITHIN)
        training.define()
        training.listen()
        copying.wait()
        self._link.numbered.wait()
        self._watch.lap("data")
        if self._link.phase not in (None, role.spec.phase_begin):
            # Another phase of the training has begun meanwhile.
            self._link.again = True
            self._events.put("stopped by the chief")
        elif self._link.number is not None:
            training.blocks = copying.blocks
            self._blocks = copying.blocks
            training.build(self._link.number)
            self._link.take_metrics = training.meter.take
            self._training = training
            training.leave_at = self._leave_at
            training.run()
            self._events.put("trained")
        # Without a number the chief stopped this worker, and the main thread ends the process.

    def _take_phase(self) -> None:
        """Learn from the chief which phase of the training is the present one."""
        role = self._role
        self._link.numbered.wait()
        if self._link.phase in (None, role.spec.phase_begin):
            return
        chief = role.assignment.chief
        data_files.copy(chief, role.spec.token, role.folder.checkpoints, "phases")
        role.read_spec()

    def _stand_by(self, training: Training) -> None:
        """Prepare what can be, then wait until the previous worker has left this VM.

        Errors are raised when it has left.
        """
        try:
            training.make_ready()
            log("ready, before the run has this VM")
        finally:
            while self._role.folder.ahead.exists():
                time.sleep(_POLL_AHEAD)
            self._watch.lap("ahead")
            self._link.start()

    # --- the main thread -------------------------------------------------------------------------
    def _train_on(self) -> None:
        """Train until shortly before the VM ends.

        The agent and the VM's shutdown both send the notice; the first one counts.
        """
        if self._leave_at < math.inf:
            return
        left = self._notice_seconds - _BEFORE_END
        self._leave_at = time.monotonic() + left
        log(f"under notice: training on for {left:.1f} s")
        self._link.report_notice()
        if self._training is not None:
            self._training.leave_at = self._leave_at

    def _leave(self, reason: str, *, stepping: bool = True) -> NoReturn:
        """Wait for the step in flight if the VM exists that long, leave the run, and exit."""
        log(f"leaving: {reason}")
        if self._training is not None and stepping:
            self._training.stop.set()
            self._wait_for_last_step()
        self._link.leave(reason)
        if self._blocks is not None:
            self._blocks.close(leaving=reason != CHIEF_GONE)
        if self._link.again:
            self._role.end(AGAIN)
        # A chief that is gone may be started again, and so is this worker.
        self._role.end(STUCK if reason == CHIEF_GONE else DONE)

    def _wait_for_last_step(self) -> None:
        deadline = min(time.monotonic() + _LAST_STEP, self._leave_at + _BEFORE_END / 2)
        while (left := deadline - time.monotonic()) > 0:
            try:
                if self._events.get(timeout=left) in ("trained", "failed"):
                    return
            except queue.Empty:
                return

    def _fail(self) -> NoReturn:
        """Report why training failed, and exit with the code that says whether to try again."""
        if isinstance(self._failure, GpuUnseenError):
            print(self._failure.what, file=sys.stderr)
            self._link.leave("lost")
            self._role.end(UNFIT)
        failure = self._failure or RuntimeError("training ended")
        error = to_transient_error(failure, self._role.spec.line_offset)
        fatal = isinstance(error, (CellError, DeclarationError))
        reason = error.what if isinstance(error, CellError) else str(error)
        self._link.report_trouble(reason, fatal)
        self._link.leave("lost")
        self._role.end(FAILED if fatal else _CRASHED)

    def _watchdog(self, asleep: float) -> None:
        """End a process that makes no step although the parameter servers answer.

        The agent starts it again, and it gets a new number. `asleep` is the time since the last
        check, in seconds. If it is far longer than planned, this process was frozen and could not
        step.
        """
        training = self._training
        if training is None or training.stop.is_set():
            return
        if asleep > _FROZEN:
            training.alive = time.monotonic()
        steps = training.meter.steps
        if steps == self._steps_when_away:
            # The first step at all, or since a server came back: sessions and caches are built.
            limit = _STUCK_BEFORE_FIRST
        else:
            limit = max(_STUCK_AT_LEAST, 20 * training.meter.usual)
        still = time.monotonic() - training.alive
        if self._link.connected.is_set() and still < limit * _CHECK_SHARE:
            return
        if training.starved or not self._servers_answer():
            training.alive = time.monotonic()
            self._steps_when_away = steps
        elif still >= limit:
            log(f"no step for {limit:.0f} s although the parameter servers answer: restarting")
            self._link.leave("lost")
            self._role.end(STUCK)

    def _servers_answer(self) -> bool:
        return self._link.connected.is_set() and answer(self._role.assignment.ps)


class _Copying(threading.Thread):
    """Copies the graph, if there is one, and the records, while TensorFlow is imported."""

    def __init__(self, role: Role, link: ChiefLink) -> None:
        super().__init__(daemon=True, name="records")
        self._role = role
        self._link = link
        self._error: BaseException | None = None
        self.blocks: Blocks | None = None
        """The records, if they come in blocks; the first ones are being copied."""
        self.graphs = threading.Event()
        """Set once the graph is here, or none will come. What is imported depends on it."""

    def run(self) -> None:
        try:
            self._copy()
        except Exception as error:  # noqa: BLE001 - raised again by `wait`
            self._error = error
        finally:
            self.graphs.set()

    def _copy(self) -> None:
        self._link.numbered.wait()  # then the chief accepts connections
        if self._link.number is None:
            return
        chief = self._role.assignment.chief
        spec = self._role.spec
        folder = self._role.folder
        data_files.copy(chief, spec.token, folder.graphs, "graphs")
        self.graphs.set()
        if spec.data_folder is not None:
            return
        data_files.copy(chief, spec.token, folder.data)
        if spec.share_input:
            data_files.copy_once(chief, spec.token, folder.shared_input(spec.study).data)
        if blocks.are_streamed(folder.data):
            self.blocks = self._start_blocks()

    def _start_blocks(self) -> Blocks:
        link = self._link
        spec = self._role.spec
        chief = self._role.assignment.chief
        bucket = None
        if spec.records:
            bucket = BucketBlocks(spec.records, spec.problem, chief, spec.token)
        folder = self._role.folder.path
        started = Blocks(chief, spec.token, folder, spec.cache, link.send_lease, bucket)
        link.on_leased = started.leased
        link.on_joined = started.joined
        started.start()
        return started

    def wait(self) -> None:
        """Wait for the records, or until the first blocks are being copied.

        Raises whatever stopped the copying.
        """
        self.join()
        if self._error is not None:
            raise self._error


def _accelerator() -> str:
    """Return the model of the VM's GPU as the kernel driver names it; "" without one.

    TensorFlow would need seconds to answer.
    """
    if not has_gpu():
        return ""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    if not cards:
        return ""
    for line in cards[0].read_text(encoding="utf-8").splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return ""


def play(role: Role) -> NoReturn:
    """Run the worker until the process ends."""
    Worker(role).run()


if __name__ == "__main__":
    play(Role())
