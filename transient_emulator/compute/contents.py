"""What is on disks and in images: folders of files, copied while an operation runs.

Of an emulated disk only the home directory of the VM that boots from it is kept; the rest is the machine's own. A copy
that the emulator's death interrupts begins anew in the next emulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transient_magics import places

from ..rest.operations import Operations
from ..rest.store import remove_folder
from .resources import Resource, Resources

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
        places.private(self._folder)
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

    def awaited(self) -> set[str]:
        """The operations that end when contents are complete."""
        return {each["_operation"] for each in self._known.values() if "_operation" in each}

    def resume(self) -> None:
        """Go on with the copies that an earlier emulator did not finish."""
        for (project, scope, name), resource in list(self._known.items()):
            if "_operation" in resource:
                self._start(project, scope, name)
            elif "_copy" in resource and "_holder" not in resource:
                # Its insert was never answered.
                self.remove(project, scope, resource)

    async def fill(self, project: str, scope: str, resource: Resource) -> None:
        """Have its contents copied, if that is still to be done."""
        if "_copy" in resource:
            source, target = Path(resource["_copy"]), self.contents(resource)
            await asyncio.to_thread(_copy, source, target)
            present = self._known.get((project, scope, resource["name"]))
            if present is None or present["id"] != resource["id"]:
                remove_folder(target)
                return
            present = {name: value for name, value in present.items() if name not in ("_copy", "_operation")}
            self.keep(project, scope, present | {"status": "READY"})

    def _start(self, project: str, scope: str, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._fill(project, scope, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill(self, project: str, scope: str, name: str) -> None:
        resource = self._known.get((project, scope, name))
        if resource is None:
            return
        operation = self.operations.named(project, resource["_operation"])
        error = None
        try:
            await self.fill(project, scope, resource)
        except (OSError, shutil.Error) as failure:
            _LOG.exception("the contents of %s cannot be copied", name)
            if (project, scope, name) in self._known:
                failed = {key: value for key, value in resource.items() if key not in ("_copy", "_operation")}
                self.keep(project, scope, failed | {"status": "FAILED"})
            error = ("INTERNAL_ERROR", f"The emulator could not copy the contents: {failure}")
        if operation:
            self.operations.finish(operation, error=error, http=(500, "INTERNAL SERVER ERROR"))


def _copy(source: Path, target: Path) -> None:
    remove_folder(target)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=_special, copy_function=_copy_file)
    else:
        target.mkdir(mode=0o700)


def _copy_file(source: str, target: str) -> None:
    # A program that runs in the VM meanwhile may remove what is being copied; that is then not in the copy.
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _special(folder: str, names: list[str]) -> set[str]:
    """Sockets, pipes and the like, which no disk carries over."""
    found: set[str] = set()
    for name in names:
        path = Path(folder, name)
        if not (path.is_symlink() or path.is_file() or path.is_dir()):
            found.add(name)
    return found
