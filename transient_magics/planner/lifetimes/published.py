"""Lifetimes as they were published, to plan with where nothing better is known.

They are of preemptible VMs in 2018 and 2019, which ended after 24 hours in any case. Spot VMs have
no such wall: beyond the last hour that was watched, the mean rate of hours 12 to 24 goes on, which
leans on the GPU's other regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...catalog.published import (
    CPUS_LAUNCHED_TOGETHER,
    LAST_HOUR,
    LAUNCHED_TOGETHER,
    Lifetimes,
    lifetimes,
    stand_in_tables,
    stand_in_words,
    tables,
)
from .kaplan_meier import BLOCKS, Capped, Continued, KaplanMeier, Resampled, continued
from .observations import Observations
from .parametric import LifetimeModel

_HOURS = np.arange(LAST_HOUR + 1.0)


@dataclass(frozen=True, eq=False)
class Pooled:
    """Lifetimes where none were published: those of all VMs of the tables that stand in.

    The tables differ by more than chance, so that the one that holds may be any of them. Simulated
    courses are cut into blocks, each of which takes place with the lifetimes of one table. Where
    one table alone stands in, the hazard is as far from it as the hazards of all tables with a GPU
    are from each other.
    """

    words: str
    """The sentences on what stands in."""
    tables: tuple[Continued, ...]
    together: Continued
    clause: str = ""
    """The short form of them."""

    @classmethod
    def of(cls, used: Sequence[Lifetimes], words: str = "", clause: str = "") -> Self:
        """Pool the VMs of the tables `used`."""
        together = continued(KaplanMeier(_every(used)), LAST_HOUR)
        return cls(words, tuple(_continued(table, used) for table in used), together, clause)

    @property
    def name(self) -> str:
        return self.together.name

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.together.survival(hours)

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        return self.together.quantile(share, age)

    def resampled(self, seed: int) -> Resampled:
        """See `resampling`. No bootstrap within a table: what few VMs tell is in the differences
        between tables.
        """
        random = np.random.default_rng(seed)
        chosen = random.permutation(np.arange(BLOCKS) % len(self.tables))
        shares = np.stack([table.survival(_HOURS) for table in self.tables], axis=1)[:, chosen]
        rates = np.array([table.rate for table in self.tables])[chosen]
        if len(self.tables) == 1:
            hazard = np.exp(_between_tables() * random.normal(size=BLOCKS))
            shares = shares**hazard
            rates = rates * hazard
        return Resampled(self.name, _HOURS, shares, rates)


@cache
def published_lifetimes(gpu: str, region: str) -> LifetimeModel:
    """Return how VMs with a GPU lived in a region, `Pooled` where that was not published."""
    used = stand_in_tables(gpu, region)
    if used:
        return Pooled.of(used, stand_in_words(gpu, region), stand_in_words(gpu, region, short=True))
    return _continued(lifetimes(gpu, region), [table for table in tables() if table.gpu == gpu])


@cache
def emulated_lifetimes(gpu: str, region: str) -> LifetimeModel:
    """Return how VMs live on an emulator whose weather has published revocations: by one table,
    that of another GPU or region where none was published (`catalog.published.lifetimes`).
    """
    used = lifetimes(gpu, region)
    return _continued(used, [table for table in tables() if table.gpu == used.gpu])


def stand_in(model: LifetimeModel | None, *, short: bool = False) -> str:
    """Return sentences on what stands in for unpublished lifetimes, or the `short` form; empty
    where nothing does.
    """
    inner = model.model if isinstance(model, Capped) else model
    if not isinstance(inner, Pooled):
        return ""
    return inner.clause if short else inner.words


def _continued(table: Lifetimes, kind: Sequence[Lifetimes]) -> Continued:
    """Return the lifetimes of a table, which lean on those of its `kind` beyond what was watched."""
    return continued(KaplanMeier(counts(table)), LAST_HOUR, _every(kind))


def _every(used: Sequence[Lifetimes]) -> Observations:
    return Observations.together([counts(table) for table in used])


@cache
def _between_tables() -> float:
    """Return the standard deviation of the logarithm of the cumulative hazard at 24 hours among
    tables with a GPU.
    """
    lost = np.array(
        [table.revoked[-1] / table.launched for table in tables() if table.gpu != "cpu"]
    )
    return float(np.log(-np.log(1 - lost)).std(ddof=1))


def counts(table: Lifetimes) -> Observations:
    """What a table tells: hourly counts, of VMs of which several were launched together."""
    if table.gpu == "cpu":
        together = CPUS_LAUNCHED_TOGETHER
    else:
        together = LAUNCHED_TOGETHER
    return Observations.hourly(table.launched, table.revoked).in_cohorts([together])
