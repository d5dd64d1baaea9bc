"""One running VM: its processes, its network, its SSH and metadata sockets.

`power_on` brings it to the state in which SSH answers; `adopt` takes over one that an earlier emulator left running;
`power_off` is the hard stop: whatever ran in it is dead when it returns, and no socket, cable or namespace is left.
A machine knows nothing of the API; it gets a `Plan` and calls `on_death` if its first process ends by itself.
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

BRIDGE, BRIDGE_ADDRESS, PREFIX = "transient0", "10.128.0.1", 20
METADATA_ADDRESS = "169.254.169.254"
MARK = "TRANSIENT_VM"
SHELL = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"  # Compute Engine's users have bash.

OPERATION_THREADS = max(1, len(os.sched_getaffinity(0)) // 4)
"""For one TensorFlow operation. The VMs of a cluster share these cores, and operations of several VMs that each take
all of them wait for each other: with one worker on two cores a step takes half as long again (bench_throughput)."""
_READY_SECONDS = 30
_DEATH_SECONDS = 10
# The first process of a VM only has to stay, and to let the kernel reap what is orphaned: ignoring SIGCHLD does that.
# With mounts of its own, a VM has a name and a hosts file of its own, too.
_FIRST = """[ -z "$1" ] || { mount --bind "$2" /etc/hosts && hostname "$1"; } || echo nameless
echo ready; exec >/dev/null
env --ignore-signal=CHLD true 2>/dev/null && exec env --ignore-signal=CHLD sleep 2147483647
exec sleep 2147483647"""


@dataclass(frozen=True)
class Plan:
    """What sets one VM apart: its identity, number, address, folder (home, bin, tmp below it) and short home path.

    With `has_gpu` its programs find the GPUs of this machine, if it has any. `zygotes` is the folder of their sockets.
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
    """A program that runs in a VM; `group` is the process group (as the host sees it) that signals go to."""

    process: asyncio.subprocess.Process
    group: int

    def signal(self, number: int) -> None:
        """Send a signal to the program and its children. No error if they are gone."""
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            # It is gone, or so young that it has not made its group yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.group, number)


def hardware_address(address: str) -> str:
    """As on Compute Engine it follows from the IPv4 address, so a neighbour's memory stays true."""
    return "42:01:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def visible_gpus(has_gpu: bool, around: Mapping[str, str]) -> dict[str, str]:
    """The variable by which CUDA finds no GPU in a VM without one, and in others those that `around`, the environment
    of the emulator, leaves to it."""
    name = "CUDA_VISIBLE_DEVICES"
    chosen = around.get(name) if has_gpu else "-1"
    return {} if chosen is None else {name: chosen}


class Machine:
    """A VM as processes. Not reusable after `power_off`."""

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
        """Id and start of the VM's first process, as the host sees it."""
        return (self._first, isolation.start_stamp(self._first)) if self._first else None

    @property
    def is_on(self) -> bool:
        """Whether the VM runs: from the end of `power_on` or `adopt` until it dies or `power_off` begins."""
        return self._on

    async def power_on(self, ports: dict[str, int]) -> None:
        """Make the VM's folder, processes, network and sockets (`ports`: of `ssh` and `metadata`, if not standard)."""
        self._furnish()
        self._first = await self._start_first()
        if self._isolation is not Isolation.NONE:
            self._plug_in()
        self._open_sockets(ports)
        self._watch_over()
        self._on = True

    def adopt(self, process: int, ports: dict[str, int]) -> None:
        """Take over a VM whose first process is `process`."""
        self._first = process
        self._open_sockets(ports)
        self._watch_over()
        self._on = True

    def write_hosts(self, content: str) -> None:
        """Replace the names that programs in the VM resolve, where it has mounts of its own."""
        if self._isolation is Isolation.FULL and self._hosts.parent.is_dir():
            replace_content(self._hosts, content)

    async def power_off(self) -> None:
        """End everything that runs in the VM, at once."""
        self._on = False
        self._unwatch()
        for opened in self.sockets.values():
            opened.close()
        self.sockets.clear()
        if self._first:
            isolation.kill(self._first)
        if self._isolation is not Isolation.FULL or self._first is None:
            await self._end_marked()
        if self._first:
            await _gone(self._first)
            self._first = None
        if self._isolation is not Isolation.NONE:
            # The kernel takes some 15 ms for this, in which other VMs' notices would wait.
            await asyncio.to_thread(netlink.remove, self._cable)
        self.plan.home.unlink(missing_ok=True)

    async def run(
        self, *command: str, terminal: bool = False, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
    ) -> Command:  # fmt: skip
        """Start a program inside the VM, in its home directory and a session (with `terminal`: on stdin) of its own."""
        news, inform = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._inside(command, terminal, inform), env=self.environment(), cwd="/", start_new_session=True,
                stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=(inform,),
            )  # fmt: skip
        except BaseException:
            os.close(news)
            raise
        finally:
            os.close(inform)
        await readable(news)
        arrived = os.read(news, 1)
        os.close(news)
        if not arrived:
            raise OSError(f"no program can be started there (code {await process.wait()})")
        # A short program may have ended already: then the group of its wrapper, in which nothing is left, will do.
        program = _child(process.pid) if self._isolation is Isolation.FULL else None
        return Command(process, program or process.pid)

    def _inside(self, command: Sequence[str], terminal: bool, inform: int) -> list[str]:
        # The byte tells that the program's process exists, so that signals can find it from then on. (By that name,
        # because a plain sh knows descriptors of one digit only; what stays open is a pipe that nobody reads any more.)
        full = self._isolation is Isolation.FULL
        session = " ".join(["setsid", *(["--ctty"] if terminal else []), *([] if full else ["--wait"])])
        script = f'cd "$HOME"; printf . >/dev/fd/{inform}; exec {session if full or terminal else ""} "$@"'
        go_home = ["/bin/sh", "-c", script, "sh", *command]
        if self._isolation is Isolation.NONE:
            return go_home
        namespaces = ["-n", "-p", "-m", "-u"] if full else ["-n"]
        return [shutil.which("nsenter") or "nsenter", "-t", str(self._first), *namespaces, "--", *go_home]

    def environment(self) -> dict[str, str]:
        """What programs in the VM find in their environment: nothing of the host's, but for which GPUs they may use."""
        plan = self.plan
        host, port = self.sockets["metadata"].getsockname()[:2]
        metadata = METADATA_ADDRESS if self._isolation is not Isolation.NONE else f"{host}:{port}"
        return {
            "HOME": str(plan.home), "USER": plan.user, "LOGNAME": plan.user, "SHELL": SHELL, "LANG": "C.UTF-8",
            "PATH": f"{plan.directory / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "TMPDIR": str(plan.directory / "tmp"), "GCE_METADATA_HOST": metadata, "GCE_METADATA_IP": metadata,
            "STORAGE_EMULATOR_HOST": f"http://{metadata}", "TF_NUM_INTRAOP_THREADS": str(OPERATION_THREADS),
            MARK: plan.identity, **visible_gpus(plan.has_gpu, os.environ),
            **({zygote.VARIABLE: str(plan.zygotes)} if plan.zygotes else {}),
        }  # fmt: skip

    def _furnish(self) -> None:
        for part in ("home", "bin", "tmp"):
            places.private(self.plan.directory / part)
        replace_content(self._hosts, f"127.0.0.1 localhost\n{self.plan.address} {self.plan.name}\n")
        wrapper = self.plan.directory / "bin" / "transient-python"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o700)
        # A short way home: the sockets that programs make there may have paths of 107 characters at most.
        self.plan.home.unlink(missing_ok=True)
        self.plan.home.symlink_to(self.plan.directory / "home", target_is_directory=True)

    async def _start_first(self) -> int:
        prefix = {
            Isolation.FULL: ["unshare", "-n", "-p", "-m", "-u", "--fork", "--mount-proc", "--"],
            Isolation.NETWORK: ["unshare", "-n", "--"],
            Isolation.NONE: [],
        }[self._isolation]
        named = [self.plan.name, str(self._hosts)] if self._isolation is Isolation.FULL else []
        process = await asyncio.create_subprocess_exec(
            *prefix, "/bin/sh", "-c", _FIRST, "sh", *named, cwd="/", start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath), MARK: self.plan.identity},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdout
        try:
            async with asyncio.timeout(_READY_SECONDS):
                said = await process.stdout.readline()
                if said == b"nameless\n":
                    _LOG.warning("VM %s has the name and the hosts file of this machine", self.plan.name)
                    said = await process.stdout.readline()
        except (TimeoutError, asyncio.CancelledError):
            _kill_tree(process.pid)
            raise
        if said != b"ready\n":
            raise OSError(f"the first process of {self.plan.name} ended with code {await process.wait()}")
        if self._isolation is not Isolation.FULL:
            return process.pid
        first = _child(process.pid)
        if first is None:
            raise OSError(f"the first process of {self.plan.name} ended at once")
        return first

    @property
    def _hosts(self) -> Path:
        """The file that is mounted in the VM as /etc/hosts."""
        return self.plan.directory / "hosts"

    @property
    def _cable(self) -> str:
        return f"vm{self.plan.number}"

    def _plug_in(self) -> None:
        assert self._first
        netlink.remove(self._cable)
        with contextlib.closing(_File(f"/proc/{self._first}/ns/net")) as namespace:
            hardware = hardware_address(self.plan.address)
            netlink.add_cable(
                self._cable, BRIDGE, peer="eth0", hardware_address=hardware, namespace=namespace.descriptor
            )

        def configure() -> None:
            netlink.set_up("lo")
            netlink.add_address("lo", METADATA_ADDRESS, 32)
            netlink.add_address("eth0", self.plan.address, PREFIX)
            netlink.set_up("eth0")

        isolation.within_network(self._first, configure)

    def shape(
        self, rate: float | None, far_rate: float | None = None, far: Collection[str] = (), late: bool = False
    ) -> None:
        """Let its network carry no more than `rate` bits per second each way (None: what it can), and no more than
        `far_rate` to the addresses `far`; if `late`, through the delay line. Blocks for a moment; raises OSError, also
        where the VM does not run (`is_on`)."""
        if self._isolation is Isolation.NONE:
            return
        if self._first is None:
            raise OSError(f"VM {self.plan.name} does not run, so its network cannot be shaped")
        held, wanted = self._held(), set(far) if late else set[str]()

        def outgoing() -> None:
            if rate is None:
                netlink.unshape("eth0")
            elif far_rate is None:
                netlink.shape("eth0", rate)
            else:
                netlink.shape_by_place("eth0", rate, far_rate, far)
            for address in held - wanted:
                netlink.remove_neighbour("eth0", address)
            for address in wanted - held:
                netlink.add_neighbour("eth0", address, delay_line.HARDWARE_ADDRESS)

        isolation.within_network(self._first, outgoing)
        if rate is None:
            netlink.unshape(self._cable)
        else:
            netlink.shape(self._cable, rate)

    def processes(self) -> list[int]:
        """All that runs in it at this moment, as the host sees it."""
        if self._isolation is not Isolation.FULL or self._first is None:
            return isolation.processes_with(MARK, self.plan.identity)
        return isolation.processes_beside(self._first)

    def _held(self) -> set[str]:
        """The addresses to which it sends through the delay line, an earlier emulator's among them."""
        lines = Path(f"/proc/{self._first}/net/arp").read_text(encoding="utf-8").splitlines()[1:]
        return {words[0] for line in lines if (words := line.split())[3] == delay_line.HARDWARE_ADDRESS}

    def _open_sockets(self, ports: dict[str, int]) -> None:
        assert self._first

        def listen() -> dict[str, socket.socket]:
            if self._isolation is Isolation.NONE:
                own = self.plan.address if sys.platform.startswith("linux") else "127.0.0.1"
                places = {"ssh": (own, ports.get("ssh", 0)), "metadata": (own, ports.get("metadata", 0))}
            else:
                places = {"ssh": (self.plan.address, 22), "metadata": (METADATA_ADDRESS, 80)}
            opened = {name: socket.create_server(place, backlog=128) for name, place in places.items()}
            for each in opened.values():
                each.setblocking(False)
            return opened

        self.sockets = listen() if self._isolation is Isolation.NONE else isolation.within_network(self._first, listen)

    def _watch_over(self) -> None:
        if self._first and hasattr(os, "pidfd_open"):
            self._watch = os.pidfd_open(self._first)
            asyncio.get_running_loop().add_reader(self._watch, self._died)

    def _died(self) -> None:
        self._on = False
        self._unwatch()
        self._on_death()

    def _unwatch(self) -> None:
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None

    async def _end_marked(self) -> None:
        # Without a process namespace (or if it was left half made), what hides can only be found by its mark, and may
        # start more while we look.
        while found := isolation.processes_with(MARK, self.plan.identity):
            for process in found:
                isolation.kill(process)
            for process in found:
                await _gone(process)


class _File:
    """An open file as a descriptor, closable by contextlib.closing."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self.descriptor)


def _child(process: int) -> int | None:
    """The first child of a process; None if it has none (any more)."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _kill_tree(process: int) -> None:
    if child := _child(process):
        isolation.kill(child)
    isolation.kill(process)


async def _gone(process: int) -> None:
    """Wait until a killed process is gone."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            async with asyncio.timeout(_DEATH_SECONDS):
                await readable(descriptor)
        except TimeoutError:
            pass  # Held by the kernel (a hung disk): nothing more can be done about it from here.
        finally:
            os.close(descriptor)
