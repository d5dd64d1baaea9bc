"""Processes with TensorFlow imported that all processes of a test session share: `python -m tests.zygotes FOLDER`.

TensorFlow takes seconds of a core to import. The zygotes of emulators and machine rooms, and what small programs are
forked from (`tests/runtime/programs.py`), do so once per session, at the first request. All of them end when the
standard input of this program is closed. The fault tests use the zygotes of their own emulator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime import programs

VARIABLE = "TRANSIENT_EMULATOR_ZYGOTES"
_PROJECT = Path(__file__).parents[1]


class Shared:
    """The program, and its folder in the environment of what this process starts."""

    def __init__(self) -> None:
        # Paths of sockets are short. It is not below the place whose processes have to end with each test process.
        self._folder = Path(tempfile.mkdtemp(prefix="zygotes-"))
        command = [sys.executable, "-m", __name__, str(self._folder)]
        environment = dict(os.environ)
        environment.pop("PYTHONWARNDEFAULTENCODING", None)  # as in all programs that tests start (conftest.py)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_PROJECT, env=environment
        )
        assert self._process.stdout
        self._process.stdout.readline()
        os.environ[VARIABLE] = str(self._folder)
        os.environ[programs.FOLDER] = str(self._folder)

    def end(self) -> None:
        """End the program and what it has started."""
        del os.environ[VARIABLE]
        del os.environ[programs.FOLDER]
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def own_ones() -> Iterator[None]:
    """Start no emulator with shared zygotes meanwhile: each has its own, as in use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        yield


async def _serve(folder: Path) -> None:
    from transient_emulator.vms.zygote import Zygotes

    zygotes = Zygotes(folder)
    zygotes.start()
    tasks: list[asyncio.Task[None]] = []
    for kind in programs.KINDS:
        requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        requests.bind(f"{folder}/{kind}.sock")
        requests.listen(128)
        tasks.append(asyncio.create_task(_keep_server(requests, kind)))
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    print("ready", flush=True)
    await reader.read()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await zygotes.stop()


async def _keep_server(requests: socket.socket, kind: str) -> None:
    """Start what small programs are forked from when the first request arrives, and end it with this task."""
    from transient_emulator.vms.descriptors import readable

    with requests:
        await readable(requests.fileno())
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", programs.__name__, kind, stdin=requests.fileno(), cwd=_PROJECT
        )
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
