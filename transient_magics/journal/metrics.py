"""Per-second metrics of a run: one JSON line per worker and second in the run's own file, down-sampled as they age.

A line: `time` (ns, UTC), `worker`, `step` (global), `steps` and `samples` in this interval, `loss`, `batch_size` (of
uneven mini-batches of text in tokens), `compute_seconds`, `wait_seconds`, `gap_seconds` (the longest between two
steps), `staleness`. `compact` merges lines older than an hour into one per worker and minute.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from .follow import follow_lines

_FRESH_SECONDS = 3600
_BUCKET_SECONDS = 60
_SUMS = ("steps", "samples", "compute_seconds", "wait_seconds")
_LARGE = 32 * 2**20
_SAMPLES = 512
_SAMPLE_BYTES = 2**13
_PIECE_BYTES = 2**16


def append(path: Path, lines: bytes) -> None:
    """Append whole lines as they came from the VM."""
    with path.open("ab") as file:
        file.write(lines)


def read(path: Path) -> list[dict[str, Any]]:
    """All lines as dicts, oldest first; none where there is no file. A torn line is passed over."""
    try:
        return _parsed(path.read_bytes())
    except FileNotFoundError:
        return []


async def follow(path: Path) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield lines as the file at `path` grows, first those that are there, for ever; its folder must be there.

    Of what is there already in a large file, blocks at equal distances are read (4 MiB in all), and its end.
    """
    size, spread = path.stat().st_size if path.exists() else 0, _SAMPLES * _SAMPLE_BYTES
    offset = 0
    if size > spread:
        with path.open("rb") as file:
            for number in range(_SAMPLES):
                file.seek(offset := number * (size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                block = file.read(_SAMPLE_BYTES)
                offset += block.rfind(b"\n") + 1
                yield _parsed(block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1])
                await asyncio.sleep(0)  # others have their turn
    async for _, block in follow_lines(path, offset):
        for begin in range(0, len(block), _PIECE_BYTES):
            end = block.find(b"\n", begin + _PIECE_BYTES) + 1 or len(block)
            start = block.find(b"\n", begin) + 1 if begin else 0
            yield _parsed(block[start:end])
            await asyncio.sleep(0)


def _parsed(content: bytes) -> list[dict[str, Any]]:
    rows = []
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn by a crash; the next second's line says more
        if isinstance(row, dict):
            rows.append(row)
    return rows


def speeds(rows: Iterable[dict[str, Any]]) -> list[float | None]:
    """Steps per second of each row: its steps over the time since its worker's row before.

    A worker's first row counts the seconds that its steps took; None where the row does not say even that.
    """
    before: dict[str, int] = {}
    found: list[float | None] = []
    for row in rows:
        since = before.get(row["worker"])
        before[row["worker"]] = row["time"]
        if since is None:
            seconds = (row.get("compute_seconds") or 0.0) + (row.get("wait_seconds") or 0.0)
        else:
            seconds = (row["time"] - since) / 1e9
        found.append(row.get("steps", 0) / seconds if seconds > 0 else None)
    return found


def compact(path: Path) -> bool:
    """Down-sample a file that has grown past 32 MiB. Returns whether it was rewritten."""
    if not path.exists() or path.stat().st_size < _LARGE:
        return False
    rows = thin(read(path))
    temporary = path.with_suffix(".new")
    temporary.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    os.replace(temporary, path)
    return True


def thin(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows older than an hour before the newest, merged per worker and minute; counts add up, gauges are averaged."""
    rows = list(rows)
    newest = max((row["time"] for row in rows), default=0)
    kept, buckets = [], {}
    for row in rows:
        if newest - row["time"] < _FRESH_SECONDS * 1e9:
            kept.append(row)
        else:
            buckets.setdefault((row["time"] // int(_BUCKET_SECONDS * 1e9), row["worker"]), []).append(row)
    merged = [_merge(group) for group in buckets.values()]
    return sorted(merged, key=lambda row: row["time"]) + kept


def _merge(group: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(group[-1])
    for key in _SUMS:
        merged[key] = sum(row.get(key) or 0 for row in group)
    for key in ("loss", "staleness", "batch_size"):
        values = [row[key] for row in group if row.get(key) is not None]
        merged[key] = sum(values) / len(values) if values else None
    return merged
