"""What all rooms' tests share: an emulator of one's own, a package to install, and the order of the tests.

Browsers come last, because Playwright keeps an event loop running from its first page on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import hypothesis
import pytest

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("untimed")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Jobs in a shell's background ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

Emulate = Callable[..., AbstractContextManager[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package `tiny_package`, whose module says where it lies."""
    path = tmp_path_factory.mktemp("wheels") / "tiny_package-1.0-py3-none-any.whl"
    about = "tiny_package-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_package.py", "PLACE = __file__\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in (*wheel.namelist(), f"{about}/RECORD")))
    return path


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
