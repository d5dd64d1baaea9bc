from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated_cloud import Cloud, Running, start


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One emulator for all tests that do not end it."""
    running = start(tmp_path_factory.mktemp("emulator"), "--port", "0")
    yield running
    running.process.terminate()
    assert running.process.wait(60) == 0
    assert not list((running.state / "vms").iterdir())


@pytest.fixture(scope="session")
def shared_cloud(running: Running) -> Cloud:
    """Google's clients for it, made once."""
    return Cloud(running)


@pytest.fixture
def cloud(shared_cloud: Cloud) -> Iterator[Cloud]:
    """Google's clients for it; what a test leaves is deleted."""
    yield shared_cloud
    shared_cloud.delete(*shared_cloud.names())


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state directory of an emulator of the test's own."""
    return tmp_path / "state"
