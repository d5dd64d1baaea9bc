"""The machines on which the tests of runs let agents and their roles live."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from transient_magics.client import commands as asked

from . import programs
from .machine_room import MachineRoom


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run.predict`, `run.decode` and `run.export` find TensorFlow imported; that they start it, tests/faults sees."""
    monkeypatch.setattr(asked, "subprocess", SimpleNamespace(run=programs.serve, TimeoutExpired=TimeoutError))


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MachineRoom]:
    """Machines of one test."""
    with closing(MachineRoom(tmp_path)) as room:
        yield room


@pytest.fixture(scope="module")
def shared_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineRoom]:
    """Machines of all tests of a module."""
    with closing(MachineRoom(tmp_path_factory.mktemp("vms"), zygotes=True)) as room:
        yield room
