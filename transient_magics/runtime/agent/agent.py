"""The agent of one VM: `python -m transient_magics.runtime.agent --root DIRECTORY`.

It watches for the preemption notice, keeps this VM's role processes running, and takes commands as
JSON lines on a Unix socket. What it sees goes to `agent.jsonl`. It can be killed at any moment:
roles run on, and the next agent adopts them. Standard library only, and no TensorFlow: it must be
up within a fraction of a second.
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
from ...protocol.vm_events import AgentLine, AgentStarted, PreemptionNoticed, TrafficCounted, told
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
_LOOK_SECONDS = 15.0
_MEMORY_BYTES = 2**30
_IDLE_SECONDS = 900.0
"""How often it is looked whether there should be a fork server; the memory that has to be free for
one that nobody waits for; and how long one is kept on a VM that has no role.
"""

_COUNTERS = Path("/proc/net/dev")


class Agent:
    """The agent below one root directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._roles: dict[tuple[str, str], RoleProcess] = {}
        self._processes = Processes(root)
        """What the VM runs for work but runs, whose processes are roles."""
        self._fork_server: ForkServer | None = None
        self._lines = Lines(root / layout.AGENT_LINES)
        self._preempted = False
        self._notice_seconds = NOTICE_SECONDS
        self._changing = asyncio.Lock()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Serve until SIGTERM. Roles are left running for the next agent."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._over.set)
        place = self._root / layout.AGENT_SOCKET
        place.unlink(missing_ok=True)
        with private_sockets():
            server = await asyncio.start_unix_server(self._talk, place, limit=LONGEST_LINE)
        write_atomically(self._root / layout.AGENT_PID, str(os.getpid()))
        self._report(AgentStarted(pid=os.getpid()))
        self._adopt()
        self._processes.adopt()
        watch = asyncio.create_task(self._watch_preemption())
        tasks = [
            asyncio.create_task(each) for each in (self._count_traffic(), self._look_after_server())
        ]
        try:
            await self._over.wait()
        finally:
            for task in (watch, *tasks):
                task.cancel()
            server.close()
            if self._fork_server:
                self._fork_server.end()
            for role in self._roles.values():
                role.let_go()
            self._processes.let_go()

    async def _watch_preemption(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_preemption(self._notice))
            self._notice_seconds = await asyncio.to_thread(notice_seconds)

    def _report(self, line: AgentLine) -> None:
        self._lines.write(line.kind, told(line))

    async def _count_traffic(self) -> None:
        """Say now and then how much went over the network: between zones it costs money."""
        said = 0
        while True:
            sent, received = network_bytes()
            if sent + received - said >= _TRAFFIC_BYTES:
                said = sent + received
                self._report(TrafficCounted(sent=sent, received=received))
            await asyncio.sleep(_TRAFFIC_SECONDS)

    def _notice(self) -> None:
        """The VM will be taken away: say so before anything else. Workers train on, and leave in
        time by themselves.

        Whoever ends from now on is not started again.
        """
        self._report(PreemptionNoticed(seconds=self._notice_seconds))
        self._preempted = True
        self._processes.notice()
        for role in self._roles.values():
            match role.assignment.role:
                case "worker":
                    role.wanted = False
                    role.signal(signal.SIGTERM)
                case "prep":
                    role.wanted = False
                case "ps" if role.assignment.index == 0:
                    role.signal(signal.SIGUSR1)  # the chief saves
                case _:
                    pass

    def _start(self, assignment: Assignment, adopt: RoleRecord | None = None) -> None:
        role = RoleProcess(self._root, assignment, self._report, self._server_for)
        self._roles[assignment.run, assignment.name] = role
        role.start(adopt)

    def _adopt(self) -> None:
        """Take on the roles on record that are not known: those of an agent before, and what it was
        just starting.
        """
        for record in role_records(self._root):
            if (record.assignment.run, record.assignment.name) not in self._roles:
                self._start(record.assignment, record)

    # --- the fork server ---------------------------------------------------------------------------------------------
    def _server_for(self, assignment: Assignment) -> ForkServer | None:
        """The fork server for a role that starts now; None: it starts plainly.

        A parameter server needs all that a fork server imports, so it gets one. A worker may do
        with much less: without a server it is faster alone, unless it makes a trial: the next one
        comes soon. Where there is a zygote a server takes no time. A server that died is not missed
        at once: there may be no memory for another.
        """
        own = self._is_own(assignment.run)
        if self._fork_server is None or self._fork_server.own != own:
            makes_trial = assignment.role == "worker" and self._is_trial(assignment.run)
            worth = has_zygote() or assignment.role == "ps" or makes_trial
            if worth:
                return self._have_server(own)
            return None
        return self._fork_server

    def _have_server(self, own: bool) -> ForkServer:
        """The fork server for models of this kind; one of the other kind ends."""
        known = self._fork_server
        if known is None or known.own != own or not known.alive:
            if known:
                known.end()
            known = self._fork_server = ForkServer(self._root, own=own)
        return known

    async def _look_after_server(self) -> None:
        """Have a fork server for the next start of a role that has run for long, or instead of one
        that died; let it go where no run comes.
        """
        busy = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            running = [role for role in self._roles.values() if role.pid is not None]
            if running:
                busy = time.monotonic()
            else:
                busy = busy
            missed = self._fork_server is not None and not self._fork_server.alive
            trains = [
                role for role in running if role.wanted and role.assignment.role in ("ps", "worker")
            ]
            lasting = [role.assignment.run for role in trains if role.has_lasted or missed]
            if lasting and available_memory() > _MEMORY_BYTES:
                with contextlib.suppress(OSError):  # as every start, it takes a process
                    self._have_server(self._is_own(lasting[0]))
            elif self._fork_server and time.monotonic() - busy > _IDLE_SECONDS:
                self._fork_server.end()
                self._fork_server = None

    def _is_own(self, run: str) -> bool:
        """Whether the model of the run is one of its own."""
        spec = self._spec(run)
        return spec is not None and not spec.model

    def _is_trial(self, run: str) -> bool:
        """Whether the run is one of a study's."""
        spec = self._spec(run)
        return spec is not None and bool(spec.study)

    def _spec(self, run: str) -> RunSpec | None:
        """What the run declares; None where that cannot be read."""
        try:
            return RunFolder(self._root / layout.RUNS / run).spec()
        except TransientError:
            return None

    # --- commands ----------------------------------------------------------------------------------------------------
    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; it may be kept open, so that its end tells the controller that the agent
        died.
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
            return {"ok": False, "error": f"the agent does not know this command: {error}"}
        try:
            if isinstance(
                command, Ping | Fork | Warn
            ):  # answered at once, also while a chief takes its time to end
                return {"ok": True, **await self._do(command)}
            async with self._changing:
                return {"ok": True, **await self._do(command)}
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

    async def _do(self, command: Command) -> dict[str, Any]:
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
                self._tell_chief(command.run, signal.SIGUSR1)
            case Evaluate():
                self._tell_chief(command.run, signal.SIGUSR2)
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
        """Have imported what this needs in the run, unless it is that already."""
        if (command.run, command.name) not in self._roles and not self._preempted:
            self._have_server(command.own)

    async def _fork(self, command: Fork) -> int | None:
        """The process that has become a program beside a run; None: no fork server for such models
        lives.
        """
        server = self._fork_server
        if server is None or server.own != self._is_own(command.run) or not await server.ready():
            return None
        folder = RunFolder(self._root / layout.RUNS / command.run)
        forked = await server.fork_program(
            command.program, folder, command.arguments, command.caller
        )
        return forked.pid if forked else None

    async def _end(self, over: Callable[[str], bool], *, at_once: bool = False) -> None:
        """End what is done for the runs that are `over`."""
        self._adopt()
        ending = [
            role
            for (run, _), role in self._roles.items()
            if over(run) and role.assignment.role != INPUT
        ]
        read = {
            layout.shared_input(role.assignment.shares)
            for role in self._roles.values()
            if role not in ending
        }
        ending += [
            role
            for (run, _), role in self._roles.items()
            if role.assignment.role == INPUT and run not in read
        ]
        await asyncio.gather(*(role.end(at_once=at_once) for role in ending))
        self._roles = {key: role for key, role in self._roles.items() if role not in ending}

    async def _assign(self, assignment: Assignment, runs: Sequence[str], *, standby: bool) -> None:
        """Be this in the run, and nothing in any that is not among `runs`: a parameter server's VM
        has a process for each run, and a worker's for each trial that shares it.

        The same again changes nothing, another place of the parameter servers restarts the role.
        The variables of one that is elsewhere now are gone, so that the chief has nothing left to
        save: it is ended at once. One that has stood by begins when it is told the same without
        `standby`; so does one that was prepared, if it still lives.
        """
        folder = self._folder(assignment.run)
        await self._processes.end_others()
        # Nobody may have been left to say that one is over.
        await self._end(lambda run: run != assignment.run and run not in runs)
        for part in _parts(assignment):
            known = self._roles.get((part.run, part.name))
            if part.role == INPUT:
                if known is None:
                    self._share(part, folder)
                continue
            if known is not None:
                if known.assignment == part:
                    ahead = folder.ahead.exists()
                    if not standby:
                        folder.standby.unlink(missing_ok=True)
                    folder.ahead.unlink(missing_ok=True)
                    if ahead and known.over:
                        self._start(part)
                    continue
                await known.end(at_once=part.role == "ps" and known.assignment.ps != part.ps)
            if standby:
                folder.standby.touch(mode=0o600)
            else:
                folder.standby.unlink(missing_ok=True)
            folder.ahead.unlink(missing_ok=True)
            self._start(part)

    def _make_ready(self, assignment: Assignment) -> None:
        """Have the process of a worker that waits until another run has left this VM; not where
        there is no memory for both: runs that follow each other are alike, and each has its data in
        memory.
        """
        folder = self._folder(assignment.run)
        here = [role for role in self._roles.values() if role.assignment.role == "worker"]
        if any(role.assignment.run == assignment.run for role in here):
            return
        if available_memory() > _MEMORY_BYTES + sum(
            process_record.resident(role.pid) for role in here if role.pid
        ):
            folder.ahead.touch(mode=0o600)
            self._start(assignment)

    def _folder(self, run: str) -> RunFolder:
        """That of a run that may begin here. Raises TransientError where none may, or it has not
        been brought yet.
        """
        if self._preempted:
            raise TransientError("this VM is about to be taken away")
        folder = RunFolder(self._root / layout.RUNS / run)
        if not (folder.path / layout.RUN).is_file():
            raise TransientError(f"{layout.RUN} of {run} has not been put here yet")
        return folder

    async def _begin(self, command: Begin) -> None:
        """Run a part of other work than a run. One that needs the VM for itself ends all else here."""
        if self._preempted and not self._processes.knows(command):
            raise TransientError("this VM is about to be taken away")
        if self._processes.is_exclusive(command):
            # No controller may have been left to end it.
            await self._end(lambda _: True)
            await self._processes.end_others(command.kind, command.work)
        await self._processes.begin(command)

    def _share(self, part: Assignment, folder: RunFolder) -> None:
        """Have one process read for the trials of a study, in a folder as that of its first run
        here.
        """
        own = RunFolder(self._root / layout.RUNS / part.run)
        own.path.mkdir(exist_ok=True, mode=0o700)
        write_atomically(own.path / layout.RUN, (folder.path / layout.RUN).read_bytes())
        self._start(part)

    def _tell_chief(self, run: str, what: signal.Signals) -> None:
        for role in self._roles.values():
            given = role.assignment
            if (
                given.run == run
                and given.role == "ps"
                and given.index == 0
                and role.pid is not None
            ):
                role.signal(what)
                return
        raise TransientError(f"no chief of {run} runs on this VM")


def _parts(assignment: Assignment) -> Iterator[Assignment]:
    """The processes that make up what a VM is to be: beside the chief of a run with preparation VMs
    its dispatcher, and beside the trials that share their input what reads for them.
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
    """Bytes that a new process could have."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(
        (int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0
    )


def main() -> None:
    """Run the only agent below the root; a second one ends at once."""
    parser = argparse.ArgumentParser(description="The agent of one VM.")
    parser.add_argument("--root", type=Path, required=True)
    root: Path = parser.parse_args().root.absolute()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    if lock(root / "agent.lock") is None:
        print("an agent is running already", file=sys.stderr)
        return
    asyncio.run(Agent(root).run())


# How much this VM has sent and received since it was started, as its kernel counts it.


def network_bytes(text: str | None = None) -> tuple[int, int]:
    """(sent, received) in bytes over all interfaces but the loopback. `text`: what /proc/net/dev
    says.
    """
    sent = received = 0
    for line in (text if text is not None else _COUNTERS.read_text(encoding="utf-8")).splitlines()[
        2:
    ]:
        name, _, numbers = line.partition(":")
        fields = numbers.split()
        if name.strip() != "lo" and len(fields) > 8:
            received += int(fields[0])
            sent += int(fields[8])
    return sent, received
