"""Homes of this user's with an emulator of their own, for tests in which everything is real."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import transient_magics as tm
from transient_magics import emulator

_PATIENCE = 200.0


@contextmanager
def own_home() -> Iterator[Path]:
    """A home in which this process lives; its clusters and its emulator end with it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = Path(tempfile.mkdtemp(prefix="tm-"))  # short: the paths of sockets are
        patch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
        yield folder
        for each in tm.clusters():
            each.delete()
        end_emulator()
        shutil.rmtree(folder, ignore_errors=True)


def end_emulator() -> None:
    """End the emulator of the home in which this process lives, if there is one."""
    if url := emulator.running():
        os.kill(emulator.about(url)["pid"], signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        while emulator.running():
            assert time.monotonic() < deadline, "the emulator goes on"
            time.sleep(0.05)
