"""Many VMs by one request: bulkInsert in a zone, or in a region whose zones it may choose from.

One operation stands for all VMs. Each VM also has an `insert` operation of its own with the same
`operationGroupId`, which shows its result. If fewer than `minCount` VMs can be created, all are
deleted. The job is stored before the request is answered. Every step first looks for what exists
already, so the successor of a killed emulator simply runs the job again.
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
# Compute Engine's limit of one request.
_MOST = 1000
_PATTERN = re.compile(r"([^#]*)(#{1,18})([^#]*)")
# The codes of operations for the reasons of refused requests.
_CODES = {
    "alreadyExists": "RESOURCE_ALREADY_EXISTS",
    "notFound": "RESOURCE_NOT_FOUND",
    "quotaExceeded": "QUOTA_EXCEEDED",
    "resourceInUseByAnotherResource": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
    "rateLimitExceeded": "RATE_LIMIT_EXCEEDED",
    "invalid": "INVALID_FIELD_VALUE",
    "required": "REQUIRED_FIELD_MISSING",
}
_PHRASES = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    409: "CONFLICT",
    503: "SERVICE UNAVAILABLE",
}


@dataclass(frozen=True)
class Job:
    """A bulkInsert. Its fields are the format of the stored file.

    Attributes
    ----------
    project, scope
        Where it was requested.
    operation
        The name of the operation that stands for all VMs.
    group
        The `operationGroupId`, a UUID.
    zones
        The zones that are allowed, the preferred ones first.
    shape
        How the VMs are spread: `ANY_SINGLE_ZONE`, `ANY` or `BALANCED`.
    least
        VMs without which none is kept.
    names
        The names of the VMs.
    properties
        What all VMs have in common.
    """

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
    """The progress of a job in one zone.

    Attributes
    ----------
    target
        VMs to create.
    created
        Names of VMs that ran.
    failed
        Operations of VMs that failed.
    deleted
        VMs that were deleted again.
    status
        CREATING, ROLLING_BACK or DONE.
    """

    target: int = 0
    created: list[str] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    deleted: int = 0
    status: str = "CREATING"

    @property
    def kept(self) -> int:
        """The number of VMs that exist now."""
        return len(self.created) - self.deleted

    def to_json(self) -> dict[str, Any]:
        """Return its form in the operation."""
        return {
            "targetVmCount": self.target,
            "createdVmCount": len(self.created),
            "deletedVmCount": self.deleted,
            "failedToCreateVmCount": len(self.failed),
            "status": self.status,
        }


_Outcomes = dict[str, Outcome]
"""Outcomes by zone."""


class Bulk:
    """`instances/bulkInsert` of zones and regions."""

    def __init__(
        self, state: Path, operations: Operations, fleet: Fleet, creation: Creation
    ) -> None:
        self._store = Store(state / "bulk")
        self._operations = operations
        self._fleet = fleet
        self._creation = creation
        # The event loop has only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[calls.Route]:
        """Return the routes."""
        return [
            ("POST", f"{calls.BASE}/zones/{{zone}}/instances/bulkInsert", self._insert),
            ("POST", f"{calls.BASE}/regions/{{region}}/instances/bulkInsert", self._insert),
        ]

    def awaited(self) -> set[str]:
        """Return the names of the operations of unfinished jobs."""
        return {entry["operation"] for entry in self._store}

    def resume(self) -> None:
        """Continue the jobs that an earlier emulator did not finish."""
        for entry in self._store:
            self._start(Job(**entry))

    async def _insert(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        scope = calls.scope(request)
        body = await calls.body(request)
        request_id = calls.request_id(request)
        earlier = self._operations.repeated(project, request_id)
        if earlier:
            return earlier
        names = _names(body, [vm.name for vm in self._fleet.records(project)])
        least = int(body.get("minCount") or len(names))
        if not 1 <= least <= len(names):
            raise wire.invalid("resource.minCount", least, "Must be between 1 and count.")
        properties = body.get("instanceProperties")
        if not properties:
            raise wire.required("resource.instanceProperties")
        zones, shape = self._zones(project, scope, body, {**properties, "name": names[0]})
        target = wire.link(project, scope, "instances")
        operation = self._operations.start(
            project, scope, "bulkInsert", target, "", request=request_id
        )
        group = str(uuid.uuid4())
        progress = {f"zones/{zones[0]}": Outcome(len(names)).to_json()}
        self._operations.amend(
            operation,
            operationGroupId=group,
            instancesBulkInsertOperationMetadata={"perLocationStatus": progress},
        )
        job = Job(project, scope, operation["name"], group, zones, shape, least, names, properties)
        self._store.put(group, asdict(job))
        self._start(job)
        return operation

    def _zones(
        self, project: str, scope: str, body: dict[str, Any], sample: dict[str, Any]
    ) -> tuple[list[str], str]:
        """Return the zones in which the VMs can be, and how to spread them. Raises ApiError 400.

        `sample` is the body of one of the VMs.
        """
        place, _, where = scope.partition("/")
        if place == "zones":
            self._check(project, where, sample)
            return [where], "ANY_SINGLE_ZONE"
        policy = body.get("locationPolicy") or {}
        shape = policy.get("targetShape") or "ANY_SINGLE_ZONE"
        if shape not in ("ANY", "ANY_SINGLE_ZONE", "BALANCED"):
            raise wire.invalid("resource.locationPolicy.targetShape", shape, "Unknown value.")
        # A refused zone does not matter if another one remains.
        refusals: list[wire.ApiError] = []
        possible: list[str] = []
        for zone in _allowed_zones(where, policy):
            try:
                self._check(project, zone, sample)
                possible.append(zone)
            except wire.ApiError as error:
                refusals.append(error)
        if possible:
            return possible, shape
        if refusals:
            raise refusals[0]
        why = "No zone of the region is allowed."
        raise wire.invalid("resource.locationPolicy", policy, why)

    def _check(self, project: str, zone: str, sample: dict[str, Any]) -> None:
        """Raise ApiError for what is wrong with all of the VMs.

        A used name concerns one of them only.
        """
        try:
            self._creation.dry_run(project, zone, sample)
        except wire.ApiError as error:
            if error.status != 409:
                raise

    def _start(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._run(job), name=f"bulk {job.operation}")
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error:
            _LOG.error("%s failed", task.get_name(), exc_info=error)

    # -------------------- the job

    async def _run(self, job: Job) -> None:
        outcomes: _Outcomes = {}
        if job.shape == "BALANCED":
            await self._balance(job, outcomes)
        else:
            await self._one_after_the_other(job, outcomes)
        reached = sum(outcome.kept for outcome in outcomes.values()) >= job.least
        if not reached:
            await self._roll_back(job, outcomes, list(outcomes))
        for outcome in outcomes.values():
            outcome.status = "DONE"
        operation = self._show(job, outcomes)
        if operation:
            if reached:
                self._operations.finish(operation)
            else:
                self._fail(job, operation, outcomes)
        self._store.drop(job.group)

    def _fail(self, job: Job, operation: dict[str, Any], outcomes: _Outcomes) -> None:
        """Finish the operation with the error of too few VMs, and with the errors of the VMs."""
        failed = [vm for outcome in outcomes.values() for vm in outcome.failed]
        first = failed[0] if failed else {}
        status = first.get("httpErrorStatusCode", 400)
        phrase = first.get("httpErrorMessage", "BAD REQUEST")
        message = f"Requested minimum count of {job.least} VMs could not be created."
        error = ("VM_MIN_COUNT_NOT_REACHED", message)
        self._operations.finish(operation, error=error, http=(status, phrase))
        # Each cause once: hundreds of VMs may have failed for the same reason.
        causes: dict[tuple[str, str], dict[str, Any]] = {}
        for vm in failed:
            for cause in vm.get("error", {}).get("errors", ()):
                causes[cause["code"], cause["message"]] = cause
        if causes:
            errors = [*operation["error"]["errors"], *causes.values()]
            self._operations.amend(operation, error={"errors": errors})

    async def _one_after_the_other(self, job: Job, outcomes: _Outcomes) -> None:
        """Create all VMs in one zone, or (ANY) in the next zone what the first could not give."""
        missing = job.names
        for zone in job.zones:
            outcomes[zone] = Outcome(len(missing))
            await self._fill(job, zone, missing, outcomes)
            created = outcomes[zone].created
            if job.shape == "ANY":
                missing = [name for name in missing if name not in created]
                if not missing:
                    return
            elif len(created) < job.least and zone != job.zones[-1]:
                # Another zone may have all of them.
                await self._roll_back(job, outcomes, [zone])
            else:
                return

    async def _balance(self, job: Job, outcomes: _Outcomes) -> None:
        """Create an equal share of the VMs in each zone, in all zones simultaneously."""
        count = len(job.zones)
        shares: dict[str, list[str]] = {}
        for index, zone in enumerate(job.zones):
            share = job.names[index::count]
            if share:
                shares[zone] = share
                outcomes[zone] = Outcome(len(share))
        async with asyncio.TaskGroup() as group:
            for zone, share in shares.items():
                group.create_task(self._fill(job, zone, share, outcomes))

    async def _fill(self, job: Job, zone: str, names: list[str], outcomes: _Outcomes) -> None:
        """Create VMs in a zone, and wait until each of them runs or has failed."""
        operations = {name: self._insert_one(job, zone, name) for name in names}
        self._show(job, outcomes)

        async def follow(name: str, operation: dict[str, Any]) -> None:
            # One wait ends after two minutes in any case.
            while operation["status"] != "DONE":
                await self._operations.wait(job.project, f"zones/{zone}", operation["name"])
            outcome = outcomes[zone]
            if operation.get("error"):
                outcome.failed.append(operation)
            else:
                outcome.created.append(name)
            self._show(job, outcomes)

        async with asyncio.TaskGroup() as group:
            for name, operation in operations.items():
                group.create_task(follow(name, operation))

    def _insert_one(self, job: Job, zone: str, name: str) -> dict[str, Any]:
        """Return the operation of one VM's insert, started now or earlier.

        A refusal is a failed operation.
        """
        # The request id follows from the job, so the same insert of a later emulator is a repeated
        # request.
        request = str(uuid.uuid5(uuid.UUID(job.group), f"{zone}/{name}"))
        earlier = self._operations.repeated(job.project, request)
        if earlier:
            return earlier
        try:
            instance = {**job.properties, "name": name}
            operation = self._creation.insert(job.project, zone, instance, request)
            self._operations.amend(operation, operationGroupId=job.group)
            return operation
        except wire.ApiError as refusal:
            error = (_CODES.get(refusal.reason, refusal.reason), refusal.message)
            http = (refusal.status, _PHRASES.get(refusal.status, "BAD REQUEST"))
        except OSError as failure:
            _LOG.exception("cannot create VM %s", name)
            message = f"The emulator could not do it: {failure.strerror or failure}"
            error = ("INTERNAL_ERROR", message)
            http = (500, "INTERNAL SERVER ERROR")
        target = wire.link(job.project, "zones", zone, "instances", name)
        operation = self._operations.start(
            job.project, f"zones/{zone}", "insert", target, "", request=request
        )
        operation["operationGroupId"] = job.group
        return self._operations.finish(operation, error=error, http=http)

    async def _roll_back(self, job: Job, outcomes: _Outcomes, zones: list[str]) -> None:
        """Delete what was created in these zones."""
        for zone in zones:
            outcomes[zone].status = "ROLLING_BACK"
        self._show(job, outcomes)
        for zone in zones:
            # By id: a client may have deleted a VM and created another one of the same name.
            inserts = [self._insert_one(job, zone, name) for name in outcomes[zone].created]
            created = {operation["targetId"] for operation in inserts}
            deletions = [
                self._fleet.delete(vm, None)
                for vm in self._fleet.records(job.project)
                if vm.zone == zone and vm.identity in created
            ]
            for operation in deletions:
                while operation["status"] != "DONE":
                    await self._operations.wait(job.project, f"zones/{zone}", operation["name"])
            outcomes[zone].deleted = len(outcomes[zone].created)
            outcomes[zone].status = "DONE"
            self._show(job, outcomes)

    def _show(self, job: Job, outcomes: _Outcomes) -> dict[str, Any] | None:
        """Show the progress in the operation, and return it.

        None if a client has deleted the operation.
        """
        operation = self._operations.named(job.project, job.operation)
        if operation:
            done = 0
            for outcome in outcomes.values():
                done += len(outcome.created) + len(outcome.failed)
            status = {f"zones/{zone}": outcome.to_json() for zone, outcome in outcomes.items()}
            operation["progress"] = min(100 * done // len(job.names), 99)
            operation["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": status}
        return operation


def _allowed_zones(region: str, policy: dict[str, Any]) -> list[str]:
    """Return the zones of a region that a location policy allows, those that it names first."""
    zones = [zone for zone in tables.ZONES if zone.rpartition("-")[0] == region]
    preferences: dict[str, str] = {}
    for location, given in (policy.get("locations") or {}).items():
        zone = wire.last(location)
        if zone not in zones:
            field = "resource.locationPolicy.locations"
            raise wire.invalid(field, location, f"It is not in region {region}.")
        preferences[zone] = given.get("preference") or "ALLOW"
    listed = {wire.last(entry.get("zone", "")) for entry in policy.get("zones") or ()}
    allowed = [
        zone for zone in zones if preferences.get(zone) != "DENY" and (not listed or zone in listed)
    ]
    allowed.sort(key=lambda zone: preferences.get(zone) != "ALLOW")
    return allowed


def _names(body: dict[str, Any], present: list[str]) -> list[str]:
    """Return the names of the VMs that a bulkInsert asks for.

    `present` are the names of existing VMs.
    """
    template = body.get("sourceInstanceTemplate")
    if template:
        why = "The emulator has no instance templates."
        raise wire.invalid("resource.sourceInstanceTemplate", template, why)
    properties = body.get("perInstanceProperties") or {}
    pattern = body.get("namePattern") or ""
    if bool(properties) == bool(pattern):
        why = "Exactly one of namePattern and perInstanceProperties must be specified."
        raise wire.invalid("resource.namePattern", pattern, why)
    count = int(body.get("count") or len(properties))
    if not 1 <= count <= _MOST or (properties and count != len(properties)):
        why = f"Must be between 1 and {_MOST}"
        if properties:
            why += " and the number of perInstanceProperties"
        raise wire.invalid("resource.count", count, f"{why}.")
    if properties:
        names = [(given or {}).get("name") or name for name, given in properties.items()]
    else:
        names = _numbered_names(pattern, count, present)
    return [wire.check_name(name) for name in names]


def _numbered_names(pattern: str, count: int, present: list[str]) -> list[str]:
    """Return `count` names of a pattern such as `worker-##`, after those that exist."""
    parts = _PATTERN.fullmatch(pattern)
    if not parts:
        raise wire.invalid("resource.namePattern", pattern, "It must contain one sequence of '#'.")
    before, digits, after = parts.groups()
    width = len(digits)
    numbered = re.compile(re.escape(before) + rf"(\d{{{width},}})" + re.escape(after))
    latest = 0
    for name in present:
        match = numbered.fullmatch(name)
        if match:
            latest = max(latest, int(match[1]))
    if len(str(latest + count)) > width:
        why = f"It has no room for {count} more names."
        raise wire.invalid("resource.namePattern", pattern, why)
    numbers = range(latest + 1, latest + count + 1)
    return [f"{before}{number:0{width}}{after}" for number in numbers]
