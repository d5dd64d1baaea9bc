"""What was measured on Google's preemptible VMs in 2018 and 2019, as tables: how long they lived, how long they took
to start.

Figures derived from the data sets of two papers of the Cake Lab at WPI, under Apache-2.0:

- revocations: CM-DARE (Li, Walls, Guo, "Characterizing and Modeling Distributed Training with Transient Cloud GPU
  Servers", ICDCS 2020, github.com/cake-lab/CM-DARE), hourly revocation counts by GPU and region; CPU: ICAC'19 (Li,
  Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", github.com/cake-lab/transient-deep-learning), 348
  VMs in us-east1-b;
- start-up: CM-DARE's `startup_time` (K80, P100) and its replacement requests (V100).

All of them are preemptible VMs of that time, ended after 24 hours at the latest: a worked example, no forecast.
The data's hour of day is not used: its time zone is not stated, and as the VMs were launched at a few hours of the day
only, the hour mirrors the launches. Whether a VM was busy made no consistent difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .regions import nearest

HOUR = 3600.0
LAST_HOUR = 24

# (GPU, region): VMs launched, and how many of them had been revoked by the end of hour 1, 2, ... 24.
_REVOKED: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {
    ("k80", "us-central1"): (48, (5, 5, 7, 7, 7, 8, *[13] * 7, 14, 15, *[22] * 5, *[23] * 3, 27)),
    ("k80", "us-west1"): (48, (2, 2, 7, *[8] * 8, *[9] * 4, *[10] * 5, *[11] * 4)),
    ("k80", "europe-west1"): (30, (12, 12, *[14] * 4, 15, 15, *[16] * 4, *[18] * 3, *[20] * 9)),
    ("k80", "us-east1"): (30, (14,) * 24),
    ("p100", "us-east1"): (30, (6, 12, *[19] * 4, *[20] * 17, 21)),
    ("p100", "europe-west1"): (30, (0, 2, 4, 4, 5, 5, *[6] * 4, *[7] * 9, *[8] * 5)),
    ("p100", "us-central1"): (30, (8, *[10] * 5, 12, *[14] * 7, 15, *[16] * 9)),
    ("p100", "us-west1"): (30, (5, *[9] * 3, *[13] * 5, 15, *[16] * 4, *[20] * 10)),
    ("v100", "europe-west4"): (30, (2, 5, 5, *[6] * 5, *[7] * 4, *[11] * 11, 13)),
    ("v100", "asia-east1"): (30, (7, 9, 11, 12, 12, *[14] * 19)),
    ("v100", "us-central1"): (30, (20,) * 24),
    ("v100", "us-west1"): (30, (9, 15, 16, *[22] * 21)),
    ("cpu", "us-east1"): (
        348,
        (14, 21, 29, 32, 34, 38, 42, 42, 44, 44, 47, 52, 55, *[56] * 5, 57, 57, 58, 59, 60, 61),
    ),
}

# (GPU, transient, coast): seconds in PROVISIONING, in STAGING, from RUNNING until SSH answers; deviation of the sum.
_STARTUP: dict[tuple[str, bool, str], tuple[float, float, float, float]] = {
    ("k80", True, "us-east1"): (1.58, 41.35, 37.73, 3.4),
    ("p100", True, "us-east1"): (1.72, 48.78, 41.38, 3.2),
    ("k80", False, "us-east1"): (2.44, 32.75, 40.37, 9.4),
    ("p100", False, "us-east1"): (1.49, 28.52, 40.33, 3.7),
    ("k80", True, "us-west1"): (2.01, 43.52, 40.29, 2.5),
    ("p100", True, "us-west1"): (2.17, 48.11, 40.10, 3.5),
    ("k80", False, "us-west1"): (2.14, 27.92, 38.56, 8.0),
    ("p100", False, "us-west1"): (1.92, 28.49, 38.77, 3.5),
}
# A V100 was measured as a replacement only, 70.9 s in all; how it divides is taken from the P100.
_V100_STARTUP = (1.33, 37.64, 31.93, 8.6)

# What stands in for GPUs that nobody published figures of: the measured one closest in age and in demand.
_STAND_IN = {"p4": "p100"}
_OTHERWISE = "v100"

@dataclass(frozen=True)
class Lifetimes:
    """How long VMs with a GPU lived in a region: hourly counts, taken as even within each hour."""

    gpu: str
    region: str
    launched: int
    revoked: tuple[int, ...]

    def fraction(self, age: float) -> float:
        """The fraction revoked by this age in seconds; as of 24 hours for any later one."""
        hour, part = divmod(max(age, 0.0) / HOUR, 1.0)
        if hour >= LAST_HOUR:
            return self.revoked[-1] / self.launched
        before = self.revoked[int(hour) - 1] if hour >= 1 else 0
        return (before + part * (self.revoked[int(hour)] - before)) / self.launched

    @property
    def median(self) -> float:
        """The age in seconds by which half were revoked; 24 hours where most lived as long as they were watched."""
        hours = (hour for hour in range(1, LAST_HOUR) if self.fraction(hour * HOUR) >= 0.5)
        return next(hours, LAST_HOUR) * HOUR

    def risk(self, begin: float, end: float) -> float:
        """The probability that a VM alive at age `begin` is revoked by age `end` (seconds).

        Nobody saw a VM older than 24 hours: from there on the mean rate of hours 12 to 24 goes on.
        """
        wall = LAST_HOUR * HOUR
        inside = 1 - self._alive(min(end, wall)) / self._alive(min(begin, wall))
        later = max(end - max(begin, wall), 0.0)
        return 1 - (1 - inside) * math.exp(-self._late_rate * later)

    @property
    def _late_rate(self) -> float:
        middle, end = LAST_HOUR / 2 * HOUR, LAST_HOUR * HOUR
        return math.log(self._alive(middle) / self._alive(end)) / (end - middle)

    def _alive(self, age: float) -> float:
        return 1 - self.fraction(age)


def lifetimes(gpu: str, region: str) -> Lifetimes:
    """The table for a GPU (the catalog's name) in a region, or the nearest that was published."""
    kind = _measured(gpu)
    near = nearest(region, [place for name, place in _REVOKED if name == kind])
    return Lifetimes(kind, near, *_REVOKED[kind, near])


def startup(gpu: str, transient: bool, region: str) -> tuple[float, float, float, float]:
    """Mean seconds of provisioning, staging and booting until SSH answers, and the standard deviation of their sum."""
    if gpu == "v100" and transient:
        return _V100_STARTUP
    kind = "k80" if gpu in ("k80", "cpu") else "p100"
    return _STARTUP[kind, transient, nearest(region, ["us-east1", "us-west1"])]


def stand_ins(gpu: str, region: str) -> str:
    """What stands in for what nobody published, as a clause; empty where there are figures."""
    used = lifetimes(gpu, region)
    what = [
        *([f"the {used.gpu.upper()}"] if used.gpu != gpu else []),
        *([used.region] if used.region != region else []),
    ]
    return f"{gpu.upper()} in {region} as {' in '.join(what)}" if what else ""


def _measured(gpu: str) -> str:
    return gpu if any(name == gpu for name, _ in _REVOKED) else _STAND_IN.get(gpu, _OTHERWISE)
