"""Where Compute Engine offers what: the zones that have a GPU, or a machine type with one inside."""

from __future__ import annotations

from typing import Any

from .advice import Shape
from .calls import PLAIN, Calls

_WITHDRAWN = ("OBSOLETE", "DELETED")


async def zones_with(calls: Calls, project: str, shape: Shape) -> frozenset[str]:
    """The zones that have the GPU of `shape`, or its machine type if that has no GPU attached. Raises CloudError.

    One request, whatever the number of zones. That a zone has something does not say that it has some left.
    """
    name = shape.accelerator or shape.machine_type
    client: Any = calls.clients.accelerator_types if shape.accelerator else calls.clients.machine_types
    message = {"project": project, "filter": f'name = "{name}"', "max_results": 500}

    def all_pages() -> frozenset[str]:
        return frozenset(
            scope.removeprefix("zones/")
            for scope, listed in client.aggregated_list(message, **PLAIN)
            for each in (listed.accelerator_types if shape.accelerator else listed.machine_types)
            if each.name == name and each.deprecated.state not in _WITHDRAWN
        )

    return await calls.call(f"the zones of {name}", all_pages)
