"""Many VMs with one request: bulkInsert in a zone, or in a region with zones to choose from.

One operation stands for all; each VM also has an `insert` operation of its own with the same `operationGroupId`, which
tells how that one went. If fewer than `minCount` come to be, none is kept. What is to be done is written down before
the request is answered; since every step first looks for what is there already, a successor of an emulator that was
killed simply does it again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from ...rest import calls, tables, wire
from ...rest.operations import Operations
from ...rest.store import Store
from ...vms.fleet import Fleet
from .single import Creation

_LOG = logging.getLogger(__name__)
_MOST = 1000
_PATTERN = re.compile(r"([^#]*)(#{1,18})([^#]*)")
_CODES = {
    "alreadyExists": "RESOURCE_ALREADY_EXISTS", "notFound": "RESOURCE_NOT_FOUND", "quotaExceeded": "QUOTA_EXCEEDED",
    "resourceInUseByAnotherResource": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    "rateLimitExceeded": "RATE_LIMIT_EXCEEDED", "invalid": "INVALID_FIELD_VALUE", "required": "REQUIRED_FIELD_MISSING",
}  # fmt: skip
_PHRASES = {400: "BAD REQUEST", 403: "FORBIDDEN", 404: "NOT FOUND", 409: "CONFLICT", 503: "SERVICE UNAVAILABLE"}


@dataclass(frozen=True)
class Job:
    """What one bulkInsert asks for: VMs with these names and otherwise alike; `zones` is where they may be."""

    project: str
    scope: str
    operation: str
    group: str
    zones: list[str]
    shape: str
    least: int
    names: list[str]
    properties: dict[str, Any]


@dataclass
class Outcome:
    """How far a zone has got: names of VMs that ran, operations of those that failed, how many went again."""

    target: int = 0
    created: list[str] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    deleted: int = 0
    status: str = "CREATING"

    @property
    def kept(self) -> int:
        """How many VMs there are now."""
        return len(self.created) - self.deleted

    def shown(self) -> dict[str, Any]:
        """As the operation tells it."""
        return {
            "targetVmCount": self.target, "createdVmCount": len(self.created), "deletedVmCount": self.deleted,
            "failedToCreateVmCount": len(self.failed), "status": self.status,
        }  # fmt: skip


class Bulk:
    """`instances/bulkInsert` of zones and regions."""

    def __init__(self, state: Path, operations: Operations, fleet: Fleet, creation: Creation) -> None:
        self._store = Store(state / "bulk")
        self._operations, self._fleet, self._creation = operations, fleet, creation
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[calls.Route]:
        """What clients can ask for."""
        return [
            ("POST", f"{calls.BASE}/zones/{{zone}}/instances/bulkInsert", self._insert),
            ("POST", f"{calls.BASE}/regions/{{region}}/instances/bulkInsert", self._insert),
        ]

    def awaited(self) -> set[str]:
        """The operations of bulk inserts that are under way."""
        return {entry["operation"] for entry in self._store}

    def resume(self) -> None:
        """Go on with what an earlier emulator did not finish."""
        for entry in self._store:
            self._start(Job(**entry))

    async def _insert(self, request: web.Request) -> calls.Answer:
        project, scope, body = calls.project(request), calls.scope(request), await calls.body(request)
        asked = calls.request_id(request)
        if known := self._operations.repeated(project, asked):
            return known
        names = _names(body, [each.name for each in self._fleet.records(project)])
        least = int(body.get("minCount") or len(names))
        if not 1 <= least <= len(names):
            raise wire.invalid("resource.minCount", least, "Must be between 1 and count.")
        properties = body.get("instanceProperties")
        if not properties:
            raise wire.required("resource.instanceProperties")
        zones, shape = self._zones(project, scope, body, {**properties, "name": names[0]})
        operation = self._operations.start(
            project, scope, "bulkInsert", wire.link(project, scope, "instances"), "", request=asked
        )
        group = str(uuid.uuid4())
        progress = {f"zones/{zone}": Outcome(len(names)).shown() for zone in zones[:1]}
        self._operations.amend(
            operation, operationGroupId=group, instancesBulkInsertOperationMetadata={"perLocationStatus": progress}
        )
        job = Job(project, scope, operation["name"], group, zones, shape, least, names, properties)
        self._store.put(group, asdict(job))
        self._start(job)
        return operation

    def _zones(self, project: str, scope: str, body: dict[str, Any], sample: dict[str, Any]) -> tuple[list[str], str]:
        """Where the VMs may be, and how they are to be spread. ApiError 400 if they can be nowhere."""
        place, _, where = scope.partition("/")
        if place == "zones":
            self._check(project, where, sample)
            return [where], "ANY_SINGLE_ZONE"
        policy = body.get("locationPolicy") or {}
        shape = policy.get("targetShape") or "ANY_SINGLE_ZONE"
        if shape not in ("ANY", "ANY_SINGLE_ZONE", "BALANCED"):
            raise wire.invalid("resource.locationPolicy.targetShape", shape, "Unknown value.")
        zones = [zone for zone in tables.ZONES if zone.rpartition("-")[0] == where]
        preferences: dict[str, str] = {}
        for location, given in (policy.get("locations") or {}).items():
            if wire.last(location) not in zones:
                raise wire.invalid("resource.locationPolicy.locations", location, f"It is not in region {where}.")
            preferences[wire.last(location)] = given.get("preference") or "ALLOW"
        listed = {wire.last(each.get("zone", "")) for each in policy.get("zones") or ()}
        allowed = [zone for zone in zones if preferences.get(zone) != "DENY" and (not listed or zone in listed)]
        # Zones that the request names come first.
        allowed.sort(key=lambda zone: preferences.get(zone) != "ALLOW")
        refusals: list[wire.ApiError] = []
        able: list[str] = []
        for zone in allowed:
            try:
                self._check(project, zone, sample)
                able.append(zone)
            except wire.ApiError as error:
                refusals.append(error)
        if not able:
            raise refusals[0] if refusals else wire.invalid(
                "resource.locationPolicy", policy, "No zone of the region is allowed."
            )  # fmt: skip
        return able, shape

    def _check(self, project: str, zone: str, sample: dict[str, Any]) -> None:
        """ApiError for what is wrong with every one of the VMs; that a name is taken concerns one only."""
        try:
            self._creation.dry_run(project, zone, sample)
        except wire.ApiError as error:
            if error.status != 409:
                raise

    def _start(self, job: Job) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job), name=f"bulk {job.operation}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _LOG.error("%s went wrong", task.get_name(), exc_info=error)

    # The work.

    async def _run(self, job: Job) -> None:
        outcomes: dict[str, Outcome] = {}
        if job.shape == "BALANCED":
            await self._balance(job, outcomes)
        else:
            await self._one_after_the_other(job, outcomes)
        reached = sum(outcome.kept for outcome in outcomes.values()) >= job.least
        if not reached:
            await self._roll_back(job, outcomes, list(outcomes))
        for outcome in outcomes.values():
            outcome.status = "DONE"
        if operation := self._show(job, outcomes):
            if not reached:
                message = f"Requested minimum count of {job.least} VMs could not be created."
                causes = [each for outcome in outcomes.values() for failed in outcome.failed for each in
                          failed.get("error", {}).get("errors", ())]  # fmt: skip
                distinct = list({(each["code"], each["message"]): each for each in causes}.values())
                failed = next((each for outcome in outcomes.values() for each in outcome.failed), {})
                http = failed.get("httpErrorStatusCode", 400), failed.get("httpErrorMessage", "BAD REQUEST")
                self._operations.finish(operation, error=("VM_MIN_COUNT_NOT_REACHED", message), http=http)
                if distinct:
                    errors = [*operation["error"]["errors"], *distinct]
                    self._operations.amend(operation, error={"errors": errors})
            else:
                self._operations.finish(operation)
        self._store.drop(job.group)

    async def _one_after_the_other(self, job: Job, outcomes: dict[str, Outcome]) -> None:
        """Zone by zone: all VMs in one, or (ANY) the next one for what the first could not give."""
        missing = job.names
        for zone in job.zones:
            outcomes[zone] = Outcome(len(missing))
            await self._fill(job, zone, missing, outcomes)
            if job.shape == "ANY":
                missing = [name for name in missing if name not in outcomes[zone].created]
            elif len(outcomes[zone].created) < job.least and zone != job.zones[-1]:
                await self._roll_back(job, outcomes, [zone])
            else:
                missing = []
            if not missing:
                return

    async def _balance(self, job: Job, outcomes: dict[str, Outcome]) -> None:
        names, count = job.names, len(job.zones)
        shares = {zone: names[index::count] for index, zone in enumerate(job.zones) if names[index::count]}
        outcomes.update({zone: Outcome(len(share)) for zone, share in shares.items()})
        async with asyncio.TaskGroup() as group:
            for zone, share in shares.items():
                group.create_task(self._fill(job, zone, share, outcomes))

    async def _fill(self, job: Job, zone: str, names: list[str], outcomes: dict[str, Outcome]) -> None:
        """Have the VMs made in a zone, and wait until each of them runs or has failed."""
        begun = {name: self._begin(job, zone, name) for name in names}
        self._show(job, outcomes)

        async def follow(name: str, operation: dict[str, Any]) -> None:
            while operation["status"] != "DONE":
                await self._operations.wait(job.project, f"zones/{zone}", operation["name"])
            outcome = outcomes[zone]
            if operation.get("error"):
                outcome.failed.append(operation)
            else:
                outcome.created.append(name)
            self._show(job, outcomes)

        async with asyncio.TaskGroup() as group:
            for name, operation in begun.items():
                group.create_task(follow(name, operation))

    def _begin(self, job: Job, zone: str, name: str) -> dict[str, Any]:
        """The operation of one VM's insert, begun now or before; a refusal is one that has failed."""
        request = str(uuid.uuid5(uuid.UUID(job.group), f"{zone}/{name}"))
        if known := self._operations.repeated(job.project, request):
            return known
        error, http = ("", ""), (500, "INTERNAL SERVER ERROR")
        try:
            operation = self._creation.insert(job.project, zone, {**job.properties, "name": name}, request)
            self._operations.amend(operation, operationGroupId=job.group)
            return operation
        except wire.ApiError as refused:
            error = _CODES.get(refused.reason, refused.reason), refused.message
            http = refused.status, _PHRASES.get(refused.status, "BAD REQUEST")
        except OSError as failure:
            _LOG.exception("VM %s cannot be made", name)
            error = "INTERNAL_ERROR", f"The emulator could not do it: {failure.strerror or failure}"
        own = wire.link(job.project, "zones", zone, "instances", name)
        operation = self._operations.start(job.project, f"zones/{zone}", "insert", own, "", request=request)
        operation["operationGroupId"] = job.group
        return self._operations.finish(operation, error=error, http=http)

    async def _roll_back(self, job: Job, outcomes: dict[str, Outcome], zones: list[str]) -> None:
        """Delete what was made in these zones."""
        for zone in zones:
            outcomes[zone].status = "ROLLING_BACK"
        self._show(job, outcomes)
        for zone in zones:
            begun = [self._begin(job, zone, name) for name in outcomes[zone].created]
            ours = {each["targetId"] for each in begun}
            going = [each for each in self._fleet.records(job.project) if each.zone == zone and each.identity in ours]
            for operation in [self._fleet.delete(record, None) for record in going]:
                while operation["status"] != "DONE":
                    await self._operations.wait(job.project, f"zones/{zone}", operation["name"])
            outcomes[zone].deleted = len(outcomes[zone].created)
            outcomes[zone].status = "DONE"
            self._show(job, outcomes)

    def _show(self, job: Job, outcomes: dict[str, Outcome]) -> dict[str, Any] | None:
        """Let the operation tell how far it is. None if a client has deleted the operation."""
        operation = self._operations.named(job.project, job.operation)
        if operation:
            done = sum(len(each.created) + len(each.failed) for each in outcomes.values())
            status = {f"zones/{zone}": outcome.shown() for zone, outcome in outcomes.items()}
            operation["progress"] = min(100 * done // len(job.names), 99)
            operation["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": status}
        return operation


def _names(body: dict[str, Any], taken: list[str]) -> list[str]:
    """The names of the VMs that the body of a bulkInsert asks for."""
    if body.get("sourceInstanceTemplate"):
        why = "The emulator has no instance templates."
        raise wire.invalid("resource.sourceInstanceTemplate", body["sourceInstanceTemplate"], why)
    each, pattern = body.get("perInstanceProperties") or {}, body.get("namePattern") or ""
    if bool(each) == bool(pattern):
        why = "Exactly one of namePattern and perInstanceProperties must be specified."
        raise wire.invalid("resource.namePattern", pattern, why)
    count = int(body.get("count") or len(each))
    if not 1 <= count <= _MOST or (each and count != len(each)):
        why = f"Must be between 1 and {_MOST}" + (" and the number of perInstanceProperties." if each else ".")
        raise wire.invalid("resource.count", count, why)
    if each:
        names = [(given or {}).get("name") or name for name, given in each.items()]
    else:
        parts = _PATTERN.fullmatch(pattern)
        if not parts:
            raise wire.invalid("resource.namePattern", pattern, "It must contain one sequence of '#'.")
        before, digits, after = parts.groups()
        known = re.compile(re.escape(before) + rf"(\d{{{len(digits)},}})" + re.escape(after))
        latest = max((int(match[1]) for name in taken if (match := known.fullmatch(name))), default=0)
        names = [f"{before}{number:0{len(digits)}}{after}" for number in range(latest + 1, latest + count + 1)]
        if len(str(latest + count)) > len(digits):
            raise wire.invalid("resource.namePattern", pattern, f"It has no room for {count} more names.")
    return [wire.check_name(name) for name in names]
