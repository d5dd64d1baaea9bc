"""Lifetimes as they were published, to plan with where nothing better is known.

They are of preemptible VMs in 2018 and 2019, which ended after 24 hours in any case. Spot VMs have no such wall: beyond
the last hour that was watched, the mean rate of hours 12 to 24 goes on, which leans on the GPU's other regions.
"""

from __future__ import annotations

from functools import cache

from ...catalog.published import CPUS_LAUNCHED_TOGETHER, LAST_HOUR, LAUNCHED_TOGETHER, Lifetimes, lifetimes, tables
from .beyond import continued
from .kaplan_meier import KaplanMeier
from .model import LifetimeModel
from .observations import Observations


@cache
def published_lifetimes(gpu: str, region: str) -> LifetimeModel:
    """How VMs with a GPU lived in a region; where nobody published that, in the nearest region and with the nearest GPU
    of which there are figures (`catalog.published.stand_ins` names them)."""
    table = lifetimes(gpu, region)
    kind = Observations.together([counts(each) for each in tables() if each.gpu == table.gpu])
    return continued(KaplanMeier(counts(table)), LAST_HOUR, kind)


def counts(table: Lifetimes) -> Observations:
    """What a table tells: hourly counts, of VMs of which several were launched together."""
    together = CPUS_LAUNCHED_TOGETHER if table.gpu == "cpu" else LAUNCHED_TOGETHER
    return Observations.hourly(table.launched, table.revoked).in_cohorts([together])
