"""The process of one worker: `python -m transient_magics.runtime.worker`.

It asks the chief for a number, copies the records, builds its graph and trains until the chief says
that the run is over, or until SIGUSR1: then it finishes the step in flight, says goodbye and exits
with 0. SIGTERM is the notice that its VM is taken, from the agent or from the VM's own shutdown,
and every step until then is free: it trains on, and leaves shortly before the end. The main thread
only waits for signals and watches; training has a thread of its own, because a blocked TensorFlow
call would hold up Python's signal handlers.
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
from ..role import DONE, FAILED, STUCK, UNFIT, Role, Stopwatch, log
from ..tf.graph_mode import has_gpu
from ..training.usercode import to_transient_error
from .blocks import Blocks, BucketBlocks
from .chief_link import CHIEF_GONE, ChiefLink, answer
from .gpu import GpuUnseenError

if TYPE_CHECKING:
    from .session import Training

_LOOK_AHEAD = 0.05
"""Seconds between two looks whether the worker before has left this VM."""
_LAST_STEP = 4.0
"""Seconds that the step in flight may still take after SIGUSR1."""
_BEFORE_END = 1.0
"""Seconds between a worker's last step and the end of its VM: time to say goodbye. Where it is too
little, it is killed like others are, and the chief finds it gone.
"""
_GRAPH_WITHIN = 1.0
"""Seconds that the import of TensorFlow waits for the run's graph, which decides how much of it is
needed.
"""
_STUCK_BEFORE_FIRST = 90.0
_STUCK_AT_LEAST = 20.0
_LOOK_EVERY = 1.0
_LOOK_FROM = 0.25
"""Of the time without a step, from when on it is looked whether the servers answer: only while they
do it counts.
"""
_FROZEN = 5.0
"""Seconds between two looks that say that this process itself was held up (SIGSTOP, a VM suspended
or migrated).
"""
_CRASHED = 1


class Worker:
    """One worker process: the events that reach its main thread, and what it does about them."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._watch = Stopwatch(role.asked)
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._leave_at = math.inf
        """When, of `time.monotonic`; finite once the VM is under notice."""
        self._failure: BaseException | None = None
        chosen = role.spec.notice_seconds
        self._notice_seconds = notice_seconds() if chosen is None else chosen
        given = role.assignment
        self._link = ChiefLink(given.chief, role.spec.token, given.name, _accelerator())
        self._training = None
        self._blocks: Blocks | None = None
        self._steps_when_away = 0

    def run(self) -> NoReturn:
        """Train, and end the process."""
        signal.signal(signal.SIGUSR1, lambda *_: self._events.put("dismissed"))
        signal.signal(signal.SIGTERM, lambda *_: self._events.put("noticed"))
        self._link.on_told = lambda: self._events.put("told")
        threading.Thread(target=self._train, daemon=True, name="training").start()
        while True:
            looked = time.monotonic()
            try:
                event = self._events.get(
                    timeout=max(0.0, min(_LOOK_EVERY, self._leave_at - looked))
                )
            except queue.Empty:
                if time.monotonic() >= self._leave_at:
                    self._leave("revoked")
                self._watchdog(asleep=time.monotonic() - looked)
                continue
            match event:
                case "noticed":
                    self._train_on()
                case "stepped":
                    self._leave(self._link.told or "revoked", stepping=False)
                case "dismissed":
                    self._leave("told to leave")
                case "told":
                    self._leave(self._link.told or "told to leave")
                case "failed":
                    self._fail()

    def _train(self) -> None:
        """Everything that takes time, on the training thread."""
        try:
            copying = _Copying(self._role, self._link)
            copying.start()
            given = self._role
            ahead = given.folder.ahead.exists()
            if not ahead:
                self._link.start()
            if given.spec.stalls:
                from .measuring import Measuring as Training
            else:
                from .session import Training
            training = Training(given.folder, given.spec, given.assignment, self._link, self._watch)
            if ahead:
                self._stand_by(training)
            copying.graphs.wait(_GRAPH_WITHIN)
            training.define()
            training.listen()
            copying.wait()
            self._link.numbered.wait()
            self._watch.lap("data")
            if self._link.number is None:
                return  # told to leave before we got a number; the main thread ends the process
            training.blocks = self._blocks = copying.blocks
            training.build(self._link.number)
            self._link.take_metrics = training.meter.take
            self._training = training
            training.leave_at = self._leave_at
            training.run()
        except BaseException as error:  # noqa: BLE001 - user code and TensorFlow raise anything; the chief is told
            traceback.print_exc()
            self._failure = error
            self._events.put("failed")
        else:
            self._events.put("stepped")

    def _stand_by(self, training: Training) -> None:
        """Have ready what can be, until the worker before has left this VM; what is wrong is told
        then.
        """
        try:
            training.make_ready()
            log("ready, before the run has this VM")
        finally:
            while self._role.folder.ahead.exists():
                time.sleep(_LOOK_AHEAD)
            self._watch.lap("ahead")
            self._link.start()

    def _train_on(self) -> None:
        """The VM is under notice. Told twice, as by the agent and by the VM's shutdown, the first
        time counts.
        """
        if self._leave_at < math.inf:
            return
        left = self._notice_seconds - _BEFORE_END
        self._leave_at = time.monotonic() + left
        log(f"under notice: training on for {left:.1f} s")
        self._link.noticed()
        if self._training is not None:
            self._training.leave_at = self._leave_at

    def _leave(self, reason: str, *, stepping: bool = True) -> NoReturn:
        """Let the step in flight end, if the VM lives that long, say goodbye, exit."""
        log(f"leaving: {reason}")
        if self._training is not None and stepping:
            self._training.stop.set()
            deadline = min(time.monotonic() + _LAST_STEP, self._leave_at + _BEFORE_END / 2)
            while (left := deadline - time.monotonic()) > 0:
                try:
                    if self._events.get(timeout=left) in ("stepped", "failed"):
                        break
                except queue.Empty:
                    break
        self._link.leave(reason)
        if self._blocks is not None:
            self._blocks.close(leaving=reason != CHIEF_GONE)
        self._role.end(
            STUCK if reason == CHIEF_GONE else DONE
        )  # it may come back: so does this worker

    def _fail(self) -> NoReturn:
        if isinstance(self._failure, GpuUnseenError):
            print(self._failure.what, file=sys.stderr)
            self._link.leave("lost")
            self._role.end(UNFIT)
        error = to_transient_error(
            self._failure or RuntimeError("training ended"), self._role.spec.line_offset
        )
        fatal = isinstance(error, (CellError, DeclarationError))
        self._link.trouble(error.what if isinstance(error, CellError) else str(error), fatal)
        self._link.leave("lost")
        self._role.end(FAILED if fatal else _CRASHED)

    def _watchdog(self, asleep: float) -> None:
        """No step for long while the parameter servers answer: end, and be started again under a
        new number.

        `asleep`: seconds since the last look. Where they are far more than asked for, this process
        itself was held up and could not step either.
        """
        training = self._training
        if training is None or training.stop.is_set():
            return
        if asleep > _FROZEN:
            training.alive = time.monotonic()
        steps = training.meter.steps
        before_first = steps == self._steps_when_away  # of all, or since the servers came back
        if before_first:
            limit = _STUCK_BEFORE_FIRST
        else:
            limit = max(_STUCK_AT_LEAST, 20 * training.meter.usual)
        still = time.monotonic() - training.alive
        if self._link.connected.is_set() and still < limit * _LOOK_FROM:
            return
        if training.starved or not self._servers_answer():
            training.alive = time.monotonic()
            self._steps_when_away = steps
        elif still >= limit:
            log(
                f"no step for {limit:.0f} s although the parameter servers answer: ending, to start anew"
            )
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
        """The records, where they come in blocks; the first are being copied."""
        self.graphs = threading.Event()
        """The graph is here, or none comes: what is imported depends on it."""

    def run(self) -> None:
        given = self._role
        try:
            self._link.numbered.wait()  # the chief is there
            if self._link.number is None:
                return
            chief = given.assignment.chief
            token = given.spec.token
            data_files.copy(chief, token, given.folder.graphs, "graphs")
            self.graphs.set()
            if given.spec.data_folder is None:
                data_files.copy(chief, token, given.folder.data)
                if given.spec.share_input:
                    data_files.copy_once(
                        chief, token, given.folder.shared_input(given.spec.study).data
                    )
                if blocks.are_streamed(given.folder.data):
                    self.blocks = self._begun()
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error
        finally:
            self.graphs.set()

    def _begun(self) -> Blocks:
        given = self._role
        link = self._link
        spec = self._role.spec
        chief = given.assignment.chief
        if spec.records:
            bucket = BucketBlocks(spec.records, spec.problem, chief, spec.token)
        else:
            bucket = None
        begun = Blocks(chief, spec.token, given.folder.path, spec.cache, link.lease, bucket)
        link.on_leased = begun.leased
        link.on_joined = begun.joined
        begun.start()
        return begun

    def wait(self) -> None:
        """Wait for the records, or for the first of them to be on their way; raises what went
        wrong.
        """
        self.join()
        if self._error is not None:
            raise self._error


def _accelerator() -> str:
    """What the kernel driver says is in this machine; TensorFlow is not asked, because that takes
    seconds.
    """
    if has_gpu():
        cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    else:
        cards = []
    for line in cards[0].read_text(encoding="utf-8").splitlines() if cards else []:
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return ""


def play(role: Role) -> NoReturn:
    """Run until told to end."""
    Worker(role).run()


if __name__ == "__main__":
    play(Role())
