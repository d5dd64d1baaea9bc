"""Linux namespaces: entering one for the emulator, and reaching into those of its VMs.

The process that opened the listening socket on the host's loopback executes itself again inside an
unprivileged user and network namespace (`enter`), where it may create bridges and further
namespaces. The socket stays on the host's side. A small holder process keeps that namespace alive,
so that the successor of a killed emulator finds the network again. No privilege is needed. Where
the system does not allow namespaces, VMs are plain processes (`Isolation.NONE`).
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
"""The environment variable that asks for less isolation: `network` or `off`."""
# linux/sched.h: CLONE_NEWNET.
_NEW_NETWORK = 0x40000000
_TRY_SECONDS = 10


class Isolation(enum.Enum):
    """The degrees to which VMs are separated.

    FULL has namespaces for network, processes, mounts and host names, NETWORK only for the network,
    NONE has none.
    """

    FULL = "full"
    NETWORK = "network"
    NONE = "none"


def available() -> Isolation:
    """Return the isolation that this system allows, found by trying.

    The environment variable `VARIABLE` can ask for less.
    """
    requested = os.environ.get(VARIABLE, "").lower()
    if requested in ("off", "none", "0"):
        return Isolation.NONE
    if not sys.platform.startswith("linux") or not all(map(shutil.which, ("unshare", "nsenter"))):
        return Isolation.NONE
    # The outer unshare is what the emulator needs, the inner one what each VM needs within it.
    if requested != "network" and _works(
        "unshare", "-Urn", "unshare", "-npmu", "--fork", "--mount-proc", "true"
    ):
        return Isolation.FULL
    if _works("unshare", "-Urn", "unshare", "-n", "true"):
        return Isolation.NETWORK
    return Isolation.NONE


def _works(*command: str) -> bool:
    try:
        result = subprocess.run(command, capture_output=True, timeout=_TRY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def enter(arguments: Sequence[str], holder: int | None) -> NoReturn:
    """Replace this process by `python -m transient_emulator ARGUMENTS` inside namespaces.

    Parameters
    ----------
    arguments
        The command line of the new program.
    holder
        The process whose namespaces to join; None creates new ones.
    """
    if holder is None:
        prefix = ["unshare", "-U", "-r", "-n", "--"]
    else:
        prefix = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", str(holder), "--"]
    command = [*prefix, sys.executable, "-m", "transient_emulator", *arguments]
    os.execvp(command[0], command)


def start_holder() -> int:
    """Start the process that keeps the present namespaces alive, and return its id."""
    # A namespace lives as long as a process is in it. `sleep` is small, and lasts 68 years.
    holder = subprocess.Popen(
        ["sleep", "2147483647"],
        start_new_session=True,
        cwd="/",
        env={"PATH": os.defpath},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return holder.pid


def within_network(process: int, action: Callable[[], Result]) -> Result:
    """Run `action` in the network namespace of `process`, and return its result.

    Parameters
    ----------
    process
        A process in the namespace.
    action
        What to run. Its exceptions are raised here.

    Raises
    ------
    OSError
        If the namespace cannot be entered.
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
        except BaseException as error:  # noqa: BLE001 - the caller below raises it again
            failures.append(error)

    # A namespace belongs to a thread. The thread that enters it serves this one action and is never
    # reused, so no other code runs in the wrong network.
    thread = threading.Thread(target=enter_and_act, name="vm-network")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def start_stamp(process: int) -> str:
    """Return what tells a process from a later one with the same id; empty if it is dead."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    # The fields after the program's name, which may itself contain spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":  # zombie or dead
        return ""
    # Field 19 is the start time in clock ticks since boot, so the boot's id belongs to it.
    return f"{fields[19]}@{boot}"


def alive(process: int, stamp: str) -> bool:
    """Return whether the process with this `start_stamp` is still alive."""
    return bool(stamp) and start_stamp(process) == stamp


def processes_with(variable: str, value: str) -> list[int]:
    """Return the ids of this user's processes whose environment has `variable` with this value."""
    entry_of_environment = f"{variable}={value}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        # Processes may end while this loop runs, and other users' environments are unreadable.
        with contextlib.suppress(OSError):
            if entry_of_environment in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def processes_beside(process: int) -> list[int]:
    """Return the ids of all processes in the PID namespace of `process`; none if it is gone."""
    try:
        namespace = os.readlink(f"/proc/{process}/ns/pid")
    except OSError:
        return []
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        # Processes may end while this loop runs, and other users' namespaces are unreadable.
        with contextlib.suppress(OSError):
            if os.readlink(entry / "ns" / "pid") == namespace:
                found.append(int(entry.name))
    return found


def kill(process: int) -> None:
    """Send SIGKILL. Does nothing if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def end_holder(holder: int) -> None:
    """End the process that `start_holder` started, here or in an earlier emulator."""
    kill(holder)
    # The child of an earlier emulator cannot be waited for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(holder, 0)
