"""Throttles that limit a VM to a share of a processor: control groups, or a duty cycle.

A control group of Linux (version 1 or 2) gives the VM a quota of processor time, which the kernel
enforces. On most systems only root can create control groups. Other users get a duty cycle: a
helper process (`duty_cycle`) stops the VM's processes for the rest of each period. Both end with
the VM. If the emulator dies, its successor finds a quota by the name of its group, and the helper
continues the processes that it stopped.
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
"""The environment variable whose value `cycle` selects the duty cycle even for root."""
ROOT = Path("/sys/fs/cgroup")
"""The folder in which Linux has the hierarchies of control groups."""
# In microseconds. A training step should span several periods; otherwise a measured step time shows
# the throttle.
_PERIOD = 20_000
# In microseconds. The kernel rejects smaller quotas.
_LEAST_QUOTA = 1_000


class Throttle(Protocol):
    """One way to limit VMs to a share of a processor."""

    def limit(
        self, vm: str, cores: float, share: float, processes: Callable[[], Iterable[int]]
    ) -> None:
        """Limit the VM's processes to `share` of `cores`.

        Call it repeatedly, so that it includes processes that started later.

        Parameters
        ----------
        vm
            The VM's id.
        cores
            Processors that the VM has at full size.
        share
            The part of them that it may use, above 0 and up to 1.
        processes
            Returns the ids of the VM's processes.

        Raises
        ------
        OSError
            If the system refuses.
        """
        ...

    def release(self, vm: str) -> None:
        """Remove the limit. Does nothing if there is none."""
        ...


class ControlGroups:
    """Quotas that the kernel enforces, in the folder `root` of a hierarchy with CPU quotas."""

    def __init__(self, root: Path, version: int) -> None:
        self._root = root
        self._version = version

    def limit(
        self, vm: str, cores: float, share: float, processes: Callable[[], Iterable[int]]
    ) -> None:
        """Limit the VM's processes, see `Throttle`."""
        group = self._group(vm)
        quota = max(round(cores * share * _PERIOD), _LEAST_QUOTA)
        group.mkdir(exist_ok=True)
        if self._version == 2:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}", encoding="utf-8")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD), encoding="utf-8")
            (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="utf-8")
        members = (group / "cgroup.procs").read_text(encoding="utf-8").split()
        for process in set(processes()) - set(map(int, members)):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                # The kernel takes one process per write.
                (group / "cgroup.procs").write_text(str(process), encoding="utf-8")

    def release(self, vm: str) -> None:
        """Remove the VM's group and move its processes to the root group, see `Throttle`."""
        group = self._group(vm)
        if not group.exists():
            return
        # A group with members cannot be removed.
        for process in (group / "cgroup.procs").read_text(encoding="utf-8").split():
            with contextlib.suppress(ProcessLookupError):
                (self._root / "cgroup.procs").write_text(process, encoding="utf-8")
        group.rmdir()

    def _group(self, vm: str) -> Path:
        return self._root / f"transient-{vm}"


class DutyCycle:
    """Processes that are stopped for a part of each period, by one helper process per VM."""

    def __init__(self) -> None:
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}

    def limit(
        self, vm: str, cores: float, share: float, processes: Callable[[], Iterable[int]]
    ) -> None:
        """Limit the VM's processes, see `Throttle`. The number of `cores` makes no difference."""
        helper = self._helpers.get(vm)
        if helper is None or helper.poll() is not None:
            command = [sys.executable, "-m", f"{__package__}.duty_cycle"]
            helper = subprocess.Popen(command, stdin=subprocess.PIPE)
            self._helpers[vm] = helper
        assert helper.stdin
        helper.stdin.write(f"{share:.4f} {' '.join(map(str, processes()))}\n".encode())
        helper.stdin.flush()

    def release(self, vm: str) -> None:
        """End the VM's helper, see `Throttle`."""
        helper = self._helpers.pop(vm, None)
        if helper:
            assert helper.stdin
            # At the end of its input the helper continues all processes and exits.
            helper.stdin.close()
            helper.wait()


def available(root: Path = ROOT) -> Throttle:
    """Return the best throttle that this system allows, found by trying.

    Parameters
    ----------
    root
        The folder with the hierarchies of control groups.
    """
    if os.environ.get(VARIABLE, "") != "cycle":
        # Distributions with version 1 mount its CPU controller under either of two names.
        for place, version in ((root / "cpu", 1), (root / "cpu,cpuacct", 1), (root, 2)):
            groups = ControlGroups(place, version)
            try:
                groups.limit(f"try-{os.getpid()}", 1.0, 1.0, lambda: ())
                groups.release(f"try-{os.getpid()}")
            except OSError:
                continue
            return groups
    return DutyCycle()
