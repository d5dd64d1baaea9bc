"""A rare full trace of one step, for the user who asks for it by a file in the run's folder on this VM.

TensorFlow writes down every operation of a traced step, also those of the parameter servers, which makes it several
times slower (3 to 10 times were reported, TensorFlow's issue 5981). So a traced step is counted in no speed and by no
mini-batch, and the next trace is taken when its cost is a hundredth of the time since: not before max(300 s, 100 times
what the last one cost more than a usual step).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from ...files import write_atomically
from ...protocol import layout
from ...protocol.measures.trace import Operation, Trace, packed
from ..folder import RunFolder
from ..role import log
from ..tf.graph_mode import tensorflow

AT_LEAST, TIMES = 300.0, 100.0
"""Seconds between two traces, and how many times the last one's extra cost."""
WARM = 20
"""Steps before a trace: the first ones also build what later ones find."""
_LOOK_EVERY = 0.5
_LABEL = re.compile(r"\S+ = (\w+)\(")
_TRANSFER = re.compile(r"edge_\d+_.+ from \S+ to \S+")


class Tracer:
    """Traces of the worker `name` of the run in `folder`."""

    def __init__(self, folder: RunFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._wanted = folder.path / layout.TRACE_WANTED
        self._looked, self._next = 0.0, 0.0

    def options(self, steps: int) -> dict[str, Any]:
        """With what the next step is run, to be traced if somebody wants it; `steps` were made so far."""
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
        return {"options": tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), "run_metadata": tf.RunMetadata()}

    def took(self, options: dict[str, Any], step: int, began: float, seconds: float, usual: float) -> None:
        """The step is over, which began at `began` (since 1970) and lasted so many `seconds`, not `usual` ones."""
        self._next = time.monotonic() + max(AT_LEAST, TIMES * (seconds - usual))
        self._no_longer_wanted()  # while it is being written, too: nobody is refused what he is given
        writing = (options["run_metadata"], step, began, seconds, usual)
        threading.Thread(target=self._write, args=writing, daemon=True, name="trace").start()

    def _write(self, metadata: Any, step: int, began: float, seconds: float, usual: float) -> None:
        working = time.thread_time()
        names, operations = list[str](), list[Operation]()
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
            start = node.all_start_nanos / 1e3 if node.all_start_nanos else float(node.all_start_micros)
            begin, end = start + node.op_start_rel_micros, start + node.all_end_rel_micros
            kind = found[1] if (found := _LABEL.match(node.timeline_label)) else node.node_name.rpartition(":")[2]
            label = found[0] if (found := _TRANSFER.search(node.timeline_label)) else ""
            yield device.device, Operation(0, node.node_name, kind, begin - 1e6 * began, max(end - begin, 0.0), label)
