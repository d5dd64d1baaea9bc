"""Where Compute Engine offers what: the zones that have a GPU, or a machine type with one inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .advice import Shape
from .calling.calls import PLAIN, Calls

if TYPE_CHECKING:
    from google.cloud import compute_v1

WITHDRAWN = ("OBSOLETE", "DELETED")
"""States in which Compute Engine makes no VM any more."""


def end_of(name: str, said: compute_v1.DeprecationStatus) -> str:
    """What Compute Engine says of the end of a machine type or GPU, a clause; nothing where it says nothing."""
    last = min(filter(None, (said.obsolete, said.deleted)), default="").partition("T")[0]
    instead = said.replacement.rpartition("/")[2]
    clauses = [
        f"is {said.state.lower()}" if said.state not in ("", "ACTIVE") else "",
        f"ends on {last}" if last else "",
        f"has {instead} for its successor" if instead else "",
    ]
    told = [each for each in clauses if each]
    return f"{name} {' and '.join(told)}" if told else ""


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
            if each.name == name and each.deprecated.state not in WITHDRAWN
        )

    return await calls.call(f"the zones of {name}", all_pages)
