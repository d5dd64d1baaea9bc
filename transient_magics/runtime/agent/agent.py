"""The agent of one VM: `python -m transient_magics.runtime.agent --root DIRECTORY`.

It watches for the preemption notice, keeps this VM's processes running, and takes commands as JSON
lines on a Unix socket. It reports events in `agent.jsonl`. It may be killed at any moment: roles
continue, and the next agent adopts them. It uses the standard library only, and no TensorFlow,
because it must start within a fraction of a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import TransientError
from ...files import lock, private_sockets, write_atomically
from ...protocol import layout
from ...protocol.agent_commands import (
    DISPATCHER,
    INPUT,
    Assign,
    Assignment,
    Begin,
    Command,
    End,
    Evaluate,
    Fork,
    MakeReady,
    Ping,
    Save,
    Stop,
    Warm,
    Warn,
    read,
)
from ...protocol.machines import NOTICE_SECONDS
from ...protocol.messages import encode
from ...protocol.run import RunSpec
from ...protocol.vm_events import (
    AgentLine,
    AgentStarted,
    PreemptionNoticed,
    TrafficCounted,
    line_fields,
)
from .. import process_record
from ..folder import Lines, RunFolder
from ..metadata import notice_seconds, watch_preemption
from ..process_record import RoleRecord, role_records
from ..role import LONGEST_LINE
from .processes import Processes
from .starting import ForkServer, has_zygote
from .supervise import RoleProcess

_TRAFFIC_SECONDS = 15.0
_TRAFFIC_BYTES = 2**20
"""Pause between two readings of the network's counters, and least bytes that are reported."""
_SERVER_CHECK_SECONDS = 15.0
"""Pause between two checks whether there should be a fork server."""
_MEMORY_BYTES = 2**30
"""Free memory that a fork server needs, or a worker that prepares while another one trains."""
_IDLE_SECONDS = 900.0
"""Time for which a fork server is kept on a VM without roles."""
_COUNTERS = Path("/proc/net/dev")


class Agent:
    """The agent below one root directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._roles: dict[tuple[str, str], RoleProcess] = {}
        self._processes = Processes(root)
        """Processes of other work than runs."""
        self._fork_server: ForkServer | None = None
        self._lines = Lines(root / layout.AGENT_LINES)
        self._preempted = False
        self._notice_seconds = NOTICE_SECONDS
        self._changing = asyncio.Lock()
        """Held by a command that starts or ends processes."""
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM. Processes keep running for the next agent."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        path = self._root / layout.AGENT_SOCKET
        path.unlink(missing_ok=True)
        with private_sockets():
            server = await asyncio.start_unix_server(self._serve, path, limit=LONGEST_LINE)
        write_atomically(self._root / layout.AGENT_PID, str(os.getpid()))
        self._report(AgentStarted(pid=os.getpid()))
        self._adopt()
        self._processes.adopt()
        tasks = [
            asyncio.create_task(self._watch_preemption()),
            asyncio.create_task(self._count_traffic()),
            asyncio.create_task(self._manage_fork_server()),
        ]
        try:
            await self._stopped.wait()
        finally:
            for task in tasks:
                task.cancel()
            server.close()
            if self._fork_server:
                self._fork_server.end()
            for role in self._roles.values():
                role.detach()
            self._processes.detach()

    async def _watch_preemption(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_preemption(self._notice))
            self._notice_seconds = await asyncio.to_thread(notice_seconds)

    def _report(self, line: AgentLine) -> None:
        self._lines.write(line.kind, line_fields(line))

    async def _count_traffic(self) -> None:
        """Report the network traffic at intervals, because traffic between zones costs money."""
        reported = 0
        while True:
            sent, received = network_bytes()
            if sent + received - reported >= _TRAFFIC_BYTES:
                reported = sent + received
                self._report(TrafficCounted(sent=sent, received=received))
            await asyncio.sleep(_TRAFFIC_SECONDS)

    def _notice(self) -> None:
        """Report the preemption notice first, then signal the roles.

        Workers train on, and leave in time. Processes that end from now on are not restarted.
        """
        self._report(PreemptionNoticed(seconds=self._notice_seconds))
        self._preempted = True
        self._processes.notice()
        for role in self._roles.values():
            match role.assignment.role:
                case "worker":
                    role.requested = False
                    role.signal(signal.SIGTERM)
                case "prep":
                    role.requested = False
                case "ps" if role.assignment.index == 0:
                    role.signal(signal.SIGUSR1)  # the chief saves
                case _:
                    pass

    def _start(self, assignment: Assignment, adopt: RoleRecord | None = None) -> None:
        role = RoleProcess(self._root, assignment, self._report, self._server_for)
        self._roles[assignment.run, assignment.name] = role
        role.start(adopt)

    def _adopt(self) -> None:
        """Adopt recorded roles: those that an earlier agent ran, and one that it was starting."""
        for record in role_records(self._root):
            if (record.assignment.run, record.assignment.name) not in self._roles:
                self._start(record.assignment, record)

    # --- the fork server --------------------------------------------------------------------------
    def _server_for(self, assignment: Assignment) -> ForkServer | None:
        """Return the fork server for a role that starts now; None: it starts as a plain program.

        A parameter server needs all that a fork server imports, so it gets one. A worker may need
        much less, and starts faster without a server. The worker of a trial gets one, because the
        next trial starts soon. With a zygote a server takes no time. A server that died is not
        replaced here, because there may be no memory for another one.
        """
        own = self._is_own(assignment.run)
        server = self._fork_server
        if server is not None and server.own == own:
            return server
        makes_trial = assignment.role == "worker" and self._is_trial(assignment.run)
        if has_zygote() or assignment.role == "ps" or makes_trial:
            return self._start_fork_server(own)
        return None

    def _start_fork_server(self, own: bool) -> ForkServer:
        """Return the fork server for models of this kind, started if needed; end any other."""
        server = self._fork_server
        if server is not None and server.own == own and server.alive:
            return server
        if server is not None:
            server.end()
        self._fork_server = ForkServer(self._root, own=own)
        return self._fork_server

    async def _manage_fork_server(self) -> None:
        """Start a fork server for the next start of a role, and end it on an idle VM.

        One is started for a role that has run for long, or instead of a server that died.
        """
        busy_at = time.monotonic()
        while True:
            await asyncio.sleep(_SERVER_CHECK_SECONDS)
            running = [role for role in self._roles.values() if role.pid is not None]
            if running:
                busy_at = time.monotonic()
            died = self._fork_server is not None and not self._fork_server.alive
            lasting = [
                role.assignment.run
                for role in running
                if role.requested
                and role.assignment.role in ("ps", "worker")
                and (role.has_lasted or died)
            ]
            if lasting and available_memory() > _MEMORY_BYTES:
                with contextlib.suppress(OSError):  # no memory for a process
                    self._start_fork_server(self._is_own(lasting[0]))
            elif self._fork_server and time.monotonic() - busy_at > _IDLE_SECONDS:
                self._fork_server.end()
                self._fork_server = None

    def _is_own(self, run: str) -> bool:
        """Return whether the run has a model of its own, not a registered one."""
        spec = self._spec(run)
        return spec is not None and not spec.model

    def _is_trial(self, run: str) -> bool:
        """Return whether the run is a trial of a study."""
        spec = self._spec(run)
        return spec is not None and bool(spec.study)

    def _spec(self, run: str) -> RunSpec | None:
        """Return the declaration of the run; None if it cannot be read."""
        try:
            return RunFolder(self._root / layout.RUNS / run).spec()
        except TransientError:
            return None

    # --- commands ---------------------------------------------------------------------------------
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection.

        The controller may keep it open: its end means that the agent has ended.
        """
        with contextlib.suppress(OSError, ValueError):
            while line := await reader.readline():
                writer.write(encode(await self._answer(line)))
                await writer.drain()
        writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            command = read(line)
        except ValueError as error:
            return {"ok": False, "error": f"unknown command: {error}"}
        try:
            if isinstance(command, Ping | Fork | Warn):
                # Answered even while another command waits for the end of a chief.
                return {"ok": True, **await self._carry_out(command)}
            async with self._changing:
                return {"ok": True, **await self._carry_out(command)}
        except TransientError as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, OSError) as error:
            return {"ok": False, "error": f"the command could not be carried out: {error}"}

    def _describe(self) -> dict[str, Any]:
        running = [
            {**role.describe(), "prepared": role.prepared}
            for role in self._roles.values()
            if role.pid is not None
        ]
        imported = self._fork_server is not None and self._fork_server.has_imported
        return {"pid": os.getpid(), "processes": running, "imported": imported}

    async def _carry_out(self, command: Command) -> dict[str, Any]:
        match command:
            case Ping():
                return self._describe()
            case Warm():
                self._warm(command)
            case Assign():
                await self._assign(command.assignment, command.runs, standby=command.standby)
            case MakeReady():
                self._make_ready(command.assignment)
            case Stop():
                await self._end(lambda run: run == command.run, at_once=command.at_once)
            case Save():
                self._signal_chief(command.run, signal.SIGUSR1)
            case Evaluate():
                self._signal_chief(command.run, signal.SIGUSR2)
            case Fork():
                return {"pid": await self._fork(command)}
            case Begin():
                await self._begin(command)
            case Warn():
                self._processes.warn(command)
            case End():
                await self._processes.end(command)
        return {}

    def _warm(self, command: Warm) -> None:
        """Start importing what a role of the run needs, unless the role has started."""
        if (command.run, command.name) not in self._roles and not self._preempted:
            self._start_fork_server(command.own)

    async def _fork(self, command: Fork) -> int | None:
        """Fork a program beside a run; return its pid, None without a fork server for its model."""
        server = self._fork_server
        if server is None or server.own != self._is_own(command.run) or not await server.ready():
            return None
        folder = RunFolder(self._root / layout.RUNS / command.run)
        forked = await server.fork_program(
            command.program, folder, command.arguments, command.caller
        )
        return forked.pid if forked else None

    async def _end(self, ended: Callable[[str], bool], *, at_once: bool = False) -> None:
        """End the roles of the runs for which `ended` is true."""
        self._adopt()
        ending = [
            role
            for (run, _), role in self._roles.items()
            if ended(run) and role.assignment.role != INPUT
        ]
        # A process that prepares shared input ends with the last trial that reads from it.
        still_read = {
            layout.shared_input(role.assignment.shares)
            for role in self._roles.values()
            if role not in ending
        }
        ending += [
            role
            for (run, _), role in self._roles.items()
            if role.assignment.role == INPUT and run not in still_read
        ]
        await asyncio.gather(*(role.end(at_once=at_once) for role in ending))
        self._roles = {key: role for key, role in self._roles.items() if role not in ending}

    async def _assign(self, assignment: Assignment, runs: Sequence[str], *, standby: bool) -> None:
        """Run a role of a run, and end the roles of all runs that are not among `runs`.

        A parameter server's VM has a process for each run, and a worker's VM one for each trial
        that shares it. The same assignment again changes nothing. With other addresses of parameter
        servers the role restarts.

        With `standby` the role prepares and waits, until the same assignment comes without
        `standby`. So does a role that was made ready ahead, if it still runs.
        """
        folder = self._folder(assignment.run)
        await self._processes.end_others()
        # The controller that should have ended them may have been lost.
        await self._end(lambda run: run != assignment.run and run not in runs)
        for part in _parts(assignment):
            await self._assign_part(part, folder, standby)

    async def _assign_part(self, part: Assignment, folder: RunFolder, standby: bool) -> None:
        role = self._roles.get((part.run, part.name))
        if part.role == INPUT:
            if role is None:
                self._start_input(part, folder)
            return
        if role is not None and role.assignment == part:
            ahead = folder.ahead.exists()
            if not standby:
                folder.standby.unlink(missing_ok=True)
            folder.ahead.unlink(missing_ok=True)
            if ahead and role.has_ended:
                self._start(part)
            return
        if role is not None:
            # If a parameter server moved, its variables are gone and the chief has nothing to save.
            moved = part.role == "ps" and role.assignment.ps != part.ps
            await role.end(at_once=moved)
        if standby:
            folder.standby.touch(mode=0o600)
        else:
            folder.standby.unlink(missing_ok=True)
        folder.ahead.unlink(missing_ok=True)
        self._start(part)

    def _make_ready(self, assignment: Assignment) -> None:
        """Start a worker that prepares and waits until another run has left this VM.

        Not without memory for both: successive runs are similar, and each has its data in memory.
        """
        folder = self._folder(assignment.run)
        workers = [role for role in self._roles.values() if role.assignment.role == "worker"]
        if any(role.assignment.run == assignment.run for role in workers):
            return
        in_use = sum(process_record.resident_bytes(role.pid) for role in workers if role.pid)
        if available_memory() > _MEMORY_BYTES + in_use:
            folder.ahead.touch(mode=0o600)
            self._start(assignment)

    def _folder(self, run: str) -> RunFolder:
        """Return the folder of a run that may start.

        Raises TransientError if the VM is under notice, or the run's files are missing.
        """
        if self._preempted:
            raise TransientError("this VM has a preemption notice")
        folder = RunFolder(self._root / layout.RUNS / run)
        if not (folder.path / layout.RUN).is_file():
            raise TransientError(f"{layout.RUN} of {run} has not been copied to this VM yet")
        return folder

    async def _begin(self, command: Begin) -> None:
        """Start a process of other work than a run; an exclusive one ends everything else here."""
        if self._preempted and not self._processes.has_begun(command):
            raise TransientError("this VM has a preemption notice")
        if self._processes.is_exclusive(command):
            # The controller that should have ended it may have been lost.
            await self._end(lambda _: True)
            await self._processes.end_others(command.kind, command.work)
        await self._processes.begin(command)

    def _start_input(self, part: Assignment, folder: RunFolder) -> None:
        """Start the process that reads for a study's trials, with the first one's declaration."""
        own = RunFolder(self._root / layout.RUNS / part.run)
        own.path.mkdir(exist_ok=True, mode=0o700)
        write_atomically(own.path / layout.RUN, (folder.path / layout.RUN).read_bytes())
        self._start(part)

    def _signal_chief(self, run: str, number: signal.Signals) -> None:
        for role in self._roles.values():
            of_chief = role.assignment.role == "ps" and role.assignment.index == 0
            if role.assignment.run == run and of_chief and role.pid is not None:
                role.signal(number)
                return
        raise TransientError(f"the chief of {run} does not run on this VM")


def _parts(assignment: Assignment) -> Iterator[Assignment]:
    """Yield the assignments of all processes that an assignment needs.

    The chief of a run with preparation VMs has a dispatcher beside it, and trials that share their
    input have a process that reads for them.
    """
    if assignment.shares:
        yield replace(
            assignment,
            run=layout.shared_input(assignment.shares),
            role=INPUT,
            name=INPUT,
            shares="",
        )
    yield assignment
    if assignment.role == "ps" and assignment.index == 0 and assignment.dispatcher:
        yield replace(assignment, role=DISPATCHER, name=DISPATCHER)


def available_memory() -> int:
    """Return the bytes that a new process could use; 0 if unknown."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def network_bytes(text: str | None = None) -> tuple[int, int]:
    """Return the bytes sent and received since the start of the VM, without the loopback.

    `text` is the content of /proc/net/dev, which is read by default.
    """
    if text is None:
        text = _COUNTERS.read_text(encoding="utf-8")
    sent = 0
    received = 0
    for line in text.splitlines()[2:]:  # after two lines of titles
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() != "lo" and len(fields) > 8:
            received += int(fields[0])
            sent += int(fields[8])
    return sent, received


def main() -> None:
    """Run the agent of a root; exit if there already is one."""
    parser = argparse.ArgumentParser(description="The agent of one VM.")
    parser.add_argument("--root", type=Path, required=True)
    root: Path = parser.parse_args().root.absolute()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if lock(root / "agent.lock") is None:
        print("an agent is running already", file=sys.stderr)
        return
    asyncio.run(Agent(root).run())
