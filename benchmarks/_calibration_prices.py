"""Rows about GPUs without published lifetimes, whose figures rest on other GPUs' lifetimes."""

from __future__ import annotations

from functools import partial

import numpy as np
from _calibration import LEVEL, Array, Row, Trial

from transient_magics.catalog.published import LAST_HOUR, Lifetimes
from transient_magics.planner.lifetimes.sources import Pooled

_TABLES, _LAUNCHED, _COHORT = 12, 30, 8
_BETWEEN = 0.5
"""The standard deviation of the logarithm of the hazard between regions and GPUs."""
_WAVES = 0.25
_HOURS = np.arange(LAST_HOUR + 1.0)
_BASE = 0.26 * (1 - np.exp(-_HOURS)) + 0.02 * _HOURS
"""The cumulative hazard: high in the first hours, as published."""
_COURSES = 2000
_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)


def _table(random: np.random.Generator, hazard: float) -> Lifetimes:
    """A table of VMs that live with that hazard, of which cohorts share some of their luck, as waves do."""
    lost = 1 - np.exp(-hazard * _BASE[1:])
    uniform = random.random(_LAUNCHED)
    common = np.repeat(random.random(-(-_LAUNCHED // _COHORT)), _COHORT)[:_LAUNCHED]
    luck = np.where(random.random(_LAUNCHED) < _WAVES, common, uniform)
    return Lifetimes("v100", "us-east1", _LAUNCHED, tuple(int((luck <= share).sum()) for share in lost))


def _lost(random: np.random.Generator, hazards: Array | float, vms: int, hours: int) -> Array:
    """Draw how many of `vms` are lost within `hours`, where each course has a hazard of its own."""
    return np.asarray(random.binomial(vms, 1 - np.exp(-np.asarray(hazards) * _BASE[hours])), float)


def workers_lost(random: np.random.Generator, *, vms: int, hours: int) -> Trial:
    """The lost workers with a GPU without published lifetimes, by tables of others."""
    middle = random.normal(0, 0.3)
    hazards = np.exp(middle + _BETWEEN * random.normal(size=_TABLES))
    tables = [_table(random, float(hazard)) for hazard in hazards]
    model = Pooled.of(tables).resampled(int(random.integers(1 << 30)))
    lives = model.quantile(1 - random.random((_COURSES, vms)))
    low, high = np.quantile((lives <= hours).sum(axis=1), _ENDS)
    true = float(np.exp(middle + _BETWEEN * random.normal()))
    measured = np.array([-np.log(1 - min(table.revoked[-1], _LAUNCHED - 1) / _LAUNCHED) for table in tables])
    about = float(np.log(np.maximum(measured, 0.02) / _BASE[-1]).mean())
    drawn = np.exp(about + _BETWEEN * np.sqrt(1 + 1 / _TABLES) * random.normal(size=_COURSES))
    best = np.quantile(_lost(random, drawn, vms, hours), _ENDS)
    came = float(_lost(random, true, vms, hours))
    return Trial(float(low), float(high), came, (float(best[0]), float(best[1])))


ROWS = [
    Row("workers lost", f"12 tables of other GPUs, {vms} VMs for {hours} h",
        partial(workers_lost, vms=vms, hours=hours))
    for vms, hours in ((16, 4), (64, 12))
]  # fmt: skip
