"""How a controller is kept alive on a VM."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from transient_magics.controller.startup import controller_unit

SETTINGS = {"PYTHONPATH": "/home/user/100% code", "TRANSIENT_MAGICS_SEAT": "ps-0"}


def test_systemd_accepts_the_unit_and_finds_nothing_to_warn_of(tmp_path: Path) -> None:
    unit = tmp_path / "transient-demo.service"
    unit.write_text(controller_unit("demo", "researcher", SETTINGS, "/home/user/controller.log"))
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read(unit)
    assert parsed["Service"]["Restart"] == "on-failure"
    assert parsed["Install"]["WantedBy"] == "multi-user.target"
    if not (verifier := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    said = subprocess.run([verifier, "verify", unit], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
