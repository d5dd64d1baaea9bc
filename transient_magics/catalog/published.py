"""Published measurements of Google's preemptible VMs in 2018 and 2019: lifetimes, start-up times.

The figures are derived from the data sets of two papers of the Cake Lab at WPI, under Apache-2.0:

- revocations: CM-DARE (Li, Walls, Guo, "Characterizing and Modeling Distributed Training with
  Transient Cloud GPU Servers", ICDCS 2020, github.com/cake-lab/CM-DARE), hourly revocation counts
  by GPU and region; CPU: ICAC'19 (Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient
  Servers", github.com/cake-lab/transient-deep-learning), 348 VMs in us-east1-b;
- start-up: CM-DARE's `startup_time` (K80, P100) and its replacement requests (V100).

All are preemptible VMs of that time, which ended after 24 hours at the latest: an example, and not
a forecast. The data's hour of day is not used: its time zone is unknown, and because the VMs were
launched at a few hours of the day only, the hour mirrors the launches. Busy and idle VMs did not
differ consistently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

from .machines import either

HOUR = 3600.0
LAST_HOUR = 24

# By (GPU, region): launched VMs, and the revoked ones by the end of hours 1 to 24.
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

WAVES = 0.25
"""The average share of a pool that one wave takes.

In the ICAC'19 data, of two VMs of one zone, GPU and campaign of which one is revoked, the other is
revoked within the same five minutes in 6.0 % of the cases (72 of 1206 pairs, GPUs only). In the
emulator's process of revocations that is the square of this share.
"""
LAUNCHED_TOGETHER = 8
CPUS_LAUNCHED_TOGETHER = 16
"""The number of VMs of one kind requested together in one zone, with and without a GPU (ICAC'19).
"""

# By (GPU, transient, coast): seconds in PROVISIONING, in STAGING, from RUNNING until SSH answers;
# deviation of the sum.
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
# V100s were measured as replacements only, 70.9 s in all; the P100's parts divide it.
_V100_STARTUP = (1.33, 37.64, 31.93, 8.6)

# On the emulator a GPU without published figures uses those of the measured GPU closest in age and
# demand.
_STAND_IN = {"p4": "p100"}
_OTHERWISE = "v100"

# Regions in degrees north and east (Google's list of locations), to find the nearest one with
# figures.
_PLACES = {
    "asia-east1": (24.1, 120.5),
    "asia-east2": (22.3, 114.2),
    "asia-northeast1": (35.7, 139.7),
    "asia-northeast2": (34.7, 135.5),
    "asia-northeast3": (37.6, 127.0),
    "asia-south1": (19.1, 72.9),
    "asia-south2": (28.6, 77.2),
    "asia-southeast1": (1.3, 103.7),
    "asia-southeast2": (-6.2, 106.8),
    "australia-southeast1": (-33.9, 151.2),
    "australia-southeast2": (-37.8, 145.0),
    "europe-central2": (52.2, 21.0),
    "europe-north1": (60.6, 27.2),
    "europe-southwest1": (40.4, -3.7),
    "europe-west1": (50.4, 3.8),
    "europe-west2": (51.5, -0.1),
    "europe-west3": (50.1, 8.7),
    "europe-west4": (53.4, 6.8),
    "europe-west6": (47.4, 8.5),
    "europe-west8": (45.5, 9.2),
    "europe-west9": (48.9, 2.4),
    "europe-west10": (52.5, 13.4),
    "europe-west12": (45.1, 7.7),
    "me-central1": (25.3, 51.5),
    "me-central2": (26.4, 50.1),
    "me-west1": (32.1, 34.8),
    "northamerica-northeast1": (45.5, -73.6),
    "northamerica-northeast2": (43.7, -79.4),
    "southamerica-east1": (-23.5, -46.6),
    "southamerica-west1": (-33.4, -70.7),
    "us-central1": (41.3, -95.9),
    "us-east1": (33.2, -80.0),
    "us-east4": (39.0, -77.5),
    "us-east5": (40.0, -83.0),
    "us-south1": (32.8, -96.8),
    "us-west1": (45.6, -121.2),
    "us-west2": (34.1, -118.2),
    "us-west3": (40.8, -111.9),
    "us-west4": (36.2, -115.1),
}


_FROM_ALL_REGIONS = 2.0


@dataclass(frozen=True)
class Tail:
    """Observations of the oldest VMs: `events` revocations in `hours` of all their lives."""

    events: float
    hours: float

    @property
    def rate(self) -> float:
        """Revocations per hour of a VM's life; half of one without any, as VMs are not immortal."""
        if self.hours > 0:
            return max(self.events, 0.5) / self.hours
        return 0.0

    def among(self, others: Tail) -> Tail:
        """Return the tail with two more revocations at the rate of `others` of its kind.

        They stabilize the rate of few VMs.
        """
        if others.rate <= 0:
            return self
        return Tail(self.events + _FROM_ALL_REGIONS, self.hours + _FROM_ALL_REGIONS / others.rate)


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of VMs with a GPU in a region: hourly counts, even within each hour."""

    gpu: str
    region: str
    launched: int
    revoked: tuple[int, ...]

    def fraction(self, age: float) -> float:
        """Return the fraction revoked by this age in seconds; after 24 hours that of 24 hours."""
        hour, part = divmod(max(age, 0.0) / HOUR, 1.0)
        if hour >= LAST_HOUR:
            return self.revoked[-1] / self.launched
        before = 0
        if hour >= 1:
            before = self.revoked[int(hour) - 1]
        return (before + part * (self.revoked[int(hour)] - before)) / self.launched

    @property
    def median(self) -> float:
        """The age in seconds by which half were revoked; 24 hours if most lived as long."""
        hours = (hour for hour in range(1, LAST_HOUR) if self.fraction(hour * HOUR) >= 0.5)
        return next(hours, LAST_HOUR) * HOUR

    def risk(self, begin: float, end: float) -> float:
        """Return the probability that a VM alive at age `begin` is revoked by age `end` (seconds).

        No VM was observed beyond 24 hours. From there the mean rate of hours 12 to 24 continues,
        mixed with a little of the rate of the same GPU in all regions (`Tail.among`).
        """
        wall = LAST_HOUR * HOUR
        inside = 1 - self._alive(min(end, wall)) / self._alive(min(begin, wall))
        later = max(end - max(begin, wall), 0.0)
        return 1 - (1 - inside) * math.exp(-self._late_rate / HOUR * later)

    @property
    def tail(self) -> Tail:
        """Hours 12 to 24, even within each hour."""
        middle = LAST_HOUR // 2
        hours = sum(
            self.launched - (low + high) / 2
            for low, high in pairwise(self.revoked[middle - 1 : LAST_HOUR])
        )
        return Tail(self.revoked[-1] - self.revoked[middle - 1], hours)

    @cached_property
    def _late_rate(self) -> float:
        tails = [table.tail for table in tables() if table.gpu == self.gpu]
        pooled = Tail(sum(tail.events for tail in tails), sum(tail.hours for tail in tails))
        return self.tail.among(pooled).rate

    def _alive(self, age: float) -> float:
        return 1 - self.fraction(age)


def tables() -> list[Lifetimes]:
    """Return all published tables."""
    return [Lifetimes(gpu, region, *counts) for (gpu, region), counts in _REVOKED.items()]


@lru_cache
def lifetimes(gpu: str, region: str) -> Lifetimes:
    """Return the table of a GPU (the catalog's name) in a region, or in the nearest published one."""
    kind = _measured(gpu)
    near = nearest_region(region, [place for name, place in _REVOKED if name == kind])
    return Lifetimes(kind, near, *_REVOKED[kind, near])


def startup(gpu: str, transient: bool, region: str) -> tuple[float, float, float, float]:
    """Return mean seconds of provisioning, staging and booting, and the deviation of their sum.

    Booting ends when SSH answers.
    """
    if gpu == "v100" and transient:
        return _V100_STARTUP
    kind = "k80" if gpu in ("k80", "cpu") else "p100"
    return _STARTUP[kind, transient, nearest_region(region, ["us-east1", "us-west1"])]


def nearest_region(region: str, candidates: list[str]) -> str:
    """Return the candidate closest on the globe; the first one for an unknown region."""
    if region in candidates:
        return region
    if region not in _PLACES:
        return candidates[0]
    return min(candidates, key=lambda other: _distance(_PLACES[region], _PLACES[other]))


def stand_in_tables(gpu: str, region: str) -> list[Lifetimes]:
    """Return the tables that replace unpublished lifetimes; empty if they are published.

    All tables with a GPU replace those of each GPU, because regions differ more than GPUs do:
    within 24 hours 23 to 67 % of the K80s were revoked, 27 to 70 % of the P100s, 43 to 73 % of the
    V100s.
    """
    if (gpu, region) in _REVOKED:
        return []
    return [table for table in tables() if (table.gpu == "cpu") == (gpu == "cpu")]


def stand_in_words(gpu: str, region: str, *, short: bool = False) -> str:
    """Return sentences about the tables that replace unpublished lifetimes; '' without any.

    They contain the revoked shares; with `short` it is a clause without them.
    """
    used = stand_in_tables(gpu, region)
    if not used:
        return ""
    vms = "VMs without a GPU"
    if gpu != "cpu":
        vms = f"the {gpu.upper()}"
    where = ""
    if any(name == gpu for name, _ in _REVOKED):
        where = f" in {region}"
    kinds = list(dict.fromkeys(table.gpu.upper() for table in used if table.gpu != "cpu"))
    of = f"in {used[0].region}"
    if kinds:
        of = f"with {either(kinds)}"
    pool = f"{sum(table.launched for table in used)} preemptible VMs {of}"
    if short:
        return f"no lifetimes of {vms}{where} were published: those of {pool} stand in"
    revoked = ", ".join(_revoked_within(used, hours) for hours in (1, 8, LAST_HOUR))
    return f"No lifetimes of {vms}{where} were published. Of {pool} were revoked: {revoked}."


def _revoked_within(used: list[Lifetimes], hours: int) -> str:
    """Return a text such as `22% within 1 h (0% to 67% by region)`."""
    shares = [table.revoked[hours - 1] / table.launched for table in used]
    revoked = sum(table.revoked[hours - 1] for table in used)
    share = revoked / sum(table.launched for table in used)
    between = ""
    if len(shares) > 1:
        between = f" ({min(shares):.0%} to {max(shares):.0%} by region)"
    return f"{share:.0%} within {hours} h{between}"


def stand_ins(gpu: str, region: str) -> str:
    """Return a clause about the figures that the emulator uses instead of unpublished ones; or ''."""
    used = lifetimes(gpu, region)
    what: list[str] = []
    if used.gpu != gpu:
        what.append(f"the {used.gpu.upper()}")
    if used.region != region:
        what.append(used.region)
    if what:
        return f"{gpu.upper()} in {region} as {' in '.join(what)}"
    return ""


def _measured(gpu: str) -> str:
    if any(name == gpu for name, _ in _REVOKED):
        return gpu
    return _STAND_IN.get(gpu, _OTHERWISE)


def _distance(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the angle between two places on the globe, in radians."""
    (a, b), (c, d) = (map(math.radians, place) for place in (one, other))
    cosine = math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(b - d)
    return math.acos(min(max(cosine, -1.0), 1.0))
