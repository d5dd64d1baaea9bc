"""How fast a cluster trains: steps per second from what one worker needs and what parameter servers
can take.

A step of a worker is its own computing (`compute_seconds`) and what a parameter server does for it
(`service_seconds`: pull, push, update), which n servers share. Workers' speeds add up until the
servers are busy: n servers take n**scaling / service_seconds steps per second, and near that the
sum bends smoothly,

    speed = offered * (1 + (offered / capacity)**sharpness) ** (-1 / sharpness)

CM-DARE (Li et al., ICDCS'20, section 4) found the sum; the bend, and the servers' part of a step
being the same number as limits their capacity, are ours, fitted to its and ICAC'19's cells. Speeds
in steps per second, of all workers together where a cluster is meant; any of them may be an array.

Where the parameter servers are in another region, a step takes longer. A step pulls the variables
and pushes their gradients. Each way takes round trips, and the bytes go through one TCP connection
to each server, which carries no more than its window in a round trip. Windows and round trips were
fitted to CM-DARE's steps at 0.3 and 30.3 ms (Li et al., ICDCS'20, `speed_data_supertable`: four
networks on the K80 and the P100, one worker and one server), which they meet within 8 % in the mean
and 17 % at worst.

Workers of clusters take longer. Between us-east1 and us-central1 what was added to a step of
ResNet-32 was about 1.3 times what follows from CM-DARE for ICAC'19's K80s, and 6 times for its
P100s (Li et al., ICAC'19; the mean hours of its clusters `3e1c` and `2e2c`). The geometric mean of
these two is 2.8 times what `alone` computes (`_IN_CLUSTERS`), and the standard deviation of the
logarithm is 1.1 (`ADDED_ERROR`). CM-DARE's own steps do not count here: they were taken by one
worker without others, and `alone` is fitted to them. Nothing tells which of the two another
distance is like, so each is an estimate.

The same window and round trip bound the steps per second of a distant worker, whatever its GPU. No
limit of its own is needed for that: the seconds for the bytes are part of what is added, and one
error is drawn for them.
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
"""How sharply the sum bends: best for CM-DARE's 96 cells of four models (2.5 % mean, 7.7 % worst
error).
"""
SCALING = 0.85
"""The exponent for parameter servers of models whose variables spread over them: ResNets measured
0.83 to 1.14.
"""
SERVICE_ERROR = 0.3
"""How far off, relatively, `service_by_size` may be: 22 % (root mean square) of networks left out
of it, 38 % at worst.
"""

# of one MB of variables
_SERVICE_SECONDS = 0.0049
_SERVICE_POWER = 0.765

LEAST_SHARE = 0.05
"""Of a step: who waits less for mini-batches does not wait for preparation, as far as a split
tells.
"""
PREPARATION_ERROR = 0.2
"""How far off, relatively, a step may be that preparation bounds on other vCPUs: not all of it is
spread over them.
"""
SMALLER_ERROR = 0.3
"""The same of a step with fewer vCPUs than it was measured with, where it waited for none."""

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
"""On which they were measured."""
ALL = "all"
"""All families together, for a model of none of them."""
BATCH_SIZE = 128


def worker_speed(
    compute_seconds: ArrayLike, service_seconds: ArrayLike, servers: int
) -> NDArray[np.float64]:
    """Steps per second of a worker alone with `servers` parameter servers (0: its variables are its
    own).
    """
    return 1.0 / (
        np.asarray(compute_seconds, dtype=float) + np.asarray(service_seconds) / max(servers, 1)
    )


def capacity(service_seconds: float, servers: int, scaling: float = SCALING) -> float:
    """Steps per second that so many parameter servers take; infinite where their part is not known."""
    return float(capacities(np.array(service_seconds), servers, np.array(scaling)))


def capacities(
    service_seconds: NDArray[np.float64], servers: int, scaling: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The capacities of several laws."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(service_seconds > 0, max(servers, 1) ** scaling / service_seconds, np.inf)


def service_by_size(parameters: float) -> float:
    """A parameter server's seconds for a step of a model that never held it back; 0 where these
    were not counted.

    A power of the size of its variables, fitted to the four networks whose limits CM-DARE and
    ICAC'19 measured (2.6 to 100 MB): small ones spend more of it on what is no transfer.
    """
    return _SERVICE_SECONDS * (4 * parameters / 2**20) ** _SERVICE_POWER


def cluster_speed(
    offered: ArrayLike, limit: ArrayLike, sharpness: ArrayLike = SHARPNESS
) -> NDArray[np.float64]:
    """Steps per second of workers whose speeds sum up to `offered`, against servers that take
    `limit`.
    """
    speed = np.asarray(offered, dtype=float)
    sharp = np.asarray(sharpness, dtype=float)
    return speed * (1.0 + (speed / np.asarray(limit)) ** sharp) ** (-1.0 / sharp)


def synchronous_speed(
    speeds: ArrayLike, counts: ArrayLike, backup: int, limit: ArrayLike
) -> NDArray[np.float64]:
    """Steps per second of workers that take their steps together; the last axis of `speeds` and
    `counts` has the kinds of workers: what one of each reaches alone, and how many there are.

    A step takes as long as the slowest worker's, not counting the `backup` slowest, and the servers
    (`limit`) serve all of them one after the other meanwhile: 1 / slowest + (workers - 1) / limit.
    0 where there is no worker.
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
    """Bytes between a worker and its parameter servers in one step: each parameter comes, its
    gradient goes.
    """
    return 2 * BYTES_EACH_WAY[wire] * parameters


_SECONDS_PER_DEGREE = (
    0.0017  # a round trip over 111 km in glass fibre (200 km/ms), half as long again as a crow's
)

_WITHIN_A_REGION = 0.0003

_ROUND_TRIPS = 0.64

_WINDOW = 3.96e6
"""Bytes that are in flight at most: about the 4 MiB that Linux gives a sender (`tcp_wmem`,
ip-sysctl).
"""

_IN_CLUSTERS = 2.8

ADDED_ERROR = 1.1
"""How far off the logarithm of `added_seconds` is (standard deviation)."""


def round_trip(degrees: float) -> float:
    """Return the seconds to a region that is so far away on the globe and back: an estimate."""
    return _WITHIN_A_REGION + _SECONDS_PER_DEGREE * degrees


def alone(seconds: float, step_bytes: float, servers: int = 1) -> float:
    """Return the seconds that a step takes longer where nothing but one worker trains, as CM-DARE
    measured it.

    Parameters
    ----------
    seconds
        The round trip to the parameter servers.
    step_bytes
        What a step moves, both ways together.
    servers
        The number of parameter servers, over which the bytes are spread.
    """
    further = max(seconds - _WITHIN_A_REGION, 0.0)
    return _ROUND_TRIPS * further + step_bytes / max(servers, 1) * further / _WINDOW


def added_seconds(seconds: float, step_bytes: float, servers: int = 1) -> float:
    """Return the seconds that a step of a cluster's worker takes longer, in the median, with the
    parameters of `alone`.
    """
    return _IN_CLUSTERS * alone(seconds, step_bytes, servers)


# What preparing mini-batches takes, as far as steps were seen to wait for it, and what another
# machine would change.
#
# Mini-batches are prepared beside the step, in as many calls at once as the VM has vCPUs, so that a
# step takes the longer of the two. Where it waits for its mini-batch it takes as long as the
# preparation, whose vCPU-seconds are then known: with n times the vCPUs it takes an n-th, until the
# rest of the step is longer (DS-Analyzer: Mohan et al., VLDB 2021, section 3.3; what is fetched,
# and does not need vCPUs, is taken for preparation here).
#
# A kind of worker is a GPU, and its machine where that is not the catalog's: `t4`,
# `t4/n1-standard-16`.


class Waits(NamedTuple):
    """Of one kind of worker: seconds for which steps waited for their mini-batch, seconds of these
    steps, how many.
    """

    waited: float
    seconds: float
    steps: int

    @property
    def share(self) -> float:
        """What of a step is waiting."""
        if self.seconds > 0:
            return self.waited / self.seconds
        return 0.0


@cache
def kind_of(gpu: str, machine: str = "") -> str:
    """The kind of a worker with this GPU in this machine (empty, or one that it cannot have: in the
    catalog's).
    """
    try:
        entry = worker_entry(gpu, machine)
    except DeclarationError:  # a journal may be of a version that knew of more machines
        return gpu
    if entry.machine_type == accelerator(gpu).machine_type:
        return gpu
    return f"{gpu}/{entry.machine_type}"


def gpu_of(kind: str) -> str:
    """The GPU of a kind of worker."""
    return kind.partition("/")[0]


def vcpus_of(kind: str) -> int:
    """The vCPUs of a kind of worker. Raises DeclarationError for a machine that its GPU does not
    have.
    """
    gpu, _, machine = kind.partition("/")
    return worker_entry(gpu, machine).vcpus


def waiting(told: Iterable[Mapping[str, Waits]]) -> tuple[dict[str, float], float]:
    """From what several runs tell: seconds of a step for which each kind that waits does, and the
    vCPU-seconds that the preparation of a mini-batch takes (0 where nobody waits).
    """
    sums: dict[str, Waits] = {}
    for each in told:
        for kind, more in each.items():
            known = sums.get(kind, Waits(0.0, 0.0, 0))
            sums[kind] = Waits(
                known.waited + more.waited, known.seconds + more.seconds, known.steps + more.steps
            )
    found = {kind: each for kind, each in sums.items() if each.steps and each.share >= LEAST_SHARE}
    steps = sum(each.steps for each in found.values())
    taken = sum(each.seconds * vcpus_of(kind) for kind, each in found.items())
    return {
        kind: each.waited / each.steps for kind, each in found.items()
    }, taken / steps if steps else 0.0


# Step times of models that were never run: a line over floating-point operations, one per family and GPU.
#
# CM-DARE (ICDCS'20) measured twenty convolutional networks on K80 and P100 (batches of 128, one worker, one parameter
# server; `speed_data`). One line for all of them misses an unseen model by a quarter, a line per architecture family
# by some per cent: a Shake-Shake network spends much of a step on work that is no floating-point operation. The lines
# are fitted to relative errors, because a step of 40 ms and one of 1.4 s are to be met equally well; the error that
# is told is that of models left out of the fit.


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds of a step of 128 examples: `fixed + per_gigaflop * GFLOPs`. `error`: relative
    standard deviation of unseen models, as each was when it was left out.
    """

    fixed: float
    per_gigaflop: float
    error: float

    def seconds(self, gigaflops: float, batch_size: float = BATCH_SIZE) -> float:
        """Of a model with so many GFLOPs (training graph, batch of 1), with that batch."""
        return self.fixed + self.per_gigaflop * gigaflops * batch_size / BATCH_SIZE


def families() -> tuple[str, ...]:
    """The families that were measured."""
    return tuple(dict.fromkeys(family for family, *_ in _MEASURED.values()))


def extent(family: str) -> tuple[float, float]:
    """The least and the most GFLOPs of a family's networks that were measured."""
    found = [row[1] for row in _MEASURED.values() if family in (row[0], ALL)]
    return min(found), max(found)


@cache
def line(family: str, gpu: str) -> Line | None:
    """The line of a family (or of `ALL`) on a GPU; None where nobody measured it."""
    points = _points(family, gpu)
    if len(points) < 3:
        return None
    errors = [predicted / seconds - 1 for _, seconds, predicted in leave_one_out(family, gpu)]
    return Line(*_fit(points), float(np.sqrt(np.mean(np.square(errors)))))


def leave_one_out(family: str, gpu: str) -> list[tuple[str, float, float]]:
    """For each measured model its name, its seconds, and those predicted from the family's others."""
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
    """The line with the least sum of squared relative errors."""
    x, y = np.array(points).T
    terms = np.stack([np.ones_like(x), x], axis=1) / y[:, np.newaxis]
    (fixed, slope), *_ = np.linalg.lstsq(terms, np.ones_like(y), rcond=None)
    return float(fixed), float(slope)
