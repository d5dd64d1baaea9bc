"""Operations: what every changing request returns at once, and what tells later how it went.

Kept in memory and on disk; the oldest finished ones are forgotten. A repeated request id finds its operation again.
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
_LONGEST_WAIT = 120.0


class Operations:
    """All operations of all scopes (`zones/us-west1-b`, `regions/us-west1`, `global`)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._requests: dict[tuple[str, str], dict[str, Any]] = {}
        self._finished: dict[str, asyncio.Event] = {}
        for entry in sorted(store, key=lambda entry: int(entry["resource"]["id"])):
            self._remember(entry["project"], entry["scope"], entry["resource"], entry["request"])

    def start(
        self, project: str, scope: str, kind: str, target: str, target_id: str,
        *, request: str | None = None, user: str = wire.USER, name: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """A new operation of type `kind` on the resource at URL `target`, RUNNING."""
        moment = wire.now()
        name = name or f"operation-{time.time_ns() // 1_000_000}-{secrets.token_hex(6)}-{secrets.token_hex(4)}"
        resource: dict[str, Any] = {
            "kind": "compute#operation", "id": wire.fresh_id(), "name": name, "operationType": kind,
            "status": "RUNNING", "progress": 0, "user": user, "targetLink": target,
            "insertTime": moment, "startTime": moment, "selfLink": wire.link(project, scope, "operations", name),
        }  # fmt: skip
        if target_id:
            resource["targetId"] = target_id
        place, _, where = scope.partition("/")
        if where:
            resource[place.removesuffix("s")] = wire.link(project, scope)
        self._save(project, scope, resource, request)
        self._remember(project, scope, resource, request)
        self._forget_old()
        return resource

    def finish(
        self, operation: dict[str, Any], *,
        error: tuple[str, str] | dict[str, Any] | None = None, http: tuple[int, str] = (400, "BAD REQUEST"),
    ) -> dict[str, Any]:  # fmt: skip
        """DONE, well or with `error` (code and message, or the whole entry) and the HTTP status that goes with it."""
        if operation["status"] == "DONE":
            return operation
        operation.update(status="DONE", progress=100, endTime=wire.now())
        if error:
            entry = {"code": error[0], "message": error[1]} if isinstance(error, tuple) else error
            operation["error"] = {"errors": [entry]}
            operation["httpErrorStatusCode"], operation["httpErrorMessage"] = http
        project, scope = _place(operation)
        try:
            self._save(project, scope, operation, self._request(operation))
        except OSError:
            _LOG.exception("the end of operation %s cannot be written", operation["name"])
        if event := self._finished.pop(operation["name"], None):
            event.set()
        return operation

    def amend(self, operation: dict[str, Any], **fields: Any) -> None:
        """Let an operation tell more."""
        operation.update(fields)
        project, scope = _place(operation)
        self._save(project, scope, operation, self._request(operation))

    @property
    def latest(self) -> dict[str, Any] | None:
        """The newest operation, if there was any."""
        return next(reversed(self._known.values()), None)

    def repeated(self, project: str, request: str | None) -> dict[str, Any] | None:
        """The operation that this request id started before, if any."""
        return self._requests.get((project, request)) if request else None

    def get(self, project: str, scope: str, name: str) -> dict[str, Any]:
        """One operation. ApiError 404 where there is none."""
        try:
            return self._known[project, scope, name]
        except KeyError:
            raise wire.not_found(f"projects/{project}/{scope}/operations/{name}") from None

    def named(self, project: str, name: str) -> dict[str, Any] | None:
        """The operation of that name in whatever scope."""
        return next((each for key, each in self._known.items() if key[0] == project and key[2] == name), None)

    def select(self, project: str, scope: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """All operations of a project (and scope), oldest first, each with its scope."""
        for (owner, where, _), operation in self._known.items():
            if owner == project and scope in (None, where):
                yield where, operation

    def abandon(self, awaited: Collection[str]) -> None:
        """End what an earlier emulator began and nobody will finish, because it is not `awaited` (names).

        An insert without anything inserted was never answered: it is forgotten, and a repeated request begins anew.
        """
        for key, operation in list(self._known.items()):
            if operation["status"] != "DONE" and operation["name"] not in awaited:
                if operation["operationType"] in ("insert", "bulkInsert"):
                    self.delete(*key)
                else:
                    self.finish(operation)

    async def wait(self, project: str, scope: str, name: str) -> dict[str, Any]:
        """The operation as soon as it is DONE, or as it is after two minutes."""
        operation = self.get(project, scope, name)
        if operation["status"] != "DONE":
            event = self._finished.setdefault(name, asyncio.Event())
            try:
                async with asyncio.timeout(_LONGEST_WAIT):
                    await event.wait()
            except TimeoutError:
                pass  # The API, too, then answers with the operation as it is.
        return operation

    def delete(self, project: str, scope: str, name: str) -> None:
        """Forget one operation."""
        operation = self.get(project, scope, name)
        del self._known[project, scope, name]
        self._requests = {key: known for key, known in self._requests.items() if known is not operation}
        self._store.drop(name)

    def _remember(self, project: str, scope: str, operation: dict[str, Any], request: str | None) -> None:
        self._known[project, scope, operation["name"]] = operation
        if request:
            self._requests[project, request] = operation

    def _request(self, operation: dict[str, Any]) -> str | None:
        """The request id that started it, if it had one."""
        return next((key[1] for key, known in self._requests.items() if known is operation), None)

    def _save(self, project: str, scope: str, operation: dict[str, Any], request: str | None) -> None:
        entry = {"project": project, "scope": scope, "resource": operation, "request": request}
        self._store.put(operation["name"], entry)

    def _forget_old(self) -> None:
        surplus = len(self._known) - _KEEP
        if surplus > 0:
            done = [key for key, operation in self._known.items() if operation["status"] == "DONE"]
            for key in done[:surplus]:
                self.delete(*key)


def _place(operation: dict[str, Any]) -> tuple[str, str]:
    _, project, *scope, _, _ = wire.path_of(operation["selfLink"]).split("/")
    return project, "/".join(scope)
