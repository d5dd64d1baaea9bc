"""Several agents on this machine, each with its own metadata server, in a network namespace where there is one.

Run as a program it is the inside: it serves metadata and does what the lines on its input say. `MachineRoom` is the
outside, which tests talk to. TensorFlow listens on every interface, so it must not run in the machine's own network.
Disks that are small are mounted inside alone; the outside sees what is on them by `on_disk`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
PATIENCE = 300.0  # far more than anything takes: a machine with two busy cores is no failure


async def inside() -> None:
    from tests.runtime.metadata_server import MetadataServer
    from transient_emulator.vms import zygote
    from transient_emulator.vms.zygote import Zygotes

    servers: dict[str, MetadataServer] = {}
    agents: dict[str, asyncio.subprocess.Process] = {}
    zygotes = None
    wanted = os.environ.pop("TRANSIENT_TESTS_ZYGOTES", "")
    shared = os.environ.pop(zygote.SHARED, "")
    if wanted and shared:
        os.environ[zygote.VARIABLE] = shared
    elif wanted:
        zygotes = Zygotes(Path(tempfile.mkdtemp(prefix="zygotes-")))  # a short path, as those of sockets are
        zygotes.start()
        os.environ[zygote.VARIABLE] = str(zygotes.folder)
    if road := os.environ.pop("TRANSIENT_TESTS_ROAD", ""):
        relay = await asyncio.start_server(partial(pass_on, road), "127.0.0.1", 0)
        os.environ["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        name = command["name"]
        if command["do"] == "agent":
            if name not in servers:
                servers[name] = MetadataServer()
                await servers[name].start()
            environment = {**os.environ, "GCE_METADATA_HOST": f"127.0.0.1:{servers[name].port}"}
            program = [sys.executable, "-m", "transient_magics.runtime.agent", "--root", command["root"]]
            agents[name] = await asyncio.create_subprocess_exec(*program, env=environment, start_new_session=True)
        elif command["do"] == "preempt":
            await servers[name].preempt()
        elif command["do"] == "pace":
            await servers[name].change_pace(command["pace"])
        elif command["do"] == "mount":
            await (await asyncio.create_subprocess_exec("mount", *command["words"])).wait()
        number = agents[name].pid if name in agents else 0
        print(json.dumps({"pid": number, "time": time.time_ns()}), flush=True)
    if zygotes:
        await zygotes.stop()


async def pass_on(road: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take one connection out of this network, by the Unix socket `road`."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while block := await reader.read(1 << 16):
                writer.write(block)
                await writer.drain()
        writer.close()

    try:
        there, back = await asyncio.open_unix_connection(road)
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, back), pump(there, writer))


class MachineRoom:
    """Machines below one folder, by name; all of them end with it.

    `road` is the Unix socket on their way to buckets. With `zygotes` their fork servers are forked from processes that
    have TensorFlow imported, as those of emulated VMs are; else each machine imports it, as a real VM does.
    """

    def __init__(self, folder: Path, road: Path | None = None, *, zygotes: bool = False) -> None:
        self._folder = folder
        self._agents: dict[str, int] = {}
        self._process = subprocess.Popen(
            apart("tests.runtime.machine_room"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            bufsize=1,
            env={
                **os.environ,
                **({"TRANSIENT_TESTS_ROAD": str(road)} if road else {}),
                **({"TRANSIENT_TESTS_ZYGOTES": "1"} if zygotes else {}),
            },
            encoding="utf-8",
        )

    def root(self, name: str) -> Path:
        return self._folder / name

    def run_folder(self, name: str, run: str = "run-1") -> Path:
        return self.root(name) / "runs" / run

    def start_agent(self, name: str) -> int:
        """Start (again) the agent of a machine, and return its pid once it answers."""
        self.root(name).mkdir(parents=True, exist_ok=True)
        self._agents[name] = self._do({"do": "agent", "name": name, "root": str(self.root(name))})["pid"]
        until(lambda: self.alive(name), f"agent of {name}")
        return self._agents[name]

    def need_agent(self, name: str) -> None:
        """Start the agent of a machine where there is none yet: what it has imported for a run serves the next."""
        if name not in self._agents:
            self.start_agent(name)

    def names(self) -> list[str]:
        """The machines that have an agent."""
        return list(self._agents)

    def alive(self, name: str) -> bool:
        try:
            return self.say(name, {"do": "ping"})["pid"] == self._agents[name]
        except OSError:
            return False

    def kill_agent(self, name: str) -> None:
        os.kill(self._agents[name], signal.SIGKILL)

    def preempt(self, name: str) -> int:
        """Flip the machine's metadata; returns when (ns)."""
        return self._do({"do": "preempt", "name": name})["time"]

    def slow_down(self, name: str, times: float) -> None:
        """From now on a step on this machine takes so many times the pace that was declared."""
        self._do({"do": "pace", "name": name, "pace": f"0 {times}"})

    def hold(self, name: str, seconds: float) -> None:
        """From now on a step on this machine, for which no pace was declared, takes so many seconds; 0: as it can."""
        self._do({"do": "pace", "name": name, "pace": f"{seconds} {int(seconds > 0)}"})

    def small_disk(self, folder: Path, kilobytes: int) -> Path:
        """Put a disk of this size at `folder`, or change that of the one there; returns `on_disk`."""
        folder.mkdir(parents=True, exist_ok=True)
        place, there = str(folder), self.on_disk(folder)
        size = f"size={kilobytes}k"
        words = (
            ["-o", f"remount,{size}", place] if os.path.ismount(there) else ["-t", "tmpfs", "-o", size, "none", place]
        )
        self._do({"do": "mount", "name": "", "words": words})
        assert os.path.ismount(there), "no disk can be mounted"
        return there

    def on_disk(self, folder: Path) -> Path:
        """The place where this process sees what is mounted at `folder` inside."""
        return Path(f"/proc/{self._process.pid}/root{folder.absolute()}")

    def say(self, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """One command to an agent, and its answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.root(name) / "agent.sock"))
            connection.sendall(json.dumps(message).encode() + b"\n")
            with connection.makefile() as answers:
                return json.loads(answers.readline())

    def put(self, name: str, declaration: dict[str, Any], cell: str) -> Path:
        """Place a run's declaration and cell on a machine."""
        folder = self.run_folder(name, declaration["name"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(declaration), encoding="utf-8")
        (folder / "cell.py").write_text(cell, encoding="utf-8")
        return folder

    def pids(self, name: str) -> dict[str, int]:
        """Role processes that run on a machine, by name."""
        return {process["name"]: process["pid"] for process in self.say(name, {"do": "ping"})["processes"]}

    def reports(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """What the agent of a machine has written."""
        return [line for line in lines(self.root(name) / "agent.jsonl") if not kind or line["kind"] == kind]

    def close(self) -> None:
        """End every role, every agent and the room."""
        for name in self._agents:
            if not self.alive(name):
                self.start_agent(name)
            for run in {process["run"] for process in self.say(name, {"do": "ping"})["processes"]}:
                self.say(name, {"do": "stop", "run": run})
            os.kill(self._agents[name], signal.SIGTERM)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)

    def _do(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


_PORTS = range(15_000, 32_768)
"""Linux gives connections those from 32768 on."""


def apart(module: str) -> list[str]:
    """The command that runs a module in a network and with mounts of its own, where there is such a thing."""
    program = f"exec {sys.executable} -m {module}"
    if isolated():
        return ["unshare", "-Urnm", "sh", "-c", f"ip link set lo up; {program}"]
    return ["sh", "-c", program]


@cache
def isolated() -> bool:
    """Whether programs may have a network and mounts of their own here."""
    return bool(shutil.which("unshare")) and not subprocess.run(["unshare", "-Urnm", "true"], check=False).returncode


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, below those that connections are given: none has one before its server does."""
    probes: list[socket.socket] = []
    while len(probes) < count:
        probe = socket.socket()
        try:
            probe.bind(("", _PORTS.start + secrets.randbelow(len(_PORTS))))
        except OSError:
            probe.close()
        else:
            probes.append(probe)
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def lines(path: Path) -> list[dict[str, Any]]:
    """The complete JSON lines of a file that may not exist yet, and that somebody may be writing.

    Each is read once: whoever waits asks twenty times a second, on the cores that train.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return []
    with file:
        known = os.fstat(file.fileno())
        number, offset, found = _READ.get(path, (0, 0, []))
        if number != known.st_ino or offset > known.st_size:  # another file of that name
            offset, found = 0, []
        file.seek(offset)
        come = file.read()
    *complete, rest = come.split(b"\n")
    found = [*found, *map(json.loads, complete)]
    _READ[path] = known.st_ino, offset + len(come) - len(rest), found
    return list(found)


_READ: dict[Path, tuple[int, int, list[dict[str, Any]]]] = {}


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition` gives something true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE:.0f} s: {what}")


if __name__ == "__main__":
    asyncio.run(inside())
