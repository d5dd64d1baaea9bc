"""The contents of disks and images: folders of files, copied while an operation runs.

Of an emulated disk, only the home directory of the VM that boots from it is stored. The rest is
this machine's own. A copy that the emulator's death interrupts starts again in the next emulator.
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
# Fields of a resource whose contents are incomplete.
_INCOMPLETE = ("_copy", "_operation")


class Filled(Resources):
    """Resources that have contents and are READY only when these are complete.

    In an incomplete resource, `_copy` names the folder from which its contents are copied, and
    `_operation` the operation that waits for that.
    """

    making = "CREATING"
    """The status of an incomplete resource."""

    def __init__(self, state: Path, operations: Operations) -> None:
        super().__init__(state, operations)
        self._folder = state / "contents" / self.collection
        places.private(self._folder)
        # The event loop has only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()
        self.ready: Callable[[], None] = lambda: None
        """Called whenever a resource becomes ready."""

    def contents(self, resource: Resource) -> Path:
        """Return the folder of its files, which may not exist."""
        return self._folder / resource["id"]

    def on_removed(self, project: str, scope: str, resource: Resource) -> None:
        """Remove its files."""
        remove_folder(self.contents(resource))

    def on_inserted(
        self, project: str, scope: str, resource: Resource, request: str | None
    ) -> dict[str, Any]:
        """Start to copy its contents, if there are any, and return the operation of the insert."""
        if "_copy" not in resource:
            return self.finish_operation(project, scope, "insert", resource, request)
        operation = self.start_operation(project, scope, "insert", resource, request)
        pending = {"status": self.making, "_operation": operation["name"]}
        self.save(project, scope, resource | pending)
        self._start(project, scope, resource["name"])
        return operation

    def awaited(self) -> set[str]:
        """Return the names of the operations that end when contents are complete."""
        return {
            resource["_operation"]
            for resource in self._resources.values()
            if "_operation" in resource
        }

    def resume(self) -> None:
        """Continue the copies that an earlier emulator did not finish."""
        for (project, scope, name), resource in list(self._resources.items()):
            if "_operation" in resource:
                self._start(project, scope, name)
            elif "_copy" in resource and "_holder" not in resource:
                # Its insert was never answered. (The copy for a disk with a holder is made when its
                # VM boots.)
                self.remove(project, scope, resource)

    async def fill(self, project: str, scope: str, resource: Resource) -> None:
        """Copy the contents of a resource, if that was not done yet.

        Raises
        ------
        OSError, shutil.Error
            If they cannot be copied.
        """
        if "_copy" not in resource:
            return
        source = Path(resource["_copy"])
        target = self.contents(resource)
        await asyncio.to_thread(_copy, source, target)
        # The resource may have been changed or deleted while its contents were copied.
        present = self._resources.get((project, scope, resource["name"]))
        if present is None or present["id"] != resource["id"]:
            remove_folder(target)
            return
        self.save(project, scope, _complete(present) | {"status": "READY"})

    def _start(self, project: str, scope: str, name: str) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._fill_and_finish(project, scope, name))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fill_and_finish(self, project: str, scope: str, name: str) -> None:
        resource = self._resources.get((project, scope, name))
        if resource is None:
            return
        operation = self.operations.named(project, resource["_operation"])
        error = None
        try:
            await self.fill(project, scope, resource)
        except (OSError, shutil.Error) as failure:
            _LOG.exception("cannot copy the contents of %s", name)
            if (project, scope, name) in self._resources:
                self.save(project, scope, _complete(resource) | {"status": "FAILED"})
            message = f"The emulator could not copy the contents: {failure}"
            error = ("INTERNAL_ERROR", message)
        if operation:
            http = (500, "INTERNAL SERVER ERROR")
            self.operations.finish(operation, error=error, http=http)


def _complete(resource: Resource) -> Resource:
    """Return the resource without the fields of an incomplete one."""
    return {name: value for name, value in resource.items() if name not in _INCOMPLETE}


def _copy(source: Path, target: Path) -> None:
    # An earlier copy may have been interrupted.
    remove_folder(target)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=_special, copy_function=_copy_file)
    else:
        target.mkdir(mode=0o700)


def _copy_file(source: str, target: str) -> None:
    # A program in the VM may remove a file while it is being copied. The copy then lacks it.
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _special(folder: str, names: list[str]) -> set[str]:
    """Return the sockets, pipes and other files that a disk does not store."""
    found: set[str] = set()
    for name in names:
        path = Path(folder, name)
        if not (path.is_symlink() or path.is_file() or path.is_dir()):
            found.add(name)
    return found
