"""How a VM's processes are kept to a part of a processor: Linux's control groups (version 1 or 2), or a duty cycle.

A control group of the VM has a quota of processor time, kept by the kernel. Who may make none (everybody but root, on
most systems) gets a duty cycle instead: the VM's processes are stopped for the rest of each period by a process of the
emulator's own (`duty_cycle`). Either ends with the VM; neither survives the emulator unnoticed: a quota is found again
by its name, and stopped processes go on when the emulator dies.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

VARIABLE = "TRANSIENT_MAGICS_EMULATOR_CPU"
"""`cycle` asks for the duty cycle where control groups could be had."""
ROOT = Path("/sys/fs/cgroup")
_PERIOD = 20_000
"""Microseconds. Several periods should pass in a step of training, else it is the throttle that is measured."""
_LEAST_QUOTA = 1_000
"""Microseconds, the least that the kernel takes."""


class Throttle(Protocol):
    """One way to keep VMs to a part of a processor."""

    def hold(self, vm: str, cores: float, share: float, processes: Callable[[], Iterable[int]]) -> None:
        """Have the VM's processes use no more than `share` of `cores`. Said again and again, for those that come.

        Raises OSError.
        """
        ...

    def release(self, vm: str) -> None:
        """Let it use what it can. No error where it was not held."""
        ...


class ControlGroups:
    """Quotas of the kernel's, below the folder `root` of a hierarchy that has processors to give."""

    def __init__(self, root: Path, version: int) -> None:
        self._root, self._version = root, version

    def hold(self, vm: str, cores: float, share: float, processes: Callable[[], Iterable[int]]) -> None:
        """See `Throttle`."""
        group, quota = self._group(vm), max(round(cores * share * _PERIOD), _LEAST_QUOTA)
        group.mkdir(exist_ok=True)
        if self._version == 2:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}", encoding="utf-8")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD), encoding="utf-8")
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="utf-8")
        inside = {int(each) for each in (group / "cgroup.procs").read_text(encoding="utf-8").split()}
        for process in set(processes()) - inside:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                (group / "cgroup.procs").write_text(str(process), encoding="utf-8")

    def release(self, vm: str) -> None:
        """See `Throttle`. The group goes once nothing runs in it; what lives goes back to where all others are."""
        group = self._group(vm)
        if not group.exists():
            return
        for process in (group / "cgroup.procs").read_text(encoding="utf-8").split():
            with contextlib.suppress(ProcessLookupError):
                (self._root / "cgroup.procs").write_text(process, encoding="utf-8")
        group.rmdir()

    def _group(self, vm: str) -> Path:
        return self._root / f"transient-{vm}"


class DutyCycle:
    """Processes that are stopped for a part of each period, by one helper process for each VM."""

    def __init__(self) -> None:
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}

    def hold(self, vm: str, cores: float, share: float, processes: Callable[[], Iterable[int]]) -> None:
        """See `Throttle`. How many `cores` there are makes no difference."""
        helper = self._helpers.get(vm)
        if helper is None or helper.poll() is not None:
            command = [sys.executable, "-m", f"{__package__}.duty_cycle"]
            helper = self._helpers[vm] = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert helper.stdin
        helper.stdin.write(f"{share:.4f} {' '.join(map(str, processes()))}\n".encode())
        helper.stdin.flush()

    def release(self, vm: str) -> None:
        """See `Throttle`."""
        if helper := self._helpers.pop(vm, None):
            assert helper.stdin
            helper.stdin.close()  # with which it has all go on, and ends
            helper.wait()


def available(root: Path = ROOT) -> Throttle:
    """What this system allows, found out by trying."""
    if os.environ.get(VARIABLE, "") != "cycle":
        for place, version in ((root / "cpu", 1), (root / "cpu,cpuacct", 1), (root, 2)):
            groups = ControlGroups(place, version)
            try:
                groups.hold(f"try-{os.getpid()}", 1.0, 1.0, lambda: ())
                groups.release(f"try-{os.getpid()}")
            except OSError:
                continue
            return groups
    return DutyCycle()
