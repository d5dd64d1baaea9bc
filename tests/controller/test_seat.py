"""How a controller is kept alive on a VM."""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from transient_magics.controller.host import notify_watchdog
from transient_magics.controller.remote_controller.install import RemoteInstall
from transient_magics.controller.vms.startup import controller_unit
from transient_magics.spec import ClusterSpec

SETTINGS = {"PYTHONPATH": "/home/user/100% code", "TRANSIENT_MAGICS_SEAT": "ps-0"}


def test_systemd_accepts_the_unit_and_finds_nothing_to_warn_of(tmp_path: Path) -> None:
    unit = tmp_path / "transient-demo.service"
    unit.write_text(controller_unit("demo", "researcher", SETTINGS, "/home/user/controller.log"), encoding="utf-8")
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read(unit)
    assert parsed["Service"]["Restart"] == "on-failure"
    assert (parsed["Service"]["WatchdogSec"], parsed["Service"]["WatchdogSignal"]) == ("90", "SIGKILL")
    assert parsed["Install"]["WantedBy"] == "multi-user.target"
    if not (verifier := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    said = subprocess.run([verifier, "verify", unit], capture_output=True, text=True, check=False, encoding="utf-8")
    assert (said.returncode, said.stdout + said.stderr) == (0, "")


class Host:
    """A VM that writes down what it is told; `user`: who may ask its systemd for something, if anybody."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.told: list[tuple[str, str]] = []

    async def home(self) -> str:
        return "/home/user"

    async def run(self, command: str, input: bytes = b"") -> str:
        self.told.append((command, input.decode()))
        return f"{self.user}\n"

    async def start_detached(self, command: str, log: str, environment: object) -> None:
        assert environment == SETTINGS
        self.told.append((command, log))


async def supervised(user: str) -> tuple[str, str]:
    """The last thing that a VM of a project is told."""
    host: Any = Host(user)
    spec = ClusterSpec(name="demo", groups=(), zones=("us-central1-a",), prices={}, project="mine")
    await RemoteInstall(host, spec, "controller-0")._supervise(SETTINGS)
    return host.told[-1]


async def test_on_a_vm_with_systemd_a_unit_starts_it_again_and_elsewhere_a_shell_does() -> None:
    command, unit = await supervised("researcher")
    assert command.startswith("sudo -n tee /etc/systemd/system/transient-demo.service ")
    assert command.endswith(" sudo -n systemctl enable --now transient-demo")
    assert "User=researcher" in unit
    assert "/home/user/transient/controller/clusters/demo/controller.log" in unit
    command, log = await supervised("")
    assert command.startswith("until transient-python -m transient_magics.controller demo; ")
    assert log == "transient/controller/clusters/demo/controller.log"


def signs(hears: socket.socket) -> list[bytes]:
    """What systemd has heard and not yet read."""
    heard: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            heard.append(hears.recv(100))
    return heard


@pytest.mark.slow
async def test_systemd_hears_of_a_controller_as_long_as_its_event_loop_turns(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        hears.setblocking(False)
        hears.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000"}
        telling = asyncio.create_task(notify_watchdog(environment))
        await asyncio.sleep(0.3)
        assert set(signs(hears)) == {b"WATCHDOG=1"}
        time.sleep(0.3)  # noqa: ASYNC251 - the loop stands still
        assert signs(hears) == []
        await asyncio.sleep(0.3)
        assert signs(hears)
        (tmp_path / "notify").unlink()  # systemd is started anew
        await asyncio.sleep(0.1)
        telling.cancel()
        await asyncio.wait([telling])
        assert telling.cancelled(), "it goes on until it is cancelled"


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": "x"}, {"NOTIFY_SOCKET": "x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}]
)
async def test_nobody_is_told_where_nobody_asks(environment: dict[str, str]) -> None:
    await asyncio.wait_for(notify_watchdog(environment), 5)
