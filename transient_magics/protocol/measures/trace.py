"""One traced step of a worker, as its VM writes it and this machine reads it: what ran when, on which device.

It comes from a VM as gzipped JSON of at most MOST_BYTES, and is checked here before anybody counts with it.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

MOST_BYTES, MOST_PLAIN = 8 * 2**20, 64 * 2**20
"""Of a packed trace, and of one unpacked."""
MOST_OPERATIONS, MOST_DEVICES, LONGEST = 50_000, 256, 400
MOST_VALUES = 20 * MOST_OPERATIONS
"""JSON values of a trace, which are objects of Python with ten times the bytes; an operation has eight."""
_LATEST = 1e12
"""Microseconds: eleven days."""


class Operation(NamedTuple):
    """An operation on a device (its place among the trace's): its name and kind, when it began and how long it lasted,
    in microseconds since the step began, by the device's own clock; of a transfer, what came from where."""

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
    """A step of `seconds`, which began at `began` (since 1970, by the worker's clock); `left_out`: the shortest
    operations, where there were too many."""

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
        "worker": trace.worker, "step": trace.step, "began": trace.began, "seconds": trace.seconds,
        "devices": trace.devices[:MOST_DEVICES], "left_out": trace.left_out + len(trace.operations) - len(longest),
        "operations": [_told(each) for each in sorted(longest, key=lambda each: each.begin)],
    }  # fmt: skip
    return gzip.compress(json.dumps(values, separators=(",", ":")).encode(), compresslevel=5)


def _told(operation: Operation) -> list[Any]:
    device, name, kind, begin, lasted, label = operation
    return [device, name[:LONGEST], kind[:LONGEST], round(begin, 3), round(lasted, 3), label[:LONGEST]]


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
    devices = tuple(_words(each, "a device") for each in _items(values.get("devices"), MOST_DEVICES, "devices"))
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
        place, _words(name, what), _words(kind, what), _number(begin, "begin", least=-_LATEST),
        _number(lasted, "lasted"), _words(label, "label"),
    )  # fmt: skip


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
