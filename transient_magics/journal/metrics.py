"""Per-second metrics of a run: one JSON line per worker and second in the run's own file.

A line contains these fields:

- `time`: ns, UTC.
- `worker`, and its global `step`.
- `steps` and `samples` in this interval.
- `loss`, and `batch_size` (for uneven mini-batches of text in tokens).
- `compute_seconds`, `wait_seconds`, and `gap_seconds` (the longest between two steps).
- `staleness`, and `learning_rate_divisor` (of the last step).
- `split`: the parts of its steps' seconds (protocol/step_parts.py).
- `server_share`: the CPU share of the busiest parameter server, 0 to 1.
- `traced_seconds`, if a step was traced. The other fields exclude them.

Occasionally it contains the GRADIENTS fields: the mean squared norm of the worker's gradients, and
its two parts. These are the squared norm of the gradient of all data, and the variance of one
example's gradient. Both parts are unbiased, so the first one may be negative.

A worker writes about 25 MB of metrics a day. When the run is over, `compact` merges all but the
last hour into a line per worker and minute.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from ..files import replacing
from ..protocol import jsonl
from ..protocol.checks import LONGEST_LINE, LONGEST_NAME, plain
from ..protocol.step_parts import StepParts, step_parts

GRADIENTS = ("gradient_squared", "gradient_signal", "gradient_noise")
SPLIT = tuple(
    f"{'' if name.startswith('hidden') else 'split_'}{name}" for name in StepParts._fields
)
"""Columns of the parts of a row's seconds."""
SERVER_SHARE = "server_share"
_FRESH_SECONDS = 3600
_BUCKET_SECONDS = 60
_SUMS = ("steps", "samples", "compute_seconds", "wait_seconds")
_TRACED = "traced_seconds"
_MEANS = ("loss", "staleness", "batch_size", "learning_rate_divisor", SERVER_SHARE)
_NUMBERS = frozenset((*_SUMS, *_MEANS, *GRADIENTS, _TRACED, "step", "gap_seconds"))
_LEAST_STEPS = 1e-3
_LEAST_SECONDS = 1e-9
_LARGEST = 2.0**63
_LARGE = 32 * 2**20
_TAIL_BYTES = 2**16
_SAMPLES = 512
_SAMPLE_BYTES = 2**13
_PIECE_BYTES = 2**16


def joined(block: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the lines of a block of a followed file as they are in that file, for one `append`."""
    return b"".join(line + b"\n" for _, line in block)


def read(path: Path) -> list[dict[str, Any]]:
    """Read all lines as dicts, oldest first; none if there is no file. Torn lines are skipped."""
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return []


def sample(path: Path) -> list[dict[str, Any]]:
    """Read lines as `read` does, but only equidistant blocks of a large file (4 MiB in total)."""
    if _is_large(path):
        return [row for _, block in _blocks(path) for row in _parsed(block)]
    return read(path)


async def follow(path: Path) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield new lines as the file at `path` grows, after those already in it.

    The folder of the file must exist. Of the existing lines in a large file, only a `sample` is
    read.
    """
    offset = 0
    if _is_large(path):
        for end, block in _blocks(path):
            offset = end
            yield _parsed(block)
            await asyncio.sleep(0)  # Other tasks have their turn.
    async for _, block in jsonl.follow(path, offset):
        for begin in range(0, len(block), _PIECE_BYTES):
            end = block.find(b"\n", begin + _PIECE_BYTES) + 1 or len(block)
            if begin:
                start = block.find(b"\n", begin) + 1
            else:
                start = 0
            yield _parsed(block[start:end])
            await asyncio.sleep(0)


def _is_large(path: Path) -> bool:
    return path.exists() and path.stat().st_size > _SAMPLES * _SAMPLE_BYTES


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (end offset, block of whole lines) at equal distances in a large file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for number in range(_SAMPLES):
            offset = file.seek(number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            block = file.read(_SAMPLE_BYTES)
            end = block.rfind(b"\n") + 1
            yield offset + end, block[block.find(b"\n") + 1 if offset else 0 : end]


def _parsed(content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for line in content.splitlines():
        # Workers do not write such lines, and the values would take a multiple of their bytes.
        if len(line) > LONGEST_LINE:
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue  # A crash tore this line; the line of the next second follows.
        if isinstance(row, dict) and _is_sound(row := cast("dict[str, Any]", row)):
            # The name appears in tables that users print in a terminal.
            if not row["worker"].isprintable():
                row["worker"] = plain(row["worker"])
            rows.append(row)
    return rows


def _is_sound(row: dict[str, Any]) -> bool:
    """Return whether the values of a row are valid.

    VMs write these lines, and computed values are drawn and stored.
    """
    time = row.get("time")
    worker = row.get("worker")
    if type(time) is not int or not 0 <= time < _LARGEST:
        return False
    if not isinstance(worker, str) or not 0 < len(worker) <= LONGEST_NAME or "step" not in row:
        return False
    steps = row.get("steps", 0)
    if (
        type(row["step"]) is not int
        or row["step"] < 0
        or type(steps) not in (int, float)
        or steps < 0
    ):
        return False
    if 0 < steps < _LEAST_STEPS:
        return False
    if len({row.get(name) is None for name in GRADIENTS}) > 1:
        return False
    for name, value in row.items():
        if type(value) in (int, float):
            if not -_LARGEST < value < _LARGEST:
                return False
        elif value is not None and name in _NUMBERS:
            return False
    return True


def split(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the columns `SPLIT` of a row; none if they are missing or invalid."""
    parts = step_parts(row.get("split"))
    if parts:
        return dict(zip(SPLIT, parts, strict=True))
    return {}


def speeds(rows: Iterable[dict[str, Any]]) -> list[float | None]:
    """Return the steps per second of each row: its steps over the time since its worker's last row.

    The first row of a worker uses the seconds that its steps took; None if the row lacks these too.
    """
    before: dict[str, int] = {}
    found: list[float | None] = []
    for row in rows:
        since = before.get(row["worker"])
        before[row["worker"]] = row["time"]
        if since is None:
            seconds = (row.get("compute_seconds") or 0.0) + (row.get("wait_seconds") or 0.0)
        else:
            seconds = (row["time"] - since) / 1e9 - (row.get(_TRACED) or 0.0)
        found.append(row.get("steps", 0) / seconds if seconds > _LEAST_SECONDS else None)
    return found


def compact(path: Path, large: int = _LARGE) -> bool:
    """Down-sample the file of a run that is over, if it is larger than `large` bytes (32 MiB).

    Returns whether it was. Never call it for a running run: the length of its file is the position
    in the chief's file.
    """
    if not path.exists() or path.stat().st_size <= large:
        return False
    with path.open("rb") as file, replacing(path, durable=False) as thinned:
        file.seek(-min(large, _TAIL_BYTES), os.SEEK_END)
        newest = max((row["time"] for row in _parsed(file.read())), default=0)
        file.seek(0)
        for row in thin((row for line in file for row in _parsed(line)), newest):
            thinned.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
    return True


def thin(rows: Iterable[dict[str, Any]], newest: int) -> Iterator[dict[str, Any]]:
    """Yield rows; merge those over an hour older than `newest` (ns) per worker and minute.

    Counts add up, gauges are averaged, and the longest gap is kept.
    """

    def minute(row: dict[str, Any]) -> int | None:
        old = newest - row["time"] >= _FRESH_SECONDS * 1e9
        if old:
            return row["time"] // int(_BUCKET_SECONDS * 1e9)
        return None

    for when, together in groupby(rows, minute):
        if when is None:
            yield from together
            continue
        workers: dict[str, list[dict[str, Any]]] = {}
        for row in together:
            workers.setdefault(row["worker"], []).append(row)
        yield from map(_merge, workers.values())


def _merge(group: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(group[-1])
    for key in _SUMS:
        merged[key] = sum(row.get(key) or 0 for row in group)
    for key in _MEANS:
        values = [row[key] for row in group if row.get(key) is not None]
        if values:
            merged[key] = sum(values) / len(values)
        else:
            merged[key] = None
    merged["gap_seconds"] = max(row.get("gap_seconds") or 0.0 for row in group)
    if traced := sum(row.get(_TRACED) or 0.0 for row in group):
        merged[_TRACED] = traced
    if splits := [parts for row in group if (parts := step_parts(row.get("split")))]:
        merged["split"] = functools.reduce(StepParts.plus, splits).rounded
    for key in GRADIENTS:
        if values := [row[key] for row in group if row.get(key) is not None]:
            merged[key] = sum(values) / len(values)
    return merged
