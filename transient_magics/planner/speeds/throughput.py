"""The training speed of a cluster: steps per second of workers within the limit of its servers.

A step of a worker is its own computing (`compute_seconds`) and the work of a parameter server for
it (`service_seconds`: pull, push, update), which n servers share. Workers' speeds add up until the
servers are busy. n servers take n**scaling / service_seconds steps per second, and near that the
sum bends smoothly,

    speed = offered * (1 + (offered / capacity)**sharpness) ** (-1 / sharpness)

CM-DARE (Li et al., ICDCS'20, section 4) found the sum. The bend is ours, and so is the use of one
number for the servers' part of a step and for the limit of their capacity. Both are fitted to the
cells of CM-DARE and ICAC'19. Speeds are in steps per second, of all workers together for a cluster;
any of them may be an array.

With parameter servers in another region, a step takes longer. A step pulls the variables and pushes
their gradients. Each way takes round trips, and the bytes go through one TCP connection to each
server, which carries at most its window in a round trip. Windows and round trips were fitted to
CM-DARE's steps at 0.3 and 30.3 ms (Li et al., ICDCS'20, `speed_data_supertable`: four networks on
the K80 and the P100, one worker and one server), with errors of 8 % on average and 17 % at worst.

Workers of clusters take longer. Between us-east1 and us-central1 the additional time of a step of
ResNet-32 was about 1.3 times CM-DARE's prediction for ICAC'19's K80s, and 6 times for its P100s (Li
et al., ICAC'19; the mean hours of its clusters `3e1c` and `2e2c`). The geometric mean of these two
is 2.8 times the result of `alone` (`_IN_CLUSTERS`), and the standard deviation of the logarithm is
1.1 (`ADDED_ERROR`). CM-DARE's own steps do not count here: they were taken by one worker without
others, and `alone` is fitted to them. It is unknown which of the two applies to another distance,
so each is an estimate.

The same window and round trip bound the steps per second of a distant worker, with any GPU. That
needs no separate limit: the seconds for the bytes are part of the additional time, and one error is
drawn for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...catalog import accelerator, worker_entry
from ...errors import DeclarationError
from ...spec import BYTES_EACH_WAY

SHARPNESS = 4.5
"""Sharpness of the bend: best for CM-DARE's 96 cells of four models.

The error is 2.5 % on average, 7.7 % at worst.
"""
SCALING = 0.85
"""The exponent for parameter servers of models whose variables spread over them.

ResNets measured 0.83 to 1.14.
"""
SERVICE_ERROR = 0.3
"""Relative error of `service_by_size`.

Networks that were left out of the fit have 22 % (root mean square), 38 % at worst.
"""

# Seconds for one MB of variables.
_SERVICE_SECONDS = 0.0049
_SERVICE_POWER = 0.765

LEAST_SHARE = 0.05
"""Smallest share of a step that counts as waiting for preparation, according to a split."""
PREPARATION_ERROR = 0.2
"""Relative error of a step bound by preparation on other vCPUs: some of it is not parallel."""
SMALLER_ERROR = 0.3
"""Relative error of a step on fewer vCPUs than measured, if it did not wait for preparation."""

# (family, GFLOPs of the training graph at batch 1, ms on K80, ms on P100)
_MEASURED: dict[str, tuple[str, float, float, float]] = {
    "resnet-15": ("resnet", 0.631, 105.8, 40.6),
    "custom-1": ("resnet", 0.860, 131.7, 58.2),
    "custom-2": ("resnet", 1.088, 155.0, 68.9),
    "custom-3": ("resnet", 1.543, 203.8, 85.9),
    "resnet-32": ("resnet", 1.659, 217.9, 82.6),
    "custom-9": ("resnet", 2.001, 255.1, 92.6),
    "custom-4": ("resnet", 2.344, 291.2, 118.6),
    "custom-5": ("resnet", 2.916, 348.3, 140.4),
    "custom-6": ("resnet", 3.944, 447.5, 191.0),
    "custom-10": ("resnet", 4.285, 490.8, 177.8),
    "custom-7": ("resnet", 4.971, 561.2, 236.3),
    "custom-8": ("resnet", 5.882, 658.3, 273.2),
    "shake-shake-16": ("shake-shake", 0.664, 232.1, 129.2),
    "shake-shake-small": ("shake-shake", 2.587, 391.5, 145.0),
    "shake-shake-small-32d": ("shake-shake", 3.274, 474.6, 168.8),
    "shake-shake-48": ("shake-shake", 5.768, 608.7, 236.0),
    "shake-shake-64": ("shake-shake", 10.208, 788.3, 313.6),
    "shake-shake-64-32d": ("shake-shake", 12.951, 989.0, 354.5),
    "shake-shake-80": ("shake-shake", 15.907, 1204.2, 416.3),
    "shake-shake-big": ("shake-shake", 22.865, 1405.9, 492.7),
}
GPUS = ("k80", "p100")
"""The GPUs on which they were measured."""
ALL = "all"
"""All families together, for a model of another family."""
BATCH_SIZE = 128


def worker_speed(
    compute_seconds: ArrayLike, service_seconds: ArrayLike, servers: int
) -> NDArray[np.float64]:
    """Return steps per second of a single worker with `servers` parameter servers.

    With 0 servers, its variables are its own.
    """
    return 1.0 / (
        np.asarray(compute_seconds, dtype=float) + np.asarray(service_seconds) / max(servers, 1)
    )


def capacity(service_seconds: float, servers: int, scaling: float = SCALING) -> float:
    """Return the steps per second of the parameter servers; infinite if their part is unknown."""
    return float(capacities(np.array(service_seconds), servers, np.array(scaling)))


def capacities(
    service_seconds: NDArray[np.float64], servers: int, scaling: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the capacities of several laws."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(service_seconds > 0, max(servers, 1) ** scaling / service_seconds, np.inf)


def service_by_size(parameters: float) -> float:
    """Return a parameter server's seconds for a step of a model that never reached its limit.

    Return 0 if the parameters were not counted. The law is a power of the size of the variables,
    fitted to the four networks whose limits CM-DARE and ICAC'19 measured (2.6 to 100 MB): small
    ones spend more of the time on work other than the transfer.
    """
    return _SERVICE_SECONDS * (4 * parameters / 2**20) ** _SERVICE_POWER


def cluster_speed(
    offered: ArrayLike, limit: ArrayLike, sharpness: ArrayLike = SHARPNESS
) -> NDArray[np.float64]:
    """Return steps per second of workers with the total speed `offered`, with servers' `limit`."""
    speed = np.asarray(offered, dtype=float)
    sharp = np.asarray(sharpness, dtype=float)
    return speed * (1.0 + (speed / np.asarray(limit)) ** sharp) ** (-1.0 / sharp)


def synchronous_speed(
    speeds: ArrayLike, counts: ArrayLike, backup: int, limit: ArrayLike
) -> NDArray[np.float64]:
    """Return steps per second of workers that take their steps together.

    The last axis of `speeds` and `counts` has the kinds of workers: the speed of a single one, and
    their number. A step takes as long as the slowest worker's, without the `backup` slowest, while
    the servers (`limit`) serve all of them one after the other: 1 / slowest + (workers - 1) /
    limit. The speed is 0 without workers.
    """
    speeds, counts = np.broadcast_arrays(np.asarray(speeds, float), np.asarray(counts))
    workers = counts.sum(axis=-1)
    needed = np.maximum(workers - backup, 1)[..., np.newaxis]
    as_fast = (
        counts[..., np.newaxis, :] * (speeds[..., np.newaxis, :] >= speeds[..., np.newaxis])
    ).sum(axis=-1)
    slowest = np.where((counts > 0) & (as_fast >= needed), speeds, 0.0).max(axis=-1)
    alone = np.divide(1.0, slowest, out=np.full(slowest.shape, np.inf), where=slowest > 0)
    return 1.0 / (alone + np.maximum(workers - 1, 0) / np.asarray(limit))


def bytes_per_step(parameters: float, wire: str = "fp32") -> float:
    """Return the bytes of one step: each parameter is pulled, its gradient pushed."""
    return 2 * BYTES_EACH_WAY[wire] * parameters


# A round trip over 111 km in glass fibre (200 km/ms), 1.5 times the great circle.
_SECONDS_PER_DEGREE = 0.0017

_WITHIN_A_REGION = 0.0003

_ROUND_TRIPS = 0.64

_WINDOW = 3.96e6
"""Most bytes in flight: about the 4 MiB of a sender on Linux (`tcp_wmem`, ip-sysctl)."""

_IN_CLUSTERS = 2.8

ADDED_ERROR = 1.1
"""Standard deviation of the logarithm of `added_seconds`."""


def round_trip(degrees: float) -> float:
    """Return an estimate of the round trip, in seconds, to a region at this angular distance."""
    return _WITHIN_A_REGION + _SECONDS_PER_DEGREE * degrees


def alone(seconds: float, step_bytes: float, servers: int = 1) -> float:
    """Return the additional seconds of a step of a single worker, as measured by CM-DARE.

    Parameters
    ----------
    seconds
        The round trip to the parameter servers.
    step_bytes
        Bytes of a step, both ways together.
    servers
        The number of parameter servers, over which the bytes are spread.
    """
    further = max(seconds - _WITHIN_A_REGION, 0.0)
    return _ROUND_TRIPS * further + step_bytes / max(servers, 1) * further / _WINDOW


def added_seconds(seconds: float, step_bytes: float, servers: int = 1) -> float:
    """Return the median additional seconds of a step of a cluster's worker.

    The parameters are those of `alone`.
    """
    return _IN_CLUSTERS * alone(seconds, step_bytes, servers)


# Time to prepare mini-batches, if steps waited for it, and the effect of another machine.
#
# Mini-batches are prepared beside the step, in as many concurrent calls as the VM has vCPUs, so a
# step takes the longer of the two. Where it waits for its mini-batch, it takes as long as the
# preparation, whose vCPU-seconds then follow. With n times the vCPUs it takes an n-th, until the
# rest of the step is longer (DS-Analyzer: Mohan et al., VLDB 2021, section 3.3). Fetching, which
# does not need vCPUs, counts as preparation here.
#
# A kind of worker is a GPU, with its machine unless it is the catalog's default: `t4`,
# `t4/n1-standard-16`.


class Waits(NamedTuple):
    """Waits for mini-batches of one kind of worker, the seconds of its steps, and their number."""

    waited: float
    seconds: float
    steps: int

    @property
    def share(self) -> float:
        """The share of a step that is waiting."""
        if self.seconds > 0:
            return self.waited / self.seconds
        return 0.0


@cache
def kind_of(gpu: str, machine: str = "") -> str:
    """Return the kind of a worker with this GPU in this machine.

    An empty or invalid machine stands for the catalog's default.
    """
    try:
        entry = worker_entry(gpu, machine)
    # A journal may be from a version with more machines.
    except DeclarationError:
        return gpu
    if entry.machine_type == accelerator(gpu).machine_type:
        return gpu
    return f"{gpu}/{entry.machine_type}"


def gpu_of(kind: str) -> str:
    """Return the GPU of a kind of worker."""
    return kind.partition("/")[0]


def vcpus_of(kind: str) -> int:
    """Return the vCPUs of a kind of worker.

    Raises DeclarationError for a machine that is not available with its GPU.
    """
    gpu, _, machine = kind.partition("/")
    return worker_entry(gpu, machine).vcpus


def waiting(waits: Iterable[Mapping[str, Waits]]) -> tuple[dict[str, float], float]:
    """Return waiting seconds of a step by kind of worker, and vCPU-seconds of preparation.

    They combine the waits of several runs. The vCPU-seconds are those of a mini-batch, 0 where no
    kind waits.
    """
    sums: dict[str, Waits] = {}
    for run_waits in waits:
        for kind, more in run_waits.items():
            total = sums.get(kind, Waits(0.0, 0.0, 0))
            sums[kind] = Waits(
                total.waited + more.waited, total.seconds + more.seconds, total.steps + more.steps
            )
    found = {
        kind: combined
        for kind, combined in sums.items()
        if combined.steps and combined.share >= LEAST_SHARE
    }
    steps = sum(combined.steps for combined in found.values())
    spent = sum(combined.seconds * vcpus_of(kind) for kind, combined in found.items())
    return {
        kind: combined.waited / combined.steps for kind, combined in found.items()
    }, spent / steps if steps else 0.0


# Step times of models without measurements: a line over floating-point operations, one per family
# and GPU.
#
# CM-DARE (ICDCS'20) measured twenty convolutional networks on K80 and P100 (batches of 128, one
# worker, one parameter server; `speed_data`). One line for all of them misses an unseen model by a
# quarter, a line per architecture family by some per cent: a Shake-Shake network spends much of a
# step on work other than floating-point operations. The lines are fitted to relative errors,
# because a step of 40 ms and one of 1.4 s have the same weight. The reported error is that of
# models left out of the fit.


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a step of 128 examples: `fixed + per_gigaflop * GFLOPs`.

    `error` is the relative standard deviation of unseen models, from leaving out each of them.
    """

    fixed: float
    per_gigaflop: float
    error: float

    def seconds(self, gigaflops: float, batch_size: float = BATCH_SIZE) -> float:
        """Return the seconds of a model with GFLOPs (training graph, batch of 1) and a batch."""
        return self.fixed + self.per_gigaflop * gigaflops * batch_size / BATCH_SIZE


def families() -> tuple[str, ...]:
    """Return the measured families."""
    return tuple(dict.fromkeys(family for family, *_ in _MEASURED.values()))


def extent(family: str) -> tuple[float, float]:
    """Return the least and the most GFLOPs of a family's measured networks."""
    found = [row[1] for row in _MEASURED.values() if family in (row[0], ALL)]
    return min(found), max(found)


@cache
def line(family: str, gpu: str) -> Line | None:
    """Return the line of a family (or of `ALL`) on a GPU; None without measurements."""
    points = _points(family, gpu)
    if len(points) < 3:
        return None
    errors = [predicted / seconds - 1 for _, seconds, predicted in leave_one_out(family, gpu)]
    return Line(*_fit(points), float(np.sqrt(np.mean(np.square(errors)))))


def leave_one_out(family: str, gpu: str) -> list[tuple[str, float, float]]:
    """Return each measured model's name, its seconds, and their prediction from the others."""
    names = [name for name, row in _MEASURED.items() if family in (row[0], ALL)]
    points = _points(family, gpu)
    found = []
    for index, (name, (gigaflops, seconds)) in enumerate(zip(names, points, strict=True)):
        fixed, slope = _fit(points[:index] + points[index + 1 :])
        found.append((name, seconds, fixed + slope * gigaflops))
    return found


def _points(family: str, gpu: str) -> list[tuple[float, float]]:
    if gpu not in GPUS:
        return []
    column = 2 + GPUS.index(gpu)
    return [
        (float(row[1]), float(row[column]) / 1000)
        for row in _MEASURED.values()
        if family in (row[0], ALL)
    ]


def _fit(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the line with the least sum of squared relative errors."""
    x, y = np.array(points).T
    terms = np.stack([np.ones_like(x), x], axis=1) / y[:, np.newaxis]
    (fixed, slope), *_ = np.linalg.lstsq(terms, np.ones_like(y), rcond=None)
    return float(fixed), float(slope)
