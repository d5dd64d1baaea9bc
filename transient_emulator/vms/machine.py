"""One running VM: its processes, its network, its SSH and metadata sockets.

`power_on` creates it; `adopt` takes over one that an earlier emulator left running; `power_off` is
the hard stop: everything that ran in it is dead when it returns, and no socket, cable or namespace
is left. A machine does not know the API. It gets a `Plan`, and calls `on_death` if its first
process ends unexpectedly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transient_magics import places

from ..network import delay_line, isolation, netlink
from ..network.isolation import Isolation
from . import zygote
from .descriptors import readable
from .names import replace_content

_LOG = logging.getLogger(__name__)

BRIDGE = "transient0"
BRIDGE_ADDRESS = "10.128.0.1"
PREFIX = 20
METADATA_ADDRESS = "169.254.169.254"
MARK = "TRANSIENT_VM"
"""The environment variable that marks the processes of a VM."""
# Compute Engine's users have bash.
SHELL = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"

# The VMs of a cluster share these cores. Operations of several VMs that each use all of them wait
# for each other: with one worker on two cores, a step takes half as long again (bench_throughput).
OPERATION_THREADS = max(1, len(os.sched_getaffinity(0)) // 4)
"""Threads of one TensorFlow operation."""
_READY_SECONDS = 30
_DEATH_SECONDS = 10
_SSH_PORT = 22
_METADATA_PORT = 80
# The first process of a VM only has to stay, and to let the kernel reap orphans: ignoring SIGCHLD
# does that. With mounts of its own, a VM has a host name and a hosts file of its own, too.
_FIRST = """[ -z "$1" ] || { mount --bind "$2" /etc/hosts && hostname "$1"; } || echo nameless
echo ready; exec >/dev/null
env --ignore-signal=CHLD true 2>/dev/null && exec env --ignore-signal=CHLD sleep 2147483647
exec sleep 2147483647"""
# The namespaces of a VM's first process.
_NAMESPACES = {
    Isolation.FULL: ["unshare", "-n", "-p", "-m", "-u", "--fork", "--mount-proc", "--"],
    Isolation.NETWORK: ["unshare", "-n", "--"],
    Isolation.NONE: [],
}


@dataclass(frozen=True)
class Plan:
    """The properties that distinguish one VM.

    Attributes
    ----------
    identity, name, number, address
        See `Record`.
    directory
        Its folder, with `home`, `bin` and `tmp`.
    home
        A short path to its home directory.
    user
        The name of its user.
    has_gpu
        Whether its programs find the GPUs of this machine, if it has any.
    zygotes
        The folder of the sockets of zygotes; None without zygotes.
    """

    identity: str
    name: str
    number: int
    address: str
    directory: Path
    home: Path
    user: str
    has_gpu: bool = False
    zygotes: Path | None = None


@dataclass(frozen=True)
class Command:
    """A program that runs in a VM.

    `group` is the process group, as the host sees it, that gets signals.
    """

    process: asyncio.subprocess.Process
    group: int

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children. Does nothing if they are gone."""
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            # It is gone, or so young that its group does not exist yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.group, number)


def hardware_address(address: str) -> str:
    """Return the hardware address for an IPv4 address.

    It follows from it, as on Compute Engine, so neighbour tables stay true when an address gets
    another VM.
    """
    return "42:01:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def visible_gpus(has_gpu: bool, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that selects the GPUs of a VM's programs.

    Parameters
    ----------
    has_gpu
        Whether the VM has one. CUDA finds none in others.
    environment
        The emulator's environment, which may limit the GPUs.
    """
    name = "CUDA_VISIBLE_DEVICES"
    if not has_gpu:
        return {name: "-1"}
    if name not in environment:
        return {}
    return {name: environment[name]}


class Machine:
    """A VM as processes. It cannot be used again after `power_off`.

    Parameters
    ----------
    plan
        The VM.
    isolated
        How it is separated.
    on_death
        Called when its first process ends unexpectedly.
    """

    def __init__(self, plan: Plan, isolated: Isolation, on_death: Callable[[], None]) -> None:
        self.plan = plan
        self._isolation = isolated
        self._on_death = on_death
        self._first: int | None = None
        self._watch: int | None = None
        self._on = False
        self.sockets: dict[str, socket.socket] = {}

    @property
    def first_process(self) -> tuple[int, str] | None:
        """Id and start stamp of the VM's first process, as the host sees it."""
        if not self._first:
            return None
        return self._first, isolation.start_stamp(self._first)

    @property
    def is_on(self) -> bool:
        """Whether the VM runs: after `power_on` or `adopt`, until it dies or `power_off` begins."""
        return self._on

    async def power_on(self, ports: dict[str, int]) -> None:
        """Create the VM's folder, processes, network and sockets.

        Parameters
        ----------
        ports
            Ports of `ssh` and `metadata` on the loopback, where the VM has no network of its own.

        Raises
        ------
        OSError, TimeoutError
            If it cannot be created.
        """
        self._make_folder()
        self._first = await self._start_first()
        if self._isolation is not Isolation.NONE:
            self._plug_in()
        self._open_sockets(ports)
        self._start_watch()
        self._on = True

    def adopt(self, process: int, ports: dict[str, int]) -> None:
        """Take over a VM whose first process is `process`."""
        self._first = process
        self._open_sockets(ports)
        self._start_watch()
        self._on = True

    def write_hosts(self, content: str) -> None:
        """Replace the hosts file of the VM, if it has mounts of its own."""
        if self._isolation is Isolation.FULL and self._hosts.parent.is_dir():
            replace_content(self._hosts, content)

    async def power_off(self) -> None:
        """End everything that runs in the VM immediately."""
        self._on = False
        self._stop_watch()
        for listening in self.sockets.values():
            listening.close()
        self.sockets.clear()
        if self._first:
            # The end of the first process of a PID namespace ends all others in it.
            isolation.kill(self._first)
        if self._isolation is not Isolation.FULL or self._first is None:
            await self._kill_marked()
        if self._first:
            await _wait_until_gone(self._first)
            self._first = None
        if self._isolation is not Isolation.NONE:
            # The kernel takes some 15 ms for this, which would delay the notices of other VMs.
            await asyncio.to_thread(netlink.remove, self._cable)
        self.plan.home.unlink(missing_ok=True)

    async def run(
        self,
        *command: str,
        terminal: bool = False,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
    ) -> Command:
        """Start a program inside the VM, in its home directory and in a session of its own.

        Parameters
        ----------
        command
            The program and its arguments.
        terminal
            Whether `stdin` is a terminal that controls the session.
        stdin, stdout, stderr
            Descriptors.

        Raises
        ------
        OSError
            If it cannot be started.
        """
        ready, signal_ready = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._inside(command, terminal, signal_ready),
                env=self.environment(),
                cwd="/",
                start_new_session=True,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=(signal_ready,),
            )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(signal_ready)
        await readable(ready)
        byte = os.read(ready, 1)
        os.close(ready)
        if not byte:
            code = await process.wait()
            raise OSError(f"no program can be started in the VM (code {code})")
        program = None
        if self._isolation is Isolation.FULL:
            # `nsenter` forks into the PID namespace, so the program is its child.
            program = _child(process.pid)
        # A short program may have ended already. Then the group of its wrapper, in which nothing is
        # left, will do.
        return Command(process, program or process.pid)

    def _inside(self, command: Sequence[str], terminal: bool, signal_ready: int) -> list[str]:
        """Return the command line that runs `command` inside the VM."""
        full = self._isolation is Isolation.FULL
        session = ""
        if full or terminal:
            session = "setsid"
            if terminal:
                session += " --ctty"
            if not full:
                session += " --wait"
        # The byte reports that the program's process exists, so signals can find it from then on. A
        # plain sh knows only descriptors of one digit, hence the path. The pipe that stays open has
        # no reader any more.
        script = f'cd "$HOME"; printf . >/dev/fd/{signal_ready}; exec {session} "$@"'
        in_home = ["/bin/sh", "-c", script, "sh", *command]
        if self._isolation is Isolation.NONE:
            return in_home
        namespaces = ["-n", "-p", "-m", "-u"] if full else ["-n"]
        nsenter = shutil.which("nsenter") or "nsenter"
        return [nsenter, "-t", str(self._first), *namespaces, "--", *in_home]

    def environment(self) -> dict[str, str]:
        """Return the environment of programs in the VM. Of the host's, it has only the GPUs."""
        plan = self.plan
        metadata = METADATA_ADDRESS
        if self._isolation is Isolation.NONE:
            host, port = self.sockets["metadata"].getsockname()[:2]
            metadata = f"{host}:{port}"
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        environment = {
            "HOME": str(plan.home),
            "USER": plan.user,
            "LOGNAME": plan.user,
            "SHELL": SHELL,
            "LANG": "C.UTF-8",
            "PATH": f"{plan.directory / 'bin'}:{system}",
            "TMPDIR": str(plan.directory / "tmp"),
            "GCE_METADATA_HOST": metadata,
            "GCE_METADATA_IP": metadata,
            "STORAGE_EMULATOR_HOST": f"http://{metadata}",
            "TF_NUM_INTRAOP_THREADS": str(OPERATION_THREADS),
            MARK: plan.identity,
            **visible_gpus(plan.has_gpu, os.environ),
        }
        if plan.zygotes:
            environment[zygote.VARIABLE] = str(plan.zygotes)
        return environment

    def _make_folder(self) -> None:
        for part in ("home", "bin", "tmp"):
            places.private(self.plan.directory / part)
        own_names = f"127.0.0.1 localhost\n{self.plan.address} {self.plan.name}\n"
        replace_content(self._hosts, own_names)
        # The Python of VMs is the emulator's.
        wrapper = self.plan.directory / "bin" / "transient-python"
        python = shlex.quote(sys.executable)
        wrapper.write_text(f'#!/bin/sh\nexec {python} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o700)
        # A short path: the sockets that programs create in their home may have paths of 107 bytes
        # at most.
        self.plan.home.unlink(missing_ok=True)
        self.plan.home.symlink_to(self.plan.directory / "home", target_is_directory=True)

    async def _start_first(self) -> int:
        """Start the VM's first process in namespaces of its own, and return its id.

        Raises OSError, TimeoutError.
        """
        plan = self.plan
        named: list[str] = []
        if self._isolation is Isolation.FULL:
            named = [plan.name, str(self._hosts)]
        process = await asyncio.create_subprocess_exec(
            *_NAMESPACES[self._isolation],
            "/bin/sh",
            "-c",
            _FIRST,
            "sh",
            *named,
            cwd="/",
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath), MARK: plan.identity},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout
        try:
            async with asyncio.timeout(_READY_SECONDS):
                line = await process.stdout.readline()
                if line == b"nameless\n":
                    _LOG.warning("VM %s has the name and the hosts file of this machine", plan.name)
                    line = await process.stdout.readline()
        except (TimeoutError, asyncio.CancelledError):
            _kill_tree(process.pid)
            raise
        if line != b"ready\n":
            code = await process.wait()
            raise OSError(f"the first process of {plan.name} ended with code {code}")
        if self._isolation is not Isolation.FULL:
            return process.pid
        # `unshare` forks into the PID namespace, so the first process is its child.
        first = _child(process.pid)
        if first is None:
            raise OSError(f"the first process of {plan.name} ended immediately")
        return first

    @property
    def _hosts(self) -> Path:
        """The file that is mounted in the VM as /etc/hosts."""
        return self.plan.directory / "hosts"

    @property
    def _cable(self) -> str:
        return f"vm{self.plan.number}"

    def _plug_in(self) -> None:
        """Connect the VM's network namespace to the bridge."""
        assert self._first
        # An earlier emulator may have left one.
        netlink.remove(self._cable)
        namespace = os.open(f"/proc/{self._first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            netlink.add_cable(
                self._cable,
                BRIDGE,
                peer="eth0",
                hardware_address=hardware_address(self.plan.address),
                namespace=namespace,
            )
        finally:
            os.close(namespace)

        def configure() -> None:
            netlink.set_up("lo")
            netlink.add_address("lo", METADATA_ADDRESS, 32)
            netlink.add_address("eth0", self.plan.address, PREFIX)
            netlink.set_up("eth0")

        isolation.within_network(self._first, configure)

    def shape(
        self,
        rate: float | None,
        far_rate: float | None = None,
        far: Collection[str] = (),
        late: bool = False,
    ) -> None:
        """Limit what the VM's network carries. Blocks for a moment.

        Parameters
        ----------
        rate
            Bits per second each way; None removes the limit.
        far_rate
            Bits per second to the addresses `far`; None for `rate`.
        far
            IPv4 addresses of VMs in other regions.
        late
            Whether packets to `far` pass the delay line.

        Raises
        ------
        OSError
            If the kernel refuses, or the VM does not run (`is_on`).
        """
        if self._isolation is Isolation.NONE:
            return
        if self._first is None:
            name = self.plan.name
            raise OSError(f"VM {name} is not running, so its network cannot be shaped")
        present = self._delayed_addresses()
        required = set(far) if late else set[str]()

        def outgoing() -> None:
            if rate is None:
                netlink.unshape("eth0")
            elif far_rate is None:
                netlink.shape("eth0", rate)
            else:
                netlink.shape_by_place("eth0", rate, far_rate, far)
            for address in present - required:
                netlink.remove_neighbour("eth0", address)
            for address in required - present:
                netlink.add_neighbour("eth0", address, delay_line.HARDWARE_ADDRESS)

        isolation.within_network(self._first, outgoing)
        # The bridge's end shapes what the VM receives.
        if rate is None:
            netlink.unshape(self._cable)
        else:
            netlink.shape(self._cable, rate)

    def processes(self) -> list[int]:
        """Return the ids of all processes in the VM, as the host sees them."""
        if self._isolation is not Isolation.FULL or self._first is None:
            return isolation.processes_with(MARK, self.plan.identity)
        return isolation.processes_beside(self._first)

    def _delayed_addresses(self) -> set[str]:
        """Return the addresses whose packets pass the delay line, also by an earlier emulator."""
        table = Path(f"/proc/{self._first}/net/arp").read_text(encoding="utf-8")
        found: set[str] = set()
        for line in table.splitlines()[1:]:
            fields = line.split()
            if fields[3] == delay_line.HARDWARE_ADDRESS:
                found.add(fields[0])
        return found

    def _open_sockets(self, ports: dict[str, int]) -> None:
        assert self._first
        if self._isolation is Isolation.NONE:
            # Only Linux has all addresses of 127.0.0.0/8 on its loopback.
            address = self.plan.address if sys.platform.startswith("linux") else "127.0.0.1"
            self.sockets = _listen(
                ssh=(address, ports.get("ssh", 0)), metadata=(address, ports.get("metadata", 0))
            )
            return

        def listen() -> dict[str, socket.socket]:
            return _listen(
                ssh=(self.plan.address, _SSH_PORT), metadata=(METADATA_ADDRESS, _METADATA_PORT)
            )

        self.sockets = isolation.within_network(self._first, listen)

    def _start_watch(self) -> None:
        """Report the end of the first process."""
        if self._first and hasattr(os, "pidfd_open"):
            self._watch = os.pidfd_open(self._first)
            asyncio.get_running_loop().add_reader(self._watch, self._died)

    def _died(self) -> None:
        self._on = False
        self._stop_watch()
        self._on_death()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None

    async def _kill_marked(self) -> None:
        # Without a PID namespace (or if it was left half made), only their mark identifies the
        # processes. They may start others in the meantime.
        while found := isolation.processes_with(MARK, self.plan.identity):
            for process in found:
                isolation.kill(process)
            for process in found:
                await _wait_until_gone(process)


def _listen(**places_by_name: tuple[str, int]) -> dict[str, socket.socket]:
    """Return listening sockets of the present network namespace, by name."""
    sockets: dict[str, socket.socket] = {}
    for name, place in places_by_name.items():
        sockets[name] = socket.create_server(place, backlog=128)
        sockets[name].setblocking(False)
    return sockets


def _child(process: int) -> int | None:
    """Return the first child of a process; None if it has none (any more)."""
    try:
        path = Path(f"/proc/{process}/task/{process}/children")
        children = path.read_text(encoding="utf-8").split()
    except OSError:
        return None
    if not children:
        return None
    return int(children[0])


def _kill_tree(process: int) -> None:
    child = _child(process)
    if child:
        isolation.kill(child)
    isolation.kill(process)


async def _wait_until_gone(process: int) -> None:
    """Wait until a killed process is gone."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await readable(descriptor)
        except TimeoutError:
            # The kernel holds it (a hung disk). Nothing more can be done from here.
            pass
        finally:
            os.close(descriptor)
