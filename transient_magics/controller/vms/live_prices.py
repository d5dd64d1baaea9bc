"""Google's prices of today in place of the catalog's, for clusters that are paid for.

They are asked for before the first VM, at most once a day, or at once by a program
(programs/live_prices.py), and kept for whoever declares or plans next on this machine. Without the
right to read them the catalog's dated prices stay; every bill says of which day its prices are.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime

from ...catalog import learn, learned_seconds_ago
from ...cloud import ComputeEngine
from ...errors import CloudError, CredentialsError
from ...journal import events
from ...spec import ClusterSpec
from ...spec.cluster import lines_of, with_home, worker_prices

log = logging.getLogger(__name__)

_FRESH_SECONDS = 24 * 3600.0
_LIMIT_SECONDS = 60.0


async def find(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterPriced | None:
    """The cluster with today's prices, if they differ from those it was declared with.
    CredentialsError passes.
    """
    if spec.emulated:
        return None
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            await refresh(engine)
    except CredentialsError:
        raise  # says nothing about the prices
    except (CloudError, TimeoutError) as error:
        log.warning("the prices are the catalog's: %s", error)
    changed = repriced(spec)
    if changed.prices == spec.prices:
        return None
    return events.ClusterPriced(
        hourly=changed.hourly, on_demand_hourly=changed.on_demand_hourly, spec=changed.to_dict()
    )


async def refresh(engine: ComputeEngine, *, older_than: float = _FRESH_SECONDS) -> int:
    """Learn today's prices, where those known are older than so many seconds; how many there are.
    Raises CloudError.
    """
    if learned_seconds_ago() < older_than:
        return 0
    rows = await engine.list_prices(datetime.now(UTC).date().isoformat())
    if rows:  # an answer in which nothing is recognised teaches nothing
        learn(rows)
    return len(rows)


def repriced(spec: ClusterSpec) -> ClusterSpec:
    """`spec` with the newest prices that this machine knows."""
    lines = lines_of(spec, spec.prices)
    candidates = {group.accelerator: spec.zones_for(group.accelerator) for group in spec.groups}
    prices = worker_prices(lines, spec.groups, candidates, spec.provisioning_model)
    return with_home(replace(spec, prices=prices), lines).with_end()
