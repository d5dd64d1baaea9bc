"""Zygotes that all emulators and machine rooms of a test session share: `python -m tests.zygotes FOLDER`.

A zygote takes seconds of a core to import TensorFlow. These two do so once per session, at the first request. The
program and its zygotes end when its standard input is closed. The fault tests use the emulator's own zygotes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "TRANSIENT_EMULATOR_ZYGOTES"
_PROJECT = Path(__file__).parents[1]


class Shared:
    """The program, and its folder in the environment of what this process starts."""

    def __init__(self) -> None:
        # Paths of sockets are short. It is not below the place whose processes have to end with each test process.
        self._folder = Path(tempfile.mkdtemp(prefix="zygotes-"))
        program = [sys.executable, "-m", __name__, str(self._folder)]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_PROJECT)
        assert self._process.stdout
        self._process.stdout.readline()
        os.environ[VARIABLE] = str(self._folder)

    def end(self) -> None:
        """End the program and its zygotes."""
        del os.environ[VARIABLE]
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
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()
    await zygotes.stop()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
