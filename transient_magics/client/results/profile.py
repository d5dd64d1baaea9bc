"""A traced step for other programs: Chrome's trace format (Perfetto, chrome://tracing) and XPlane.

XPlane is the format of TensorBoard. Two VMs have two clocks. Operations on another VM are moved to
the worker's clock only as far as transfers require it: a tensor never arrives before it was made.
The shift is part of the trace.

The numbers of fields of an XSpace are those of TensorFlow's xplane.proto.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError, reason_of
from ...journal import ClusterState, RunState
from ...protocol import layout
from ...protocol.cluster_commands import Profile
from ...protocol.step_parts import MOST_BYTES, Operation, Trace, unpacked
from .. import commands
from ..following.cluster import until_home
from ..text import plain
from .event_files import integer, message

if TYPE_CHECKING:
    from ..recorded_run import RecordedRun

_SECONDS = 150.0
XPLANE = ".xplane.pb"
_TRANSFER = re.compile(r"edge_\d+_(.+) from (\S+) to (\S+)")
_DEVICE = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)/device:(\w+:\d+)(.*)")


def profile(run: RecordedRun, file: Path, worker: str) -> Path:
    """Trace a step of a worker and write it. Raises TrainingError or ClusterError."""
    before = run.state.traced
    had = _written(run)
    commands.send(run.cluster.directory, Profile(run=run.name, worker=worker))

    def is_answered(state: ClusterState) -> bool:
        now = state.of(RunState).get(run.name)
        return state.over or now is None or now.over or now.traced != before

    run.cluster.follow(is_answered, _SECONDS)
    found = run.state.traced
    if found is None or found == before:
        raise TrainingError(
            f"No step of {run.name} was traced: it ended, or made no step within {_SECONDS:.0f} s",
            where=run.cluster.name,
            fix="Try again while it trains.",
        )
    if found.reason:
        raise TrainingError(
            f"No step of {run.name} was traced: {found.reason}", where=run.cluster.name
        )
    path = run.directory / layout.trace_of(found.worker)
    if not until_home(run.cluster, lambda: _written(run).get(path) != had.get(path)):
        raise TrainingError(
            "The trace has not arrived from the VM of the controller",
            where=run.cluster.name,
            fix="Try again in a moment.",
        )
    trace = read(path)
    try:
        file.write_bytes(written(trace, file.name))
    except OSError as error:
        raise TrainingError(
            f"The trace cannot be written: {reason_of(error)}", where=str(file)
        ) from error
    return file


def _written(run: RecordedRun) -> dict[Path, int]:
    """Return when each trace of the run on this machine was written."""
    return {
        path: path.stat().st_mtime_ns for path in (run.directory / layout.TRACES).glob("*.json.gz")
    }


def read(path: Path) -> Trace:
    """Return a trace that came from a VM. Raises TrainingError for an invalid one."""
    try:
        with path.open("rb") as file:
            return unpacked(file.read(MOST_BYTES + 1))
    except OSError as error:
        raise TrainingError(
            f"The trace cannot be read: {reason_of(error)}", where=str(path)
        ) from error
    except ValueError as error:
        raise TrainingError(
            f"The file from the VM is not a trace: {error}", where=str(path)
        ) from error


def written(trace: Trace, name: str) -> bytes:
    """Return the bytes of a file by its name: `.xplane.pb` for TensorBoard, else Chrome's JSON.

    A name that ends in `.gz` is compressed.
    """
    if name.endswith(XPLANE):
        return xplane(trace)
    content = json.dumps(chrome(trace), separators=(",", ":")).encode()
    if name.endswith(".gz"):
        return gzip.compress(content)
    return content


def chrome(trace: Trace) -> dict[str, Any]:
    """Return the trace in Chrome's Trace Event Format."""
    events: list[dict[str, Any]] = []
    moved = shifts(trace)
    for device, name, operations in _devices(trace):
        events.append({"ph": "M", "pid": device, "name": "process_name", "args": {"name": name}})
        events.append(
            {"ph": "M", "pid": device, "name": "process_sort_index", "args": {"sort_index": device}}
        )
        for lane, operation in _lanes(operations):
            events.append(
                {
                    "ph": "X",
                    "pid": device,
                    "tid": lane,
                    "ts": round(operation.begin + moved[device], 3),
                    "dur": round(operation.lasted, 3),
                    "name": plain(operation.kind),
                    "cat": "transfer" if operation.label else "op",
                    "args": {
                        "name": plain(operation.name),
                        **({"transfer": plain(operation.label)} if operation.label else {}),
                    },
                }
            )
    facts = {
        "worker": plain(trace.worker),
        "step": trace.step,
        "seconds": trace.seconds,
        "began": trace.began,
        "left_out": trace.left_out,
        "clocks": {
            _named(trace, at): f"moved by {by / 1e3:.3f} ms" for at, by in enumerate(moved) if by
        },
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def xplane(trace: Trace) -> bytes:
    """Return the trace as an XSpace: a plane for each device, a line for each lane."""
    moved = shifts(trace)
    planes = list[bytes]()
    for device, name, operations in _devices(trace):
        kinds: dict[str, int] = {}
        lines: dict[int, list[bytes]] = {}
        for lane, operation in _lanes(operations):
            kind = kinds.setdefault(
                f"{plain(operation.kind)}:{plain(operation.name)}", len(kinds) + 1
            )
            offset = max(0, round(1e6 * (operation.begin + moved[device])))
            event = (
                integer(1, kind) + integer(2, offset) + integer(3, round(1e6 * operation.lasted))
            )
            lines.setdefault(lane, []).append(message(4, event))
        content = integer(1, device) + message(
            2, (b"/host:CPU" if not device else f"/device:CUSTOM:{name}".encode())
        )
        for lane, events in lines.items():
            line = integer(1, lane + 1) + message(2, f"{name} {lane + 1}".encode())
            content += message(3, line + integer(3, round(1e9 * trace.began)) + b"".join(events))
        for kind, number in kinds.items():
            content += message(
                4, integer(1, number) + message(2, integer(1, number) + message(2, kind.encode()))
            )
        planes.append(message(1, content))
    return b"".join([*planes, message(4, plain(trace.worker).encode())])


def shifts(trace: Trace) -> list[float]:
    """Return for each device by how many microseconds its clock is moved to that of the worker.

    Each transfer between them limits the shift on one side: the operation that made a tensor was
    over when it arrived.
    """
    places = {name: at for at, name in enumerate(trace.devices)}
    ends = {
        (operation.device, operation.name): operation.end
        for operation in trace.operations
        if not operation.label
    }
    home = _home(trace)
    least = dict[int, float]()
    most = dict[int, float]()
    for transfer in trace.operations:
        if not (found := _TRANSFER.search(transfer.label)):
            continue
        made = places.get(found[2])
        if made is not None:
            end = ends.get((made, found[1]))
        else:
            end = None
        if made is None or end is None or made == transfer.device:
            continue
        if _job(trace, transfer.device) == home:
            most[made] = min(most.get(made, math.inf), transfer.end - end)
        elif _job(trace, made) == home:
            least[transfer.device] = max(least.get(transfer.device, -math.inf), end - transfer.end)
    return [
        _between(least.get(at, -math.inf), most.get(at, math.inf))
        for at in range(len(trace.devices))
    ]


def _between(least: float, most: float) -> float:
    """Return 0 if it is within the limits; else their middle, or the only finite limit."""
    if least <= 0 <= most:
        return 0.0
    if math.isfinite(least) and math.isfinite(most):
        return (least + most) / 2
    return most if math.isfinite(most) else least


def _job(trace: Trace, device: int) -> str:
    return trace.devices[device].partition("/device:")[0]


def _home(trace: Trace) -> str:
    """Return the job and task of the traced worker; empty if no device has them."""
    return next(
        (name.partition("/device:")[0] for name in trace.devices if name.startswith("/job:worker")),
        "",
    )


def _devices(trace: Trace) -> Iterator[tuple[int, str, list[Operation]]]:
    for at in range(len(trace.devices)):
        yield (
            at,
            _named(trace, at),
            [operation for operation in trace.operations if operation.device == at],
        )


def _named(trace: Trace, at: int) -> str:
    """Return the name of a device to show, such as `worker-0 CPU:0` or `ps-0 CPU:0`."""
    name = trace.devices[at]
    found = _DEVICE.fullmatch(name)
    if not found:
        return plain(name)
    if found[1] == "worker":
        vm = plain(trace.worker)
    else:
        vm = f"{found[1]}-{found[2]}"
    return f"{vm} {found[3]}{plain(found[4])}"


def _lanes(operations: Sequence[Operation]) -> Iterable[tuple[int, Operation]]:
    """Yield each operation with the first lane that is free when it begins."""
    free: list[float] = []
    for operation in sorted(operations, key=lambda operation: operation.begin):
        lane = next((at for at, until in enumerate(free) if until <= operation.begin), len(free))
        free[lane : lane + 1] = [operation.end]
        yield lane, operation
