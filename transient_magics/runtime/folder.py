"""One run's folder on a VM: what the controller put there, and where the roles write.

`run.json` (the declaration and the run's token), `cell.py`, `include/`, `wheels/` and, on the chief's VM, the token for
the bucket come from the controller. Events, metrics, checkpoints, data and logs are written here by the roles. Every
line of a file is written with one call, so that a reader following it never sees two writers' lines mixed.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import TrainingError


@dataclass(frozen=True)
class RunSpec:
    """What was declared for a run, as far as the roles need it. Unknown keys of a newer controller are ignored."""

    name: str
    train_steps: int
    model: str = ""
    """Of Tensor2Tensor's registry; none: the cell's own."""
    hparams_set: str = ""
    problem: str = ""
    hparams: str = ""
    data_dir: str | None = None
    checkpoint_steps: int | None = 1000
    checkpoint_seconds: float | None = 600
    checkpoint_auto: bool = False
    keep: int = 5
    """How many checkpoints stay."""
    ps_shards: int = 1
    mode: str = "async"
    backup_workers: int = 0
    batching: str = "uniform"
    deadband: float = 0.05
    batch_smoothing: float = 0.3
    batch_least: int = 0
    batch_most: int = 0
    step_time: str = "affine"
    lr_policy: str = "active"
    damping: str = "none"
    max_workers: int = 0
    workers: int = 0
    """How many were declared for the cluster."""
    wire: str = "fp32"
    alarm_below: float = 0.8
    alarm_after: float = 30.0
    noise_share: float = 0.008
    eval_steps: int | None = None
    eval_batches: int = 100
    """Of the dev split, in an evaluation; 0: all."""
    pace_seconds: float | None = None
    notice_seconds: float = 30.0
    """Between the notice that a VM is taken and its end."""
    line_offset: int = 1
    threads: int = 0
    chief: str = "ps"
    """Who saves: `ps`, or a `worker`."""
    records: str | None = None
    """Where in a bucket the records are, or go when they are made."""
    store: str | None = None
    resume_store: str | None = None
    token: str = field(default="", repr=False)

    @property
    def damped(self) -> bool:
        """Whether late gradients are applied with a lower learning rate."""
        return self.damping == "staleness"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunSpec:
        """Take the known keys of run.json; what is absent or null keeps its default."""
        known = {item.name for item in fields(cls)}
        given = {key: value for key, value in values.items() if key in known and value is not None}
        for key in ("checkpoint_steps", "checkpoint_seconds", "data_dir", "eval_steps", "pace_seconds"):
            if key in values and values[key] is None:
                given[key] = None
        if str(given.get("data_dir")).startswith("gs://"):  # they come to the chief, and from it to the workers
            given["records"], given["data_dir"] = given["data_dir"], None
        try:
            return cls(**given)
        except TypeError as error:
            raise TrainingError(f"run.json is incomplete: {error}") from error


class RunFolder:
    """The paths of one run below an agent's root, its declaration, and its append-only files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cell = path / "cell.py"
        self.include = path / "include"
        self.wheels = path / "wheels"
        self.packages = path / "packages"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.data = path / "data"
        self.graphs = path / "graphs"
        self.logs = path / "logs"
        self.chief = path / "chief.json"
        self.bucket_token = path / "bucket-token.json"

    def spec(self) -> RunSpec:
        """Read run.json."""
        declared = self.path / "run.json"
        try:
            return RunSpec.from_dict(json.loads(declared.read_text()))
        except (OSError, ValueError) as error:
            raise TrainingError(f"the declaration of the run cannot be read: {error}", where=str(declared)) from error

    def data_directory(self, spec: RunSpec) -> str:
        """Where the problem's records are: the declared place, or the run's own folder."""
        return spec.data_dir or str(self.data)


class Lines:
    """Lines that must not be lost when the disk is full for a while: they wait, in order, until they can be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: deque[Mapping[str, Any]] = deque()

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append an event, now or as soon as there is room."""
        self._waiting.append({"time": time.time_ns(), "kind": kind, **values})
        self.flush()

    @property
    def waiting(self) -> bool:
        """Whether some could not be written yet."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Try again what waits."""
        while self._waiting:
            try:
                append(self._path, self._waiting[0])
            except OSError as error:
                print(f"{self._path.name} cannot be written: {error}", file=sys.stderr, flush=True)
                return
            self._waiting.popleft()


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append `line` as JSON with one write; a torn line before it (a crash, a full disk) is closed first."""
    text = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            text = b"\n" + text
        if os.write(handle, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(handle)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content` so that a reader or a crash sees the old or the new content, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
