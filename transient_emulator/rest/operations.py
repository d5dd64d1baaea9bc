"""Operations: the immediate answer to every changing request, which later shows its result.

They are kept in memory and on disk. The oldest finished ones are forgotten. A repeated request id
finds its operation.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Iterator
from typing import Any

from . import wire
from .store import Store

_LOG = logging.getLogger(__name__)
_KEEP = 2000
# Seconds. The API answers a request for waiting after two minutes in any case.
_LONGEST_WAIT = 120.0


class Operations:
    """All operations of all scopes (`zones/us-west1-b`, `regions/us-west1`, `global`)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # By project, scope and name, oldest first.
        self._operations: dict[tuple[str, str, str], dict[str, Any]] = {}
        # By project and request id.
        self._requests: dict[tuple[str, str], dict[str, Any]] = {}
        self._finished: dict[str, asyncio.Event] = {}
        # Ids grow with time.
        for entry in sorted(store, key=lambda entry: int(entry["resource"]["id"])):
            self._remember(entry["project"], entry["scope"], entry["resource"], entry["request"])

    def start(
        self,
        project: str,
        scope: str,
        kind: str,
        target: str,
        target_id: str,
        *,
        request: str | None = None,
        user: str = wire.USER,
        name: str = "",
    ) -> dict[str, Any]:
        """Create a RUNNING operation.

        Parameters
        ----------
        project, scope
            Where the operation belongs.
        kind
            The type of the operation, such as `insert`.
        target, target_id
            URL and id of the resource that it changes.
        request
            The client's request id, if it gave one.
        user
            The account that the operation shows.
        name
            The operation's name (default: a new one).

        Returns
        -------
        dict
            The operation's resource.
        """
        moment = wire.now()
        if not name:
            milliseconds = time.time_ns() // 1_000_000
            name = f"operation-{milliseconds}-{secrets.token_hex(6)}-{secrets.token_hex(4)}"
        resource: dict[str, Any] = {
            "kind": "compute#operation",
            "id": wire.fresh_id(),
            "name": name,
            "operationType": kind,
            "status": "RUNNING",
            "progress": 0,
            "user": user,
            "targetLink": target,
            "insertTime": moment,
            "startTime": moment,
            "selfLink": wire.link(project, scope, "operations", name),
        }
        if target_id:
            resource["targetId"] = target_id
        place, _, where = scope.partition("/")
        if where:
            resource[place.removesuffix("s")] = wire.link(project, scope)
        # On disk first: a client that gets the answer can rely on it after a crash.
        self._save(project, scope, resource, request)
        self._remember(project, scope, resource, request)
        self._forget_old()
        return resource

    def finish(
        self,
        operation: dict[str, Any],
        *,
        error: tuple[str, str] | dict[str, Any] | None = None,
        http: tuple[int, str] = (400, "BAD REQUEST"),
    ) -> dict[str, Any]:
        """Set an operation to DONE. Does nothing if it is DONE already.

        Parameters
        ----------
        operation
            The operation's resource, which is changed.
        error
            The error with which it failed: code and message, or the whole entry; None for success.
        http
            The HTTP status and phrase that the operation shows with an error.
        """
        if operation["status"] == "DONE":
            return operation
        operation.update(status="DONE", progress=100, endTime=wire.now())
        if error:
            if isinstance(error, tuple):
                error = {"code": error[0], "message": error[1]}
            operation["error"] = {"errors": [error]}
            operation["httpErrorStatusCode"] = http[0]
            operation["httpErrorMessage"] = http[1]
        project, scope = _place(operation)
        try:
            self._save(project, scope, operation, self._request(operation))
        except OSError:
            # On a full disk the clients that wait must still get their answer.
            _LOG.exception("cannot save the end of operation %s", operation["name"])
        event = self._finished.pop(operation["name"], None)
        if event:
            event.set()
        return operation

    def amend(self, operation: dict[str, Any], **fields: Any) -> None:
        """Add fields to an operation."""
        operation.update(fields)
        project, scope = _place(operation)
        self._save(project, scope, operation, self._request(operation))

    @property
    def latest(self) -> dict[str, Any] | None:
        """The newest operation; None if there is none."""
        return next(reversed(self._operations.values()), None)

    def repeated(self, project: str, request: str | None) -> dict[str, Any] | None:
        """Return the operation that this request id started earlier; None if there is none."""
        if not request:
            return None
        return self._requests.get((project, request))

    def get(self, project: str, scope: str, name: str) -> dict[str, Any]:
        """Return one operation. Raises ApiError 404 if it does not exist."""
        try:
            return self._operations[project, scope, name]
        except KeyError:
            raise wire.not_found(f"projects/{project}/{scope}/operations/{name}") from None

    def named(self, project: str, name: str) -> dict[str, Any] | None:
        """Return the operation of that name in any scope; None if there is none."""
        for (owner, _, operation_name), operation in self._operations.items():
            if owner == project and operation_name == name:
                return operation
        return None

    def select(
        self, project: str, scope: str | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield all operations of a project (and scope), oldest first, each after its scope."""
        for (owner, where, _), operation in self._operations.items():
            if owner == project and scope in (None, where):
                yield where, operation

    def abandon(self, awaited: Collection[str]) -> None:
        """End operations that an earlier emulator started and that no part of this one will finish.

        Parameters
        ----------
        awaited
            The names of the operations that will be finished.
        """
        for key, operation in list(self._operations.items()):
            if operation["status"] == "DONE" or operation["name"] in awaited:
                continue
            if operation["operationType"] in ("insert", "bulkInsert"):
                # Nothing was inserted, so its request was never answered. A repeated request starts
                # from the beginning.
                self.delete(*key)
            else:
                self.finish(operation)

    async def wait(self, project: str, scope: str, name: str) -> dict[str, Any]:
        """Return the operation as soon as it is DONE, or as it is after two minutes."""
        operation = self.get(project, scope, name)
        if operation["status"] != "DONE":
            event = self._finished.setdefault(name, asyncio.Event())
            try:
                async with asyncio.timeout(_LONGEST_WAIT):
                    await event.wait()
            except TimeoutError:
                # The API, too, then answers with the unfinished operation.
                pass
        return operation

    def delete(self, project: str, scope: str, name: str) -> None:
        """Forget one operation. Raises ApiError 404 if it does not exist."""
        operation = self.get(project, scope, name)
        del self._operations[project, scope, name]
        self._requests = {
            key: started for key, started in self._requests.items() if started is not operation
        }
        self._store.drop(name)

    def _remember(
        self, project: str, scope: str, operation: dict[str, Any], request: str | None
    ) -> None:
        self._operations[project, scope, operation["name"]] = operation
        if request:
            self._requests[project, request] = operation

    def _request(self, operation: dict[str, Any]) -> str | None:
        """Return the request id that started the operation; None if it had none."""
        for (_, request), started in self._requests.items():
            if started is operation:
                return request
        return None

    def _save(
        self, project: str, scope: str, operation: dict[str, Any], request: str | None
    ) -> None:
        entry = {"project": project, "scope": scope, "resource": operation, "request": request}
        self._store.put(operation["name"], entry)

    def _forget_old(self) -> None:
        surplus = len(self._operations) - _KEEP
        if surplus <= 0:
            return
        # Running operations are kept, however old.
        done = [key for key, operation in self._operations.items() if operation["status"] == "DONE"]
        for key in done[:surplus]:
            self.delete(*key)


def _place(operation: dict[str, Any]) -> tuple[str, str]:
    """Return the project and the scope of an operation."""
    _, project, *scope, _, _ = wire.path_of(operation["selfLink"]).split("/")
    return project, "/".join(scope)
