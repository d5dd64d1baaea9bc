"""What is on disks and in images: folders of files, copied while an operation runs.

Of an emulated disk only the home directory of the VM that boots from it is kept; the rest is the machine's own. A copy
that the emulator's death interrupts begins anew in the next emulator.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .operations import Operations
from .resources import Resource, Resources
from .store import remove_folder

_LOG = logging.getLogger(__name__)


class Filled(Resources):
    """Resources that have contents and are READY only when these are complete.

    `_copy` in a resource names the folder that its contents are still to be copied from, `_operation` who waits.
    """

    making = "CREATING"
    """Its status until then."""

    def __init__(self, state: Path, operations: Operations) -> None:
        super().__init__(state, operations)
        self._folder = state / "contents" / self.collection
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready: Callable[[], None] = lambda: None
        """Told whenever one becomes ready."""

    def contents(self, resource: Resource) -> Path:
        """Where its files are, if it has any."""
        return self._folder / resource["id"]

    def forgotten(self, project: str, scope: str, resource: Resource) -> None:
        remove_folder(self.contents(resource))

    def inserted(self, project: str, scope: str, resource: Resource, request: str | None) -> dict[str, Any]:
        if "_copy" not in resource:
            return self.done(project, scope, "insert", resource, request)
        operation = self.begun(project, scope, "insert", resource, request)
        self.keep(project, scope, resource | {"status": self.making, "_operation": operation["name"]})
        self._start(project, scope, resource["name"])
        return operation

    def resume(self) -> None:
        """Go on with the copies that an earlier emulator did not finish."""
        for (project, scope, name), resource in list(self._known.items()):
            if "_copy" in resource and "_operation" in resource:
                self._start(project, scope, name)

    async def fill(self, project: str, scope: str, resource: Resource) -> Resource:
        """Have its contents copied, if that is still to be done; returns the resource as it is then."""
        if "_copy" in resource:
            source, target = Path(resource["_copy"]), self.contents(resource)
            await asyncio.to_thread(_copy, source, target)
            resource = {name: value for name, value in resource.items() if name not in ("_copy", "_operation")}
            resource["status"] = "READY"
            self.keep(project, scope, resource)
        return resource

    def _start(self, project: str, scope: str, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._fill(project, scope, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill(self, project: str, scope: str, name: str) -> None:
        resource = self._known[project, scope, name]
        operation = self.operations.named(project, resource["_operation"])
        error = None
        try:
            await self.fill(project, scope, resource)
        except (OSError, shutil.Error) as failure:
            _LOG.exception("the contents of %s cannot be copied", name)
            self.keep(project, scope, resource | {"status": "FAILED"})
            error = ("INTERNAL_ERROR", f"The emulator could not copy the contents: {failure}")
        if operation:
            self.operations.finish(operation, error=error, http=(500, "INTERNAL SERVER ERROR"))


def _copy(source: Path, target: Path) -> None:
    remove_folder(target)
    if source.is_dir():
        # A program that runs in the VM meanwhile may remove what is being copied; that is then not in the copy.
        shutil.copytree(source, target, symlinks=True, ignore=_special, ignore_dangling_symlinks=True)
    else:
        target.mkdir(mode=0o700)


def _special(folder: str, names: list[str]) -> set[str]:
    """Sockets, pipes and the like, which no disk carries over."""
    found: set[str] = set()
    for name in names:
        path = Path(folder, name)
        if not (path.is_symlink() or path.is_file() or path.is_dir()):
            found.add(name)
    return found
