"""A run's metrics and events for TensorBoard: `%tensorboard --logdir FOLDER`.

The folder has an event file for each owner of curves. `cluster` has loss, steps and samples per
second, workers, and events as texts. Each worker has, every second, loss, steps and samples per
second, seconds of computing and waiting per step, batch size, staleness, the divisor of the
learning rate, and now and then the norms of its gradients. `evaluation` has the metrics. `train`
and `validation` have those of each epoch of `model.fit`. All of it is read from the run's metrics
and the cluster's journal. `written.json` has the progress, so that a second call appends what is
new. It has the number of bytes, too, so that an interrupted call writes nothing twice. TensorBoard
shows ten texts of a kind unless started with `--samples_per_plugin text=1000`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError, reason_of
from ...files import write_atomically
from ...journal import Event, metrics, read
from ...protocol import layout
from ...protocol.vm_events import TrainEpoch, TrainEvaluated, TrainFinished, TrainProgress
from ..text import event_words, quiet_kinds
from . import event_files, profile

if TYPE_CHECKING:
    from ..recorded_run import RecordedRun

_FILE = "events.out.tfevents.{:010d}.transient-magics"
_SAFE = re.compile(r"[A-Za-z0-9_-]+")
_CURVES = (
    "loss",
    "batch_size",
    "staleness",
    "learning_rate_divisor",
    metrics.SERVER_SHARE,
    *metrics.GRADIENTS,
)

Records = dict[str, list[bytes]]


@dataclass
class _Written:
    """The progress of a folder: run, newest times of workers, the journal's seq, file sizes."""

    run: str
    workers: dict[str, int] = field(default_factory=dict)
    seq: int = 0
    sizes: dict[str, int] = field(default_factory=dict)


def write(run: RecordedRun, folder: Path) -> Path:
    """Bring `folder` up to date.

    Raises TrainingError if it has another run, or cannot be written.
    """
    state = run.recorded
    identity = f"{run.cluster.name}/{run.name} of {state.declared_at:.3f}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _read(folder / "written.json", identity)
        records: Records = {}
        _workers(run, written, records)
        _journal(run, written, records)
        name = _FILE.format(int(state.declared_at))
        for owner, lines in ((owner, lines) for owner, lines in records.items() if lines):
            size = written.sizes.get(owner, 0)
            written.sizes[owner] = event_files.append(folder / owner, name, lines, size)
        _save(folder / "written.json", written)
        _profiles(run, folder / "plugins" / "profile" / run.name)
    except OSError as error:
        raise TrainingError(
            f"The event files cannot be written: {reason_of(error)}", where=str(folder)
        ) from error
    return folder


def _profiles(run: RecordedRun, folder: Path) -> None:
    """Write the traced steps (`run.profile`) to the folder of TensorBoard's profiler."""
    for path in sorted((run.directory / layout.TRACES).glob("*.json.gz")):
        if _SAFE.fullmatch(worker := path.name.removesuffix(".json.gz")):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{worker}{profile.XPLANE}").write_bytes(profile.xplane(profile.read(path)))


def _read(path: Path, identity: str) -> _Written:
    try:
        written = _Written(**json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return _Written(identity)
    if written.run != identity:
        what = f"The folder holds the event files of {written.run.partition(' ')[0]}"
        raise TrainingError(what, where=str(path.parent), fix="Use another folder for each run.")
    return written


def _save(path: Path, written: _Written) -> None:
    write_atomically(path, json.dumps(asdict(written)), durable=False, mode=0o644)


def _workers(run: RecordedRun, written: _Written, records: Records) -> None:
    """Add the rows of each worker since the newest one that is written."""
    rows = metrics.read(run.directory / layout.METRICS)
    for row, speed in zip(rows, metrics.speeds(rows), strict=True):
        worker = str(row["worker"])
        at = row["time"]
        if at <= written.workers.get(worker, 0) or not _SAFE.fullmatch(worker):
            continue
        written.workers[worker] = at
        records.setdefault(worker, []).extend(
            _scalars(at / 1e9, row["step"], _measured(row, speed))
        )


def _measured(row: Mapping[str, Any], speed: float | None) -> dict[str, Any]:
    """Return the curves of a worker; sums are divided, because a row is of a second or a minute."""
    curves = {name: row.get(name) for name in _CURVES} | {"steps_per_second": speed}
    if steps := row.get("steps"):
        samples, computing, waiting = (
            row.get(name) or 0.0 for name in ("samples", "compute_seconds", "wait_seconds")
        )
        curves |= {
            "compute_seconds_per_step": computing / steps,
            "wait_seconds_per_step": waiting / steps,
        }
        curves |= {
            f"{part}_per_step": seconds / steps for part, seconds in metrics.split(row).items()
        }
        if speed is None:
            curves["samples_per_second"] = None
        else:
            curves["samples_per_second"] = speed * samples / steps
    return curves


def _journal(run: RecordedRun, written: _Written, records: Records) -> None:
    """Add the chief's reports, the evaluations, and what happened to the cluster during the run."""
    step = 0
    state = run.recorded
    end = state.ended_at if state.over else math.inf
    for event in read(run.cluster.directory / layout.JOURNAL):
        its_run = event.work_of("run")
        if its_run not in ("", run.name) or not (its_run or state.declared_at <= event.at <= end):
            continue
        step = getattr(event, "step", step)
        if event.seq <= written.seq:
            continue
        written.seq = event.seq
        cluster = records.setdefault("cluster", [])
        if isinstance(event, TrainEvaluated):
            records.setdefault("evaluation", []).extend(_scalars(event.at, step, event.metrics))
        if isinstance(event, TrainEpoch):
            for folder, curves in _curves_of_epoch(event).items():
                records.setdefault(folder, []).extend(_scalars(event.at, step, curves))
        cluster.extend(_scalars(event.at, step, _curves(event)))
        if event.kind and event.kind not in quiet_kinds():
            cluster.append(
                event_files.text(event.at, step, f"events/{event.kind}", event_words(event))
            )


def _curves_of_epoch(event: TrainEpoch) -> dict[str, dict[str, float]]:
    """Return the metrics of an epoch by folder, as Keras's TensorBoard names both."""
    found: dict[str, dict[str, float]] = {}
    for name, value in event.logs.items():
        folder = "validation" if name.startswith("val_") else "train"
        found.setdefault(folder, {})[f"epoch_{name.removeprefix('val_')}"] = value
    return found


def _curves(event: Event) -> dict[str, Any]:
    match event:
        case TrainProgress():
            return {
                "loss": event.loss,
                "steps_per_second": event.steps_per_second,
                "samples_per_second": event.samples_per_second,
                "active_workers": event.active,
            }
        case TrainFinished():
            return {"loss": event.loss}
    return {}


def _scalars(at: float, step: int, curves: Mapping[str, Any]) -> Iterator[bytes]:
    for name, value in curves.items():
        if value is not None and math.isfinite(value):
            yield event_files.scalar(at, step, name, value)
