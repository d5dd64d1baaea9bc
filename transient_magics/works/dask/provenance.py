"""Check Dask clusters that a controller on a VM declared: this machine's declaration counts."""

from __future__ import annotations

from dataclasses import replace

from ...controller.trust import Sieve
from ...journal import Event, events
from ...protocol import checks, layout
from .spec import DaskSpec


def declared(sieve: Sieve, event: events.WorkDeclared) -> Event:
    """Return the event with this machine's declaration.

    A Dask cluster that was not declared here has no keys here, and `Dasks.take_back` stops it.
    """
    path = sieve.directory / layout.DASKS / event.work / layout.DASK
    try:
        own = DaskSpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": event.work})
    except FileNotFoundError:
        return event
    return replace(event, spec=own.to_dict())
