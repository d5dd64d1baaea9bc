"""Parts of the time of a worker's steps: the field `split` of its metrics lines.

`split` is a list of seconds in the order of `StepParts`. Exposed parts are what the step waited
for, in sequence; they add up to the step. Hidden parts ran during another part: the step would not
be shorter without them.
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
"""Maximum bytes of a packed trace, and of an unpacked one."""
MOST_OPERATIONS = 50_000
MOST_DEVICES = 256
LONGEST = 400
MOST_VALUES = 20 * MOST_OPERATIONS
"""Maximum number of JSON values of a trace.

As Python objects they take ten times their bytes. An operation has eight.
"""
_LATEST = 1e12
"""Microseconds: eleven days."""

# The measures from which the stalls of a step follow (Stash, ICDCS 2023, translated to parameter
# servers).
#
# Six variants of one step; each adds one more part of a run to the variant before. Two more read
# mini-batches at full speed and compute nothing with them.

Measure = Literal["S0", "S1", "S2", "S3", "S4", "S5", "R4", "R5"]
"""Measures of a step, from the least to the most of a run.

S0: the variables are in the worker's own process, with one mini-batch kept in memory. S1: the
variables are in a parameter server on the worker's VM. S2: they are on the cluster's parameter
servers, and no other worker steps. S3: all workers step. S4: mini-batches come from the records,
with their files in the page cache. S5: as S4, with the pages dropped from the cache repeatedly. R4
and R5 read as S4 and S5 do, on all workers, without a step.
"""

MEASURES: tuple[Measure, ...] = get_args(Measure)
ALONE = frozenset[Measure](("S0", "S1", "S2"))
"""Measures that workers take one after another; all workers take the others simultaneously."""
COLD = frozenset[Measure](("S5", "R5"))
MOST_STEPS = 500
"""Maximum number of steps whose seconds a worker reports for a measure."""


class StepParts(NamedTuple):
    """Seconds of one or more steps.

    Exposed: `input`, until the mini-batch is available; `pull`, from then until the last variable
    is available; `compute`, from then until the last gradient is available; `push`, from then until
    all are applied; `barrier`, waiting for other workers; `rest`, between two steps. Hidden:
    `hidden_pull`, during the wait for the mini-batch; `hidden_push`, during the backward pass, an
    upper limit. `own` is the part of `compute` that slow peers cannot affect: the backward pass,
    when all its inputs are in the worker's memory.
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
        """The sum of all exposed parts."""
        return sum(self[: len(EXPOSED)])

    def plus(self, other: StepParts) -> StepParts:
        """Return the sum of both, part by part."""
        return StepParts(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def rounded(self) -> list[float]:
        """The seconds as in a metrics line."""
        return [round(seconds, 4) for seconds in self]


def step_parts(values: Any) -> StepParts | None:
    """Read the parts from a metrics line; None if they are missing or invalid.

    A newer worker may report more values after these.
    """
    if not isinstance(values, list):
        return None
    seconds: list[Any] = list(cast("list[Any]", values))[: len(StepParts._fields)]
    sound = all(
        type(seconds_) in (int, float) and math.isfinite(seconds_) and 0 <= seconds_ < _LONGEST
        for seconds_ in seconds
    )
    if sound and len(seconds) == len(StepParts._fields):
        return StepParts(*map(float, seconds))
    return None


# The part of the dev split that an evaluation used, in words.


def part_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """Return `1,000 of 50,000 examples` for a part of the split; else the empty text."""
    if complete or not examples:
        return ""
    return examples_words(examples, complete, of, endless)


def examples_words(examples: int, complete: bool, of: int = 0, endless: bool = False) -> str:
    """Return `all 360 examples`, `1,000 of 50,000 examples`, or `the first 12,800 examples`.

    The last form applies if the total is unknown. `endless`: the end was not found within the time
    of an evaluation.
    """
    many = f"{examples:,} example{'' if examples == 1 else 's'}"
    if complete:
        return f"all {many}"
    if of:
        return f"{examples:,} of {of:,} examples"
    if endless:
        return f"{many} of an endless dataset, or one too long to count"
    return f"the first {many}"


# One traced step of a worker, as its VM writes it and this machine reads it: the operations, their
# times and devices.
#
# A VM sends it as gzipped JSON of at most MOST_BYTES. It is checked here before any use.


class Operation(NamedTuple):
    """One operation on a device.

    `device` is the index of the device in the trace. `begin` and `lasted` are in microseconds since
    the start of the step, by the device's own clock. `label` describes the source and destination
    of a transfer.
    """

    device: int
    name: str
    kind: str
    begin: float
    lasted: float
    label: str = ""

    @property
    def end(self) -> float:
        """When the operation ended, in microseconds since the start of the step."""
        return self.begin + self.lasted


@dataclass(frozen=True)
class Trace:
    """A step of `seconds` that began at `began` (since 1970, by the worker's clock).

    `left_out`: the number of the shortest operations, omitted because there were too many.
    """

    worker: str
    step: int
    began: float
    seconds: float
    devices: tuple[str, ...]
    operations: tuple[Operation, ...]
    left_out: int = 0


def packed(trace: Trace) -> bytes:
    """Return the trace in the form that is sent; `unpacked` reads it."""
    longest = sorted(trace.operations, key=lambda operation: operation.lasted, reverse=True)[
        :MOST_OPERATIONS
    ]
    values = {
        "worker": trace.worker,
        "step": trace.step,
        "began": trace.began,
        "seconds": trace.seconds,
        "devices": trace.devices[:MOST_DEVICES],
        "left_out": trace.left_out + len(trace.operations) - len(longest),
        "operations": [
            _packed_operation(operation)
            for operation in sorted(longest, key=lambda operation: operation.begin)
        ],
    }
    return gzip.compress(json.dumps(values, separators=(",", ":")).encode(), compresslevel=5)


def _packed_operation(operation: Operation) -> list[Any]:
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
    """Read a trace from untrusted bytes. Raises ValueError with what is wrong."""
    try:
        plain = zlib.decompressobj(wbits=31).decompress(content[: MOST_BYTES + 1], MOST_PLAIN + 1)
        if len(content) > MOST_BYTES or len(plain) > MOST_PLAIN:
            raise ValueError("it is too large")
        # Each value but the first follows one of these marks; marks inside names count too.
        if sum(plain.count(mark) for mark in (b"[", b"{", b",")) > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        values = json.loads(plain)
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"it is not gzipped JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
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
        raise ValueError("the device of an operation is not in the trace")
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
        raise ValueError(f"{what} must be a list of {'' if exactly else 'at most '}{most} entries")
    return items


def _words(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise ValueError(f"{what} must be a text of at most {LONGEST} characters")
    return value


def _number(value: Any, what: str, most: float = _LATEST, least: float = 0) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{what} must be a number from {least:g} to {most:g}")
    return float(value)
