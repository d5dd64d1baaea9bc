"""Where the seconds of a worker's steps went, as its lines of metrics say it: `split`, a list of
seconds in this order.

Exposed parts are what the step waited for, one after the other; they add up to the step. What went
on beneath another part is hidden: without it the step would have been no shorter.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

EXPOSED = ("input", "pull", "compute", "push", "barrier", "rest")
_LONGEST = 1e9

MOST_BYTES = 8 * 2**20
MOST_PLAIN = 64 * 2**20
"""Of a packed trace, and of one unpacked."""
MOST_OPERATIONS = 50_000
MOST_DEVICES = 256
LONGEST = 400
MOST_VALUES = 20 * MOST_OPERATIONS
"""JSON values of a trace, which are objects of Python with ten times the bytes; an operation has
eight.
"""
_LATEST = 1e12
"""Microseconds: eleven days."""

# The measures from which the stalls of a step follow (Stash, ICDCS 2023, translated to parameter servers).
#
# Six arrangements of one and the same step, each with one more part of what a run does than the one before it. Two
# more read mini-batches as fast as they come, and compute nothing with them.

Measure = Literal["S0", "S1", "S2", "S3", "S4", "S5", "R4", "R5"]
"""S0: the variables in the worker's own process, one mini-batch kept in memory. S1: the variables
in a parameter server on the worker's VM. S2: on the cluster's parameter servers, while no other
worker steps. S3: all workers step. S4: with mini-batches of the records, whose files are in the
page cache. S5: with their pages dropped from it, again and again. R4 and R5 read as S4 and S5 do,
on all workers, without a step.
"""

MEASURES: tuple[Measure, ...] = get_args(Measure)
ALONE = frozenset[Measure](("S0", "S1", "S2"))
"""Taken by one worker after the other; the others by all at once."""
COLD = frozenset[Measure](("S5", "R5"))
MOST_STEPS = 500
"""Of a worker and a measure, whose seconds are told."""


class StepParts(NamedTuple):
    """Seconds of one or of several steps.

    Exposed: `input`, until the mini-batch was there; `pull`, from then until the last variable was
    there; `compute`, from then until the last gradient was there; `push`, from then until all were
    applied; `barrier`, for other workers; `rest`, between two steps. Hidden: `hidden_pull`, beneath
    the wait for the mini-batch; `hidden_push`, beneath the backward pass, at most. `own` is
    computing that nobody else's slowness shows in, part of `compute`: the backward pass, when all
    that it needs is in the worker's memory.
    """

    input: float = 0.0
    pull: float = 0.0
    compute: float = 0.0
    push: float = 0.0
    barrier: float = 0.0
    rest: float = 0.0
    hidden_pull: float = 0.0
    hidden_push: float = 0.0
    own: float = 0.0

    @property
    def step(self) -> float:
        """All exposed parts together."""
        return sum(self[: len(EXPOSED)])

    def plus(self, other: StepParts) -> StepParts:
        """Those of both."""
        return StepParts(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def told(self) -> list[float]:
        """As in a line of metrics."""
        return [round(seconds, 4) for seconds in self]


def step_parts(told: Any) -> StepParts | None:
    """What a line of metrics says; None where it says none, or nothing that can be counted with.

    A newer worker may tell more, behind these.
    """
    if not isinstance(told, list):
        return None
    seconds: list[Any] = list(cast("list[Any]", told))[: len(StepParts._fields)]
    sound = all(
        type(seconds_) in (int, float) and math.isfinite(seconds_) and 0 <= seconds_ < _LONGEST
        for seconds_ in seconds
    )
    if sound and len(seconds) == len(StepParts._fields):
        return StepParts(*map(float, seconds))
    return None


# Which part of the dev split an evaluation saw, in words.


def part_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """`1,000 of 50,000 examples`, where it was a part; else nothing."""
    if complete or not examples:
        return ""
    return examples_words(examples, complete, of, endless)


def examples_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """`all 360 examples`, `1,000 of 50,000 examples`, or `the first 12,800 examples` where nothing
    is known of more.

    `endless`: there was no end within the time that an evaluation has to find it.
    """
    many = f"{examples:,} example{'' if examples == 1 else 's'}"
    if complete:
        return f"all {many}"
    if of:
        return f"{examples:,} of {of:,} examples"
    if endless:
        return f"{many} of an endless dataset, or one too long to count"
    return f"the first {many}"


# One traced step of a worker, as its VM writes it and this machine reads it: what ran when, on
# which device.
#
# It comes from a VM as gzipped JSON of at most MOST_BYTES, and is checked here before anybody
# counts with it.


class Operation(NamedTuple):
    """An operation on a device (its place among the trace's): its name and kind, when it began and
    how long it lasted, in microseconds since the step began, by the device's own clock; of a
    transfer, what came from where.
    """

    device: int
    name: str
    kind: str
    begin: float
    lasted: float
    label: str = ""

    @property
    def end(self) -> float:
        """When it was over."""
        return self.begin + self.lasted


@dataclass(frozen=True)
class Trace:
    """A step of `seconds`, which began at `began` (since 1970, by the worker's clock); `left_out`:
    the shortest operations, where there were too many.
    """

    worker: str
    step: int
    began: float
    seconds: float
    devices: tuple[str, ...]
    operations: tuple[Operation, ...]
    left_out: int = 0


def packed(trace: Trace) -> bytes:
    """As it is sent; `unpacked` reads it."""
    longest = sorted(trace.operations, key=lambda each: each.lasted, reverse=True)[:MOST_OPERATIONS]
    values = {
        "worker": trace.worker,
        "step": trace.step,
        "began": trace.began,
        "seconds": trace.seconds,
        "devices": trace.devices[:MOST_DEVICES],
        "left_out": trace.left_out + len(trace.operations) - len(longest),
        "operations": [_told(each) for each in sorted(longest, key=lambda each: each.begin)],
    }
    return gzip.compress(json.dumps(values, separators=(",", ":")).encode(), compresslevel=5)


def _told(operation: Operation) -> list[Any]:
    device, name, kind, begin, lasted, label = operation
    return [
        device,
        name[:LONGEST],
        kind[:LONGEST],
        round(begin, 3),
        round(lasted, 3),
        label[:LONGEST],
    ]


def unpacked(content: bytes) -> Trace:
    """The trace in these bytes, of which nothing is believed. Raises ValueError with what is wrong."""
    try:
        plain = zlib.decompressobj(wbits=31).decompress(content[: MOST_BYTES + 1], MOST_PLAIN + 1)
        if len(content) > MOST_BYTES or len(plain) > MOST_PLAIN:
            raise ValueError("it is too large")
        # Each value but the first stands behind one of these; those within names are counted, too.
        if sum(plain.count(mark) for mark in (b"[", b"{", b",")) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        values = json.loads(plain)
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"it is no gzipped JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("it is no object")
    values = cast("dict[str, Any]", values)
    devices = tuple(
        _words(item, "a device") for item in _items(values.get("devices"), MOST_DEVICES, "devices")
    )
    rows = _items(values.get("operations"), MOST_OPERATIONS, "operations")
    return Trace(
        _words(values.get("worker"), "worker"),
        int(_number(values.get("step"), "step", 2**62)),
        _number(values.get("began"), "began"),
        _number(values.get("seconds"), "seconds"),
        devices,
        tuple(_operation(row, len(devices)) for row in rows),
        int(_number(values.get("left_out", 0), "left_out")),
    )


def _operation(row: Any, devices: int) -> Operation:
    device, name, kind, begin, lasted, label = _items(row, 6, "an operation", exactly=True)
    place = int(_number(device, "a device"))
    if place >= devices:
        raise ValueError("an operation is on no device of the trace")
    what = "an operation's name"
    return Operation(
        place,
        _words(name, what),
        _words(kind, what),
        _number(begin, "begin", least=-_LATEST),
        _number(lasted, "lasted"),
        _words(label, "label"),
    )


def _items(value: Any, most: int, what: str, *, exactly: bool = False) -> Iterable[Any]:
    items = cast("list[Any]", value)
    if not isinstance(value, list) or len(items) > most or (exactly and len(items) != most):
        raise ValueError(f"{what}: there is no such list")
    return items


def _words(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise ValueError(f"{what} is no name")
    return value


def _number(value: Any, what: str, most: float = _LATEST, least: float = 0) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{what} is no such number")
    return float(value)
