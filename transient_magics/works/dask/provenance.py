"""Which Dask clusters count that a controller on a VM declared: as this machine has them."""

from __future__ import annotations

from dataclasses import replace

from ...controller.trust import Sieve
from ...journal import Event, events
from ...protocol import checks, layout
from .spec import DaskSpec


def declared(sieve: Sieve, event: events.WorkDeclared) -> Event:
    """Count a Dask cluster as this machine has it.

    One without a declaration here has no keys here, and is ended by `Dasks.take_back`.
    """
    path = sieve.directory / layout.DASKS / event.work / layout.DASK
    try:
        own = DaskSpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": event.work})
    except FileNotFoundError:
        return event
    return replace(event, spec=own.to_dict())
