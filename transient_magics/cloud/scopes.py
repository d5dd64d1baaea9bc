"""Aggregated lists, zone by zone: what is missing in one that is not whole is not gone.

Where a zone cannot be reached, Compute Engine may answer without it, and says so in the list ("unreachables", or a
warning in the place of the zone's resources).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ..errors import UnreachableError

_MISSING = ("UNREACHABLE", "PARTIAL_SUCCESS", "LIST_OVERHEAD_QUOTA_EXCEED")


def scopes(pages: Iterable[Any], where: str, within: Collection[str] | None = None) -> Iterator[tuple[str, Any]]:
    """The scopes of all pages, as `zones/ZONE`, and what each has.

    Raises UnreachableError where something may be missing: in a zone of `within`, or in any zone if that is None.
    """
    for page in pages:
        items: dict[str, Any] = dict(page.items)
        missing = [_last(each) for each in page.unreachables]
        missing += [_last(scope) for scope, listed in items.items() if listed.warning.code in _MISSING]
        if page.warning.code in _MISSING:  # it may name the zones
            missing += [_last(each.value) for each in page.warning.data if each.key == "scope"] or missing or [""]
        for zone in missing:
            if not zone or within is None or zone in within:
                what = f"Compute Engine does not tell what is in {f'zone {zone}' if zone else 'every zone'} now"
                raise UnreachableError(what, where=where, fix="Try again in a moment.")
        yield from items.items()


def _last(path: str) -> str:
    return path.rpartition("/")[2]
