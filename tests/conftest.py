"""What all rooms' tests share: an emulator of one's own, and the order of the tests.

Browsers come last, because Playwright keeps an event loop running from its first page on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

Emulate = Callable[..., AbstractContextManager[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulate:
    """Runs `transient emulator` with these options in a home of its own, for as long as it is needed; gives its URL."""

    @contextmanager
    def running(*options: str) -> Iterator[str]:
        home = tmp_path_factory.mktemp("home")
        command = [sys.executable, "-m", "transient_magics.emulator", "--state", str(home / "state"), "--port", "0"]
        environment = {**os.environ, "TRANSIENT_MAGICS_HOME": str(home)}
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=environment, cwd=Path.cwd()) as program:
            assert program.stdout is not None
            try:
                said = program.stdout.readline().decode().split()
                assert said[:1] == ["ready"]
                yield said[1]
            finally:
                program.terminate()

    return running
