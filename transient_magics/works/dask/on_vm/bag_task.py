"""One attempt of a bag's job in the worker on its VM.

It calls the function of the cell and checks the returned values. Errors are returned as plain
values too, so the driver never receives objects of the user's classes.
"""

# pyright: basic
# (Dask's own annotations are incomplete.)

from __future__ import annotations

import asyncio
import hashlib
import io
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from distributed import get_worker
from distributed.utils import sync

from ....errors import TransientError
from ....files import write_atomically
from ....protocol import layout
from ....protocol.outputs import MOST_ARRAY_BYTES, checked_values
from ....runtime import process_record
from ....runtime.training.reproducibility import Generators
from ....runtime.training.usercode import MODULE_NAME, is_of_cell, run_cell
from . import record
from .worker import PREEMPTED

_RARELY = 50.0
"""Interval between unplanned checkpoints, as a multiple of the duration of the last one."""
_LEAST_SECONDS = 10.0
_MOST_REASON = 2000
_ANSWER_SECONDS = 0.5
_EXPLAINED = {
    "signal only works in main "
    "thread": "a job runs in a thread; handle signals in a process that it starts",
}
"""Explanations of errors that occur in jobs but not in scripts, by a part of their text."""
_NAME = "job"
_made: dict[str, ModuleType] = {}


class Checkpoint:
    """The checkpoints of a job.

    `load()` returns the last saved arrays by name, or None. A job may call `save(arrays)` at any
    rate: it sends a checkpoint when one is due, immediately after a preemption notice, and else
    does nothing. `due` is whether it would save. Arrays are NumPy arrays of numbers.
    """

    def __init__(
        self, job: int, attempt: int, done: float, state: bytes, saves: Sequence[float]
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._done = done
        self._state = state
        self._saves = [*saves]
        self._worker = get_worker()
        self._preempted: threading.Event = self._worker.extensions[PREEMPTED]
        self._began = self._last = time.monotonic()
        self._took = 0.0
        self._parted = False
        self.saving = 0.0

    def load(self) -> Mapping[str, Any] | None:
        """Return the last saved arrays of previous attempts; None if there are none."""
        if not self._state:
            return None
        import numpy as np

        with np.load(io.BytesIO(self._state), allow_pickle=False) as found:
            return dict(found)

    @property
    def due(self) -> bool:
        """Whether `save` would save now."""
        now = time.monotonic()
        if self._preempted.is_set():
            return not self._parted
        if self._saves:
            return now - self._began - self.saving >= self._saves[0]
        return now - self._last >= max(_LEAST_SECONDS, _RARELY * self._took)

    def save(self, arrays: Mapping[str, Any]) -> bool:
        """Send the arrays if a checkpoint is due, and return whether it was.

        Raises ValueError for arrays that cannot be saved.
        """
        if not self.due:
            return False
        began = time.monotonic()
        self._parted = self._preempted.is_set()
        done = self._done + began - self._began - self.saving
        packed = _packed(arrays)
        sync(
            self._worker.loop,
            self._worker.scheduler.transient_saved,
            job=self._job,
            attempt=self._attempt,
            done=done,
            seconds=time.monotonic() - began,
            data=packed,
        )
        self._last = time.monotonic()
        self._took = self._last - began
        self.saving += self._took
        while self._saves and self._saves[0] <= done - self._done:
            self._saves.pop(0)
        return True


def compute(
    source: str,
    point: Mapping[str, Any],
    seed: int,
    job: int,
    attempt: int,
    done: float,
    state: bytes,
    saves: Sequence[float],
    most: float = 0.0,
) -> dict[str, Any]:
    """Call the cell's function at the point and return the result as plain values.

    They are `seconds` of computing, the last output (`printed`), and either the `returned` values,
    with `arrays` as an npz file, or `fault` (raised, invalid) with the `reason`.

    After `most` seconds (0: never), the VM's agent kills this process, because `abort` has no
    effect while the function is in compiled code that holds the interpreter.
    """
    record.clear_output(_folder())
    with record.time_limit(_folder(), most), _event_loop():
        found = _computed(source, point, seed, Checkpoint(job, attempt, done, state, saves), done)
    return {**found, "printed": printed()}


def printed() -> str:
    """Return the last output of the job in this process."""
    return record.last_output(_folder())


@contextmanager
def _event_loop() -> Iterator[None]:
    """Provide an event loop for `asyncio.get_event_loop()`, which threads otherwise lack."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _folder() -> Path:
    return Path(os.environ[process_record.MARK])


def _computed(
    source: str, point: Mapping[str, Any], seed: int, checkpoint: Checkpoint, done: float
) -> dict[str, Any]:
    began = time.monotonic()
    try:
        found = _function(source)(**_arguments(source, point, seed, checkpoint))
    except Exception as error:  # noqa: BLE001 - any error of users' code fails the job
        return {
            "fault": "raised",
            "reason": _error_text(error),
            "seconds": time.monotonic() - began,
        }
    except SystemExit as error:
        return {
            "fault": "raised",
            "reason": f"it called exit({error.code})",
            "seconds": time.monotonic() - began,
        }
    seconds = done + time.monotonic() - began - checkpoint.saving
    try:
        returned, arrays = _sorted(found)
    except ValueError as error:
        return {"fault": "invalid", "reason": str(error)[:_MOST_REASON], "seconds": seconds}
    return {"returned": returned, "arrays": arrays, "seconds": seconds}


def abort() -> str:
    """End this worker's process after a job's timeout, and return the last output of the job.

    The process ends shortly after this answer, and the VM's agent starts another one.
    """
    threading.Timer(_ANSWER_SECONDS, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return printed()


def _function(source: str) -> Callable[..., Any]:
    digest = hashlib.sha256(source.encode()).hexdigest()
    if digest not in _made:
        cell = _folder() / layout.CELL
        if not cell.exists() or cell.read_text(encoding="utf-8") != source:
            write_atomically(cell, source, durable=False)
        try:
            module = run_cell(cell, _folder() / layout.INCLUDE, 0, seed=int(digest[:7], 16))
        except TransientError as error:
            raise error.__cause__ or error from None
        Generators(vars(module)).renew()  # jobs on other VMs must draw other random numbers
        _made[digest] = module
    sys.modules[MODULE_NAME] = _made[digest]
    return _made[digest].__dict__[_NAME]


def _arguments(
    source: str, point: Mapping[str, Any], seed: int, checkpoint: Checkpoint
) -> dict[str, Any]:
    import inspect

    takes = inspect.signature(_function(source)).parameters
    given = {"seed": seed, "checkpoint": checkpoint}
    all_of_them = any(take.kind is take.VAR_KEYWORD for take in takes.values())
    return {
        **point,
        **{name: value for name, value in given.items() if name in takes or all_of_them},
    }


def _sorted(found: Any) -> tuple[dict[str, float], bytes]:
    """Return numbers by name, and the other arrays packed. Raises ValueError."""
    if not isinstance(found, Mapping):
        raise ValueError(f"it must return a dict of numbers, not {type(found).__name__}")
    numbers = dict[str, float]()
    arrays = dict[str, Any]()
    for name, value in found.items():
        if not isinstance(name, str):
            raise ValueError(f"it returned the key {name!r:.80}, which is not a valid name")
        if getattr(value, "ndim", 0):
            arrays[name] = value
            continue
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be a number, not {type(value).__name__}") from None
        if not math.isfinite(numbers[name]):
            raise ValueError(f"{name} must be finite, not {numbers[name]}")
    checked_values(numbers)
    return numbers, _packed(arrays) if arrays else b""


def _packed(arrays: Mapping[str, Any]) -> bytes:
    import numpy as np

    made = {name: np.asarray(array) for name, array in arrays.items()}
    if wrong := next(
        (name for name, array in made.items() if array.dtype.kind not in "biufc"), None
    ):
        raise ValueError(f"the array {wrong} must have numbers, not {made[wrong].dtype}")
    if sum(array.nbytes for array in made.values()) > MOST_ARRAY_BYTES:
        raise ValueError(f"its arrays have more than {MOST_ARRAY_BYTES >> 20} MiB")
    file = io.BytesIO()
    np.savez(file, **made)  # type: ignore
    return file.getvalue()


def _error_text(error: BaseException) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if is_of_cell(frame.filename)
    ]
    if frames:
        where = f" in line {frames[-1].lineno} of the cell"
    else:
        where = ""
    why = next((f"; {words}" for text, words in _EXPLAINED.items() if text in str(error)), "")
    return f"{type(error).__name__}{where}: {error}{why}"[:_MOST_REASON]
