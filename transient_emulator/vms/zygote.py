"""Zygotes: processes that have imported TensorFlow, from which the fork servers of VMs are forked.

Importing TensorFlow takes seconds of a core. On Compute Engine each VM does that. All VMs of an
emulator are on one machine, so a zygote imports it once, at the first request, and a fork server
takes milliseconds. Memory is shared until it is written to. There is a zygote for each kind of
model. The agent of a VM finds its socket by TRANSIENT_ZYGOTES in its environment
(`runtime/agent/starting.py`), and starts a fork server itself if that fails. Zygotes require PID
namespaces: with those, the end of a VM ends what was forked into it.

An emulator that finds TRANSIENT_EMULATOR_ZYGOTES in its own environment uses the zygotes there and
starts none, so that the VMs of several emulators share two zygotes (`tests/zygotes.py`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
from pathlib import Path

from transient_magics import places

from .descriptors import readable

KINDS = ("own", "registered")
VARIABLE = "TRANSIENT_ZYGOTES"
"""The environment variable of VMs that names the folder of the sockets."""
SHARED = "TRANSIENT_EMULATOR_ZYGOTES"
"""The environment variable of an emulator that uses the zygotes of another process."""
_PROGRAM = Path(__file__).with_name("zygote_program.py")
_CODE = Path(places.__file__).parents[1]
_MODULE = "transient_magics.runtime.agent.fork_server"
# Bytes that a process forked from a zygote has for its own command line.
_ROOM = 1024


class Zygotes:
    """The zygotes of an emulator: one for each kind of model, started at the first request.

    They end with the emulator, and VMs' fork servers with them. What these have forked continues.

    Parameters
    ----------
    folder
        The folder of their sockets.
    code
        The folder from which `module` is imported.
    module
        What zygotes import, and what is started in VMs.
    """

    def __init__(self, folder: Path, code: Path = _CODE, module: str = _MODULE) -> None:
        self.folder = folder
        self._program = [str(_PROGRAM), str(code), module, " " * _ROOM]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Listen for requests."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for kind in KINDS:
            path = self.folder / f"{kind}.sock"
            # A dead emulator may have left it.
            path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listening.bind(str(path))
            listening.listen(128)
            self._tasks.append(asyncio.create_task(self._keep(listening, kind)))

    async def stop(self) -> None:
        """End all zygotes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _keep(self, listening: socket.socket, kind: str) -> None:
        """Start a zygote whenever a request arrives and none runs."""
        home = self.folder / kind
        home.mkdir(mode=0o700, exist_ok=True)
        environment = {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PATH": os.environ.get("PATH", os.defpath),
            # As in all processes of runs.
            "PYTHONHASHSEED": "0",
        }
        with listening:
            while True:
                # The zygote accepts the connection: it inherits the socket as its standard input.
                await readable(listening.fileno())
                with (self.folder / f"{kind}.log").open("ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        sys.executable,
                        *self._program,
                        stdin=listening.fileno(),
                        stdout=log,
                        stderr=log,
                        cwd=home,
                        env=environment,
                        start_new_session=True,
                    )
                try:
                    await process.wait()
                except asyncio.CancelledError:
                    process.kill()
                    await process.wait()
                    raise
