"""What Compute Engine itself says of VMs that it was asked for: their ends, what was done to them, what is left.

For reading back what was declared, and for looking for leftovers; nothing is changed here.

Aggregated lists are read zone by zone: what an incomplete list does not have may still exist. Where a zone cannot be
reached, Compute Engine may answer without it, and says so in the list ("unreachables", or a warning in the place of the
zone's resources).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import UnreachableError
from .calling.calls import PLAIN, Calls
from .translation import labelled

if TYPE_CHECKING:
    from google.cloud import compute_v1


_LATEST = 200


class Witness:
    """The instances, operations and disks of one project, as plain values."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls, self._project = calls, project

    async def instances(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """The VMs with these labels: name, zone, status, provisioning_model, and when and how Google ends them.

        `ends` is the moment that was asked for, `ends_at` the one that Google says it will keep to; RFC 3339, or
        nothing.
        """
        from google.cloud import compute_v1

        message = compute_v1.AggregatedListInstancesRequest(project=self._project, filter=labelled(labels))
        client = self._calls.clients.instances

        def all_pages() -> list[compute_v1.Instance]:
            pages = client.aggregated_list(message, **PLAIN).pages
            return [each for _, scope in scopes(pages, self._whole) for each in scope.instances]

        found = await self._calls.call(self._whole, all_pages)
        return [_instance(each) for each in found if labels.items() <= dict(each.labels).items()]

    async def operations(self, zone: str, names: Collection[str]) -> list[dict[str, Any]]:
        """What was done to VMs of these names in the zone lately, in the order of its beginning."""
        from google.cloud import compute_v1

        message = compute_v1.ListZoneOperationsRequest(
            project=self._project, zone=zone, order_by="creationTimestamp desc", max_results=_LATEST
        )
        client = self._calls.clients.operations

        def latest() -> list[compute_v1.Operation]:
            return list(next(iter(client.list(message, **PLAIN).pages)).items)

        found = await self._calls.call(f"zone {zone}", latest)
        done = [_operation(each) for each in found if each.target_link.rpartition("/")[2] in names]
        return sorted(done, key=lambda each: each["began"])

    async def disks(self, labels: Mapping[str, str]) -> list[dict[str, str]]:
        """Name and zone of the disks with these labels."""
        from google.cloud import compute_v1

        message = compute_v1.AggregatedListDisksRequest(project=self._project, filter=labelled(labels))
        client = self._calls.clients.disks

        def all_pages() -> list[compute_v1.Disk]:
            pages = client.aggregated_list(message, **PLAIN).pages
            return [each for _, scope in scopes(pages, self._whole) for each in scope.disks]

        found = await self._calls.call(self._whole, all_pages)
        return [
            {"name": each.name, "zone": each.zone.rpartition("/")[2]}
            for each in found
            if labels.items() <= dict(each.labels).items()
        ]

    @property
    def _whole(self) -> str:
        return f"project {self._project}"


def _instance(found: compute_v1.Instance) -> dict[str, Any]:
    scheduling = found.scheduling
    return {
        "name": found.name,
        "zone": found.zone.rpartition("/")[2],
        "status": found.status,
        "provisioning_model": scheduling.provisioning_model,
        "ends": scheduling.termination_time,
        "ends_at": found.resource_status.scheduling.termination_timestamp,
        "at_the_end": scheduling.instance_termination_action,
        "most_seconds": int(scheduling.max_run_duration.seconds),
    }


def _operation(found: compute_v1.Operation) -> dict[str, Any]:
    return {
        "type": found.operation_type,
        "target": found.target_link.rpartition("/")[2],
        "began": found.insert_time,
        "ended": found.end_time,
        "status": getattr(found.status, "name", str(found.status)),
        "said": found.status_message,
        "errors": [each.code for each in found.error.errors],
    }


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
