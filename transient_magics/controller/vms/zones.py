"""Which zones have a cluster's GPUs, as Compute Engine lists them now; the catalog's table is of a
certain day.

Asked once, before the first VM, about GPUs whose zones the user left to us. The answer is an event
of the journal, so that all controllers of the cluster go by the same zones. Zones that the catalog
does not know have the catalog's price of the nearest region, unless Google's of today are known
(`live_prices`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from ...catalog import accelerator, continent, home_first, region
from ...cloud import ComputeEngine, Shape
from ...errors import AccessError, CredentialsError
from ...journal import events
from ...spec import ClusterSpec
from ...spec.cluster import lines_of, with_home, worker_prices

log = logging.getLogger(__name__)


async def find(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterZonesFound | None:
    """Where the GPUs are, if that differs from the declaration. Who may not list them goes by the
    catalog; else a failure is a CloudError.
    """
    found: dict[str, frozenset[str]] = {}
    for kind, zones in open_zones(spec).items():
        try:
            found[kind] = await engine.zones_with(shape_of(spec, kind, zones[0]))
        except CredentialsError:
            raise  # says nothing about the zones
        except AccessError as error:
            log.info("the zones of %s are the catalog's: %s", kind, error)
    changed = adapted(spec, found)
    if changed is None:
        return None
    return events.ClusterZonesFound(zones=dict(changed.candidates), spec=changed.to_dict())


def shape_of(spec: ClusterSpec, kind: str, zone: str) -> Shape:
    """The machine of a worker with this GPU, as Compute Engine is asked about it."""
    gpu = accelerator(kind)
    return Shape(
        spec.price(kind, zone).machine_type, "" if gpu.bundled else gpu.compute_engine_name
    )


def open_zones(spec: ClusterSpec) -> dict[str, tuple[str, ...]]:
    """The GPUs that may be in any zone of their continent, and those of the catalog."""
    kinds = dict.fromkeys(group.accelerator for group in spec.groups if not group.zone)
    return {
        kind: zones
        for kind in kinds
        if accelerator(kind).compute_engine_name
        and not set(zones := spec.zones_for(kind)) <= set(spec.zones)
    }


def adapted(spec: ClusterSpec, found: Mapping[str, Collection[str]]) -> ClusterSpec | None:
    """`spec` with the zones that were found (by GPU), in the order of the declaration; None where
    they are the same.

    Zones that are new come after the known ones of their region or continent, and a GPU that was
    found in no zone of the continent keeps those of the catalog.
    """
    home = spec.zones[0]
    candidates = dict(spec.candidates)
    for kind, offered in found.items():
        # Zones with names of another form are for other purposes (`us-central1-ai1a`).
        near = {
            zone for zone in offered if region(zone) != zone and continent(zone) == continent(home)
        }
        order = [zone for zone in candidates[kind] if zone in near]
        order += sorted(near.difference(order))
        if order:
            candidates[kind] = home_first(order, home)
    if candidates == spec.candidates:
        return None
    lines = lines_of(spec, spec.prices)
    prices = worker_prices(lines, spec.groups, candidates, spec.provisioning_model)
    return with_home(
        replace(spec, candidates=candidates, prices={**spec.prices, **prices}), lines
    ).with_end()
