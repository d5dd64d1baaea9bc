"""VM on which a cluster's controller runs: install, start and command the controller.

The controller is the same program as on the user's machine, with the same folder, below a home
directory of its own on the VM. systemd there (or a shell) restarts it whenever it fails. The
journal is copied last, and only if there is none: from its first line on, a journal on the VM is
ahead of every copy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ClusterError, ConnectionLostError, RemoteError
from ...journal.declared import declared_below
from ...journal.lock import LOCK
from ...kinds import KINDS
from ...protocol import layout
from ...protocol.checks import clipped, is_name, parsed_object
from ...protocol.cluster_commands import Command, Ping
from ...remote import Connection, push_bundle
from ...spec import ClusterSpec
from ..host import VM_VARIABLE
from ..vms.machines import OWNER, login_name
from ..vms.startup import controller_unit

_HOME = f"{layout.ON_VM}/controller"
_USER_WITH_SYSTEMD = "if test -d /run/systemd/system && sudo -n true 2>/dev/null; then id -un; fi"
_INSTALL_UNIT = (
    "sudo -n tee /etc/systemd/system/transient-{name}.service >/dev/null && "
    "sudo -n systemctl daemon-reload && sudo -n systemctl enable --now transient-{name}"
)
_CHECK_SECONDS = 120.0
_HANG_SECONDS = 30.0


class RemoteInstall:
    """Controller of a cluster on the VM `vm`, at the other end of a connection.

    All methods may raise RemoteError.
    """

    def __init__(self, connection: Connection, spec: ClusterSpec, vm: str) -> None:
        self._connection = connection
        self._spec = spec
        self._vm = vm
        self._folder = self.folder(spec.name)

    @staticmethod
    def folder(cluster: str) -> str:
        """Return the path of the cluster's folder on the VM."""
        return f"{_HOME}/clusters/{cluster}"

    async def check(self) -> None:
        """Check that the VM can run the controller. Raises CommandError with the reason."""
        settings = [f"{name}={value}" for name, value in (await self._settings()).items()]
        program = [
            "env",
            *settings,
            "transient-python",
            "-m",
            "transient_magics.controller.programs.preflight",
            "controller",
        ]
        await self._connection.run(
            program, timeout=_CHECK_SECONDS, input=json.dumps(self._spec.to_dict()).encode()
        )

    async def furnish(self, directory: Path) -> None:
        """Copy what the controller continues from, once, from the folder `directory`."""
        if await self._connection.exists(f"{self._folder}/{layout.JOURNAL}"):
            return
        for kind in KINDS.values():
            for name in declared_below(directory / kind.folder, kind.file):
                await self.bring(directory, kind.name, name)
        for name in filter(
            lambda name: (directory / name).exists(),
            (layout.SPEC, OWNER, layout.KEY, layout.JOURNAL),
        ):
            await self._connection.put_files({name: directory / name}, below=self._folder)

    async def bring(self, directory: Path, kind: str, name: str) -> None:
        """Copy the folder of declared work to the VM, its declaration last.

        Raises ClusterError for an invalid name, and RemoteError.
        """
        if not is_name(name):
            raise ClusterError(f"{name!r} is not a valid name")
        last = KINDS[kind].file
        folder = directory / KINDS[kind].folder / name
        there = f"{self._folder}/{KINDS[kind].folder}/{name}"
        if await self._connection.exists(f"{there}/{last}"):
            return
        files = {
            str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()
        }
        declaration = {last: files.pop(last)}
        await self._connection.put_files(files, below=there)
        await self._connection.put_files(declaration, below=there)

    async def start(self) -> str:
        """Start the controller if none answers, and return the trouble of the one that does.

        The trouble is one sentence, or empty. If two are started, one ends because the other has
        the lock.
        """
        try:
            async with asyncio.timeout(_HANG_SECONDS):
                return clipped(str((await self.ask(Ping())).get("trouble", "")))
        except TimeoutError:
            # Its supervisor on the VM starts it again.
            await self._connection.run(f'kill -9 "$(cat {self._folder}/{LOCK})"')
        except RemoteError:
            await self._supervise(await self._settings())
        return ""

    async def _supervise(self, settings: Mapping[str, str]) -> None:
        """Install the supervisor that starts the controller, also after each failure."""
        name = self._spec.name
        log = f"{self._folder}/{layout.CONTROLLER_LOG}"
        # An emulated VM sees the systemd of the machine that emulates it.
        if self._spec.emulated:
            user = ""
        else:
            user = (await self._connection.run(_USER_WITH_SYSTEMD)).strip()
        if user:
            unit = controller_unit(name, user, settings, f"{await self._connection.home()}/{log}")
            await self._connection.run(_INSTALL_UNIT.format(name=name), input=unit.encode())
        else:
            command = (
                f"until transient-python -m transient_magics.controller {name}; do sleep 2; done"
            )
            await self._connection.start_detached(command, log, environment=settings)

    async def ask(self, command: Command) -> dict[str, Any]:
        """Return the controller's answer to a command, for `checked_answer`.

        Raises RemoteError if no answer can be read.
        """
        reader, writer = await self._connection.open_socket(f"{self._folder}/command.sock")
        try:
            writer.write(command.encoded)
            await writer.drain()
            line = await reader.readline()
        finally:
            writer.close()
        if not line.endswith(b"\n"):
            raise ConnectionLostError(f"The controller on {self._vm} ended before it answered")
        try:
            return parsed_object(line)
        except ValueError as error:
            raise RemoteError(
                f"The controller on {self._vm} sent an invalid answer: {error}"
            ) from error

    async def _settings(self) -> dict[str, str]:
        """Return the environment of the controller.

        It makes VMs in the name of the user who declared the cluster.
        """
        home = await self._connection.home()
        sha = await push_bundle(self._connection, whole=True)
        return {
            "PYTHONPATH": f"{home}/{layout.CODE_ON_VM}/{sha}",
            "TRANSIENT_MAGICS_HOME": f"{home}/{_HOME}",
            VM_VARIABLE: self._vm,
            "LOGNAME": login_name(),
        }
