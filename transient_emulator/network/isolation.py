"""Linux namespaces: how the emulator gets into one of its own, and how it reaches into those of its VMs.

The process that opened the listening socket on the host's loopback executes itself again inside an unprivileged user
and network namespace (`enter`), where it may make bridges and further namespaces; the socket stays on the host's side.
A small holder process keeps that namespace alive, so that an emulator that was killed finds its network again. Nothing
here needs any privilege. Where the system does not allow it, VMs are plain processes (`Isolation.NONE`).
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

Result = TypeVar("Result")

VARIABLE = "TRANSIENT_MAGICS_EMULATOR_ISOLATION"
_NEW_NETWORK = 0x40000000
_TRY_SECONDS = 10


class Isolation(enum.Enum):
    """How VMs are separated: FULL has namespaces for network, processes, mounts and names, NETWORK only the first, NONE
    none of them."""

    FULL = "full"
    NETWORK = "network"
    NONE = "none"


def available() -> Isolation:
    """What this system allows, found out by trying; the variable can ask for less (`network`, `off`)."""
    asked = os.environ.get(VARIABLE, "").lower()
    if asked in ("off", "none", "0"):
        return Isolation.NONE
    if not sys.platform.startswith("linux") or not all(map(shutil.which, ("unshare", "nsenter"))):
        return Isolation.NONE
    if asked != "network" and _works("unshare", "-Urn", "unshare", "-npmu", "--fork", "--mount-proc", "true"):
        return Isolation.FULL
    return Isolation.NETWORK if _works("unshare", "-Urn", "unshare", "-n", "true") else Isolation.NONE


def _works(*command: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, timeout=_TRY_SECONDS, check=False).returncode == 0
    return False


def enter(arguments: Sequence[str], holder: int | None) -> NoReturn:
    """Become `python -m transient_emulator ARGUMENTS` inside the namespaces of `holder`, or inside new ones."""
    if holder is None:
        prefix = ["unshare", "-U", "-r", "-n", "--"]
    else:
        prefix = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", str(holder), "--"]
    command = [*prefix, sys.executable, "-m", "transient_emulator", *arguments]
    os.execvp(command[0], command)


def hold() -> int:
    """Start the process that keeps the present namespaces alive, and return its id."""
    holder = subprocess.Popen(
        ["sleep", "2147483647"], start_new_session=True, cwd="/", env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return holder.pid


def within_network(process: int, action: Callable[[], Result]) -> Result:
    """Run `action` in the network namespace of `process`, and return what it returns.

    A namespace belongs to a thread; the thread that enters it is made for this one action and never used again.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def enter_and_act() -> None:
        try:
            descriptor = os.open(f"/proc/{process}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                library = ctypes.CDLL(None, use_errno=True)
                if library.setns(descriptor, _NEW_NETWORK) != 0:
                    code = ctypes.get_errno()
                    raise OSError(code, f"cannot enter the VM's network: {os.strerror(code)}")
            finally:
                os.close(descriptor)
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - handed to the caller below, whatever it is
            failures.append(error)

    thread = threading.Thread(target=enter_and_act, name="vm-network")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def started(process: int) -> str:
    """What tells this process from a later one with the same id; empty if there is none (or it is dead already)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        if fields[0] in "ZX":
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return f"{fields[19]}@{boot}"


def alive(process: int, start: str) -> bool:
    """Whether the process that was `started` then still lives."""
    return bool(start) and started(process) == start


def marked(variable: str, value: str) -> list[int]:
    """The processes of this user that carry this environment variable."""
    wanted = f"{variable}={value}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def beside(process: int) -> list[int]:
    """The processes that are in the same namespace of processes, this one among them; none where it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        wanted = os.readlink(f"/proc/{process}/ns/pid")
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "ns" / "pid") == wanted:
                    found.append(int(entry.name))
    return found


def end(process: int) -> None:
    """SIGKILL. No error if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def let_go(holder: int) -> None:
    """End what `hold` started, here or in an earlier emulator."""
    end(holder)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(holder, 0)
