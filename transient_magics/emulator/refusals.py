"""Requests for VMs that were accepted and will fail: their operations, and when they end.

Until then there is no VM; Compute Engine, too, answers 404 for it meanwhile. Kept on disk, so that an operation that a
client waits for fails also after the emulator was killed.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from .instances import Record
from .operations import Operations
from .store import Store
from .weather.capacity import Refusal


class Refusals:
    """All of them that are under way."""

    def __init__(self, store: Store, operations: Operations) -> None:
        self._store, self._operations = store, operations

    def refuse(self, record: Record, kind: str, refusal: Refusal, request: str | None) -> dict[str, Any]:
        """The operation of type `kind` on this VM, which is RUNNING and will fail."""
        operation = self._operations.start(
            record.project, f"zones/{record.zone}", kind, record.resource["selfLink"], record.identity, request=request
        )
        entry = {
            "project": record.project, "operation": operation["name"], "error": refusal.error, "http": refusal.http,
            "at": time.time() + refusal.delay,
        }  # fmt: skip
        self._store.put(operation["name"], entry)
        self._expect(entry)
        return operation

    def recover(self) -> None:
        """Go on with those that an earlier emulator left."""
        for entry in self._store:
            self._expect(entry)

    def _expect(self, entry: dict[str, Any]) -> None:
        asyncio.get_running_loop().call_later(max(entry["at"] - time.time(), 0.0), self._fail, entry)

    def _fail(self, entry: dict[str, Any]) -> None:
        if operation := self._operations.named(entry["project"], entry["operation"]):
            status, message = entry["http"]
            self._operations.finish(operation, error=entry["error"], http=(status, message))
        self._store.drop(entry["operation"])
