"""Link to one VM for its lifetime: the SSH connection, the agent, and the agent's work.

A link connects, and reconnects while the VM boots or its network fails. It pushes the code, starts
an agent where none answers, and keeps a socket open so that an agent's death is noticed
immediately. It makes sure that the agent has the assignments of this VM. What the agent writes
arrives as lines. The link makes no decisions about the VM: it reports `ready` and `lost`, and is
cancelled when the VM is gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ...errors import (
    CommandError,
    ConnectionLostError,
    ForeignError,
    HostKeyError,
    RemoteError,
    TrainingError,
)
from ...journal import now
from ...protocol import layout
from ...protocol.agent_commands import (
    Assign,
    Assignment,
    Command,
    MakeReady,
    Ping,
    Role,
    Stop,
    Warm,
)
from ...protocol.checks import clipped, parsed_object
from ...protocol.vm_events import AgentLine, from_agent
from ...remote import Allowance, Connection, Reader, Writer, push_bundle
from ..trust import RejectedLines
from .startup import BOOTED

log = logging.getLogger(__name__)

_SOCKET = f"{layout.ON_VM}/{layout.AGENT_SOCKET}"
_LINES = f"{layout.ON_VM}/{layout.AGENT_LINES}"
_LOG = f"{layout.ON_VM}/{layout.AGENT_LOG}"
_PID = f"{layout.ON_VM}/{layout.AGENT_PID}"
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_AGENT_START_SECONDS = 30.0
_AGENT_ANSWER_SECONDS = 15.0
_DISMISS_SECONDS = 10.0
_LOOK_SECONDS = 2.0
_LOOKS_A_SECOND = 10
_MOST_LINES = 64 * 2**20  # bytes


@dataclass(frozen=True)
class Work:
    """Work of a VM's agent: the assignment, and the files of the run that it needs first.

    `files` returns the files by their paths in the run's folder, and is called when they are sent.
    `run.json` is one of them. With `standby` the agent prepares everything and starts nothing. With
    `ahead` it prepares what it can while another run has the VM's worker.
    """

    assignment: Assignment
    files: Callable[[], Mapping[str, bytes | Path]]
    standby: bool = False
    ahead: bool = False

    def is_like(self, other: Work) -> bool:
        """Return whether the agent has the same work to do."""
        return replace(self, files=other.files) == other

    def command(self, runs: Sequence[str]) -> Command:
        """Return the command for the agent, which continues its work for `runs`."""
        if self.ahead:
            return MakeReady.of(self.assignment)
        return Assign.of(self.assignment, tuple(sorted(runs)), standby=self.standby)


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a link to its owner. They run in the event loop and must not block."""

    ready: Callable[[str], None]
    lost: Callable[[str], None]
    agent_line: Callable[[str, AgentLine], None]
    trouble: Callable[[str, str], None]


class Link:
    """Connection to one VM.

    `connect` opens a connection and may raise RemoteError. `run` lives until cancelled. With
    `agent=False`, as on the VM of a remote controller, the link is only a connection.
    """

    def __init__(
        self,
        vm: str,
        connect: Callable[[], Awaitable[Connection]],
        hooks: Hooks,
        *,
        agent: bool = True,
    ) -> None:
        self.vm = vm
        self._has_agent = agent
        self._connect = connect
        self._hooks = hooks
        self._connection: Connection | None = None
        self._connected = asyncio.Event()
        self._agent: tuple[Reader, Writer] | None = None
        self._agent_answers = asyncio.Event()
        self._asking = asyncio.Lock()
        self._expected: dict[str, tuple[Role, bool]] = {}
        self._warm: set[str] = set()
        self._work: dict[str, Work] = {}
        self._finished_runs: list[str] = []
        self._prepared: frozenset[str] = frozenset()
        self._imported = False
        self._dismissed = False
        self._work_changed = asyncio.Event()
        self._has_files: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._read_to = 0
        self._allowance = Allowance(_MOST_LINES)
        self._too_much = False
        self._refusals = RejectedLines(f"The agent on {vm}", lambda what: log.warning("%s", what))

    @property
    def answering(self) -> bool:
        """Whether the VM answers now: its agent or, without an agent, its installed Python."""
        return self._agent_answers.is_set()

    async def connection(self, run: str = "") -> Connection:
        """Return the live connection; wait for it if necessary.

        With `run`, also wait until that run's files are on the VM.
        """
        if run:
            await self._has_files[run].wait()
        while True:
            await self._connected.wait()
            if self._connection and not self._connection.closed.is_set():
                return self._connection
            self._connected.clear()

    def expect(self, run: str, role: Role, *, own: bool, warm: bool) -> None:
        """Announce that `assign` or `release` will follow for this role in `run`.

        `own` marks a model that is not from Tensor2Tensor. With `warm` the agent starts a fork
        server for the role. The fork server imports everything that the role may need, so a process
        that knows what it needs starts faster if `assign` follows immediately.
        """
        if warm:
            self._warm.add(run)
        else:
            self._warm.discard(run)
        if self._expected.get(run) != (role, own) and not self._dismissed:
            self._expected[run] = role, own
            self._work_changed.set()

    @property
    def runs(self) -> frozenset[str]:
        """Runs that the agent has work for, or will have."""
        return frozenset(self._expected)

    def prepared(self, run: str) -> bool:
        """Return whether the VM has everything ready for `run`.

        That is a process on standby, or before `assign` the modules that such a process imports.
        """
        if run in self._work:
            return run in self._prepared
        return self._imported

    def assign(self, work: Work) -> None:
        """Assign work to the agent, now and after every restart of the agent or the connection.

        The agent continues its work for other runs, such as trials that share a VM, until they are
        released.
        """
        if self._dismissed:
            return
        run = work.assignment.run
        present = self._work.get(run)
        if present is None or not present.is_like(work):
            self._work[run] = work
            self._work_changed.set()

    async def bring(self, run: str, files: Callable[[], Mapping[str, bytes | Path]]) -> Connection:
        """Send the files of a run to the VM before it is assigned.

        Raises
        ------
        RemoteError
            There is no connection, or it failed.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLostError(f"{self.vm} is not connected; the controller reconnects")
        await self._bring(connection, run, files)
        return connection

    def release(self, run: str) -> None:
        """Make the agent end its work for `run`."""
        if run in self._expected:
            del self._expected[run]
            self._work.pop(run, None)
            self._warm.discard(run)
            self._finished_runs.append(run)
            self._work_changed.set()

    async def dismiss(self) -> None:
        """Make the agent end its work, including the current step, and assign no more.

        The VM is about to be deleted.
        """
        self._dismissed = True
        runs = list(self._work)
        self._work = {}
        self._expected = {}
        for run in runs if self.answering else ():
            with suppress(RemoteError, TrainingError, OSError):
                await self.ask(Stop(run=run), timeout=_DISMISS_SECONDS)

    async def stop_work(self, *, at_once: bool) -> None:
        """Make the agent end work that continues on another VM, and assign no more.

        Parameter servers end with `at_once`, because their chief would otherwise report that the
        run has ended.

        Raises
        ------
        RemoteError, TrainingError
            The agent did not confirm the end, so its work may still run.
        """
        self._dismissed = True
        for run in list(self._work):
            await self.ask(Stop(run=run, at_once=at_once), timeout=_DISMISS_SECONDS)
            self._work.pop(run, None)
        self._expected = {}

    def allow_work(self) -> None:
        """Allow new assignments again, because the VM is not deleted after all."""
        self._dismissed = False

    async def ask(self, command: Command, timeout: float = 10.0) -> dict[str, Any]:
        """Send one command to the agent and return its answer.

        Raises
        ------
        RemoteError
            The agent does not answer.
        TrainingError
            The agent refused.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._agent_answers.wait()
                async with self._asking:
                    return await self._exchange(command)
        except TimeoutError:
            raise ConnectionLostError(
                f"The agent on {self.vm} did not answer within {timeout:g} s"
            ) from None

    async def run(self) -> None:
        """Keep the VM connected until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                async with self._open_connection():
                    if self._has_agent:
                        duties = [self._follow_agent(), self._keep_agent()]
                    else:
                        duties = [self._await_python()]
                    await _until_one_fails(self._until_closed(), *duties)
            except HostKeyError as error:
                # Retry slowly: another machine may answer at this address.
                self._hooks.trouble(self.vm, str(error))
                pause = _LONGEST_PAUSE
            except (RemoteError, OSError) as error:
                log.info("%s: %s", self.vm, error)
                self._hooks.lost(self.vm)
            if time.monotonic() - began > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            else:
                pause = min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _open_connection(self) -> AsyncGenerator[None]:
        connection = await self._connect()
        self._connection = connection
        self._connected.set()
        try:
            if self._has_agent:
                await push_bundle(connection)
            yield
        finally:
            self._connected.clear()
            self._agent_answers.clear()
            self._connection = None
            await connection.close()

    async def _until_closed(self) -> None:
        assert self._connection
        await self._connection.closed.wait()
        raise ConnectionLostError(
            f"The connection to {self.vm} was lost; the controller reconnects"
        )

    async def _follow_agent(self) -> None:
        """Follow the agent's lines until the connection is lost.

        If the agent writes more than the limit, stop and report that once.
        """
        if self._too_much:
            return
        try:
            await self._hear_agent()
        except ForeignError as error:
            self._too_much = True
            self._hooks.trouble(self.vm, str(error))

    async def _hear_agent(self) -> None:
        assert self._connection
        async for offset, line in self._connection.follow(
            _LINES, self._read_to, allowance=self._allowance
        ):
            self._read_to = offset
            try:
                line_event = from_agent(line, 0, int(now() * 1e9))
            except ValueError as error:
                self._refusals.add(line, error)
            else:
                self._hooks.agent_line(self.vm, line_event)

    async def _await_python(self) -> None:
        """Wait until start-up has installed Python for the controller, and report `ready`."""
        assert self._connection
        await _until_booted(self._connection)
        await self._connection.run("command -v transient-python")
        self._agent_answers.set()
        self._hooks.ready(self.vm)

    async def _keep_agent(self) -> None:
        """Keep a socket to the agent open, and replace an agent that died or hangs.

        A broken socket means that the agent died. The new agent adopts the processes that still
        run.
        """
        while True:
            reader, writer = await self._reach_agent()
            self._agent = (reader, writer)
            try:
                async with asyncio.timeout(_AGENT_ANSWER_SECONDS):
                    self._see(await self._exchange(Ping()))
            except (TimeoutError, RemoteError) as error:
                log.warning("%s: the agent hangs (%s); another one takes its place", self.vm, error)
                writer.close()
                await self._kill_agent()
                continue
            self._agent_answers.set()
            self._work_changed.set()
            self._hooks.ready(self.vm)
            try:
                await _until_one_fails(self._enforce_work(), self._watch_agent())
            except (RemoteError, OSError) as error:
                log.info("%s: the agent went away: %s", self.vm, error)
            finally:
                self._agent_answers.clear()
                writer.close()
            # The VM may have no disk space for the files of the run.
            await asyncio.sleep(_FIRST_PAUSE)

    async def _watch_agent(self) -> None:
        """Ping the agent every second, the quickest way to detect one that died or hangs."""
        while True:
            await asyncio.sleep(1.0)
            # A request in flight has its own timeout.
            if not self._asking.locked():
                self._see(await self.ask(Ping(), timeout=15.0))

    def _see(self, status: Mapping[str, Any]) -> None:
        """Store what the agent reports about its processes.

        The report comes from a VM and is not trusted: it only decides when a run is handed over to
        it.
        """
        if isinstance(status.get("processes"), list):
            processes = cast("list[object]", status["processes"])
        else:
            processes = []
        self._prepared = frozenset(filter(None, map(_prepared_run, processes)))
        self._imported = status.get("imported") is True

    async def _enforce_work(self) -> None:
        while True:
            await self._work_changed.wait()
            self._work_changed.clear()
            while self._finished_runs:
                await self._tell(Stop(run=self._finished_runs[0]))
                self._finished_runs.pop(0)
            for run, (role, own) in list(self._expected.items()):
                if run in self._warm:
                    await self._tell(Warm(run=run, role=role, name=self.vm, own=own))
            for run, work in list(self._work.items()):
                assert self._connection
                await self._bring(self._connection, run, work.files)
                # The run may have ended and been released in the meantime.
                if self._work.get(run) is work:
                    await self._tell(work.command([*self._work]))

    async def _bring(
        self, connection: Connection, run: str, files: Callable[[], Mapping[str, bytes | Path]]
    ) -> None:
        """Send the files of a run to the VM, unless they are there.

        `run.json` comes last, so its presence means that all files are there. Files that were
        written on the VM since then must not be replaced by older copies of an earlier controller.
        """
        folder = layout.run_on_vm(run)
        if not self._has_files[run].is_set() and not await connection.exists(
            f"{folder}/{layout.RUN}"
        ):
            found = dict(files())
            declaration = {layout.RUN: found.pop(layout.RUN)}
            await connection.put_files(found, below=folder)
            await connection.put_files(declaration, below=folder)
        self._has_files[run].set()

    async def _tell(self, command: Command) -> None:
        try:
            await self.ask(command, timeout=30.0)
        except TrainingError as error:
            # For example from a VM that is about to be preempted.
            log.warning("%s: %s", self.vm, error)

    async def _reach_agent(self) -> tuple[Reader, Writer]:
        assert self._connection
        try:
            return await self._connection.open_socket(_SOCKET)
        except (RemoteError, OSError):
            number = await self._start_agent(self._connection)
        async with asyncio.timeout(_AGENT_START_SECONDS):
            while True:
                while await _lives(self._connection, number):
                    for _ in range(_LOOKS_A_SECOND):
                        with suppress(RemoteError, OSError):
                            return await self._connection.open_socket(_SOCKET)
                        await asyncio.sleep(1 / _LOOKS_A_SECOND)
                await asyncio.sleep(1 / _LOOKS_A_SECOND)
                number = await self._start_agent(self._connection)

    async def _start_agent(self, connection: Connection) -> int:
        """Start an agent and return its process id. It ends immediately if another one runs."""
        await _until_booted(connection)
        digest = await push_bundle(connection)
        command = (
            f'PYTHONPATH="$HOME/{layout.CODE_ON_VM}/{digest}" exec transient-python -m '
            f'transient_magics.runtime.agent --root "$HOME/{layout.ON_VM}"'
        )
        try:
            return await connection.start_detached(command, log=_LOG)
        except CommandError as error:
            raise ConnectionLostError(
                f"The agent on {self.vm} could not be started, and is started again: {error}"
            ) from error

    async def _kill_agent(self) -> None:
        assert self._connection
        try:
            await self._connection.run(f'kill -9 "$(cat {_PID})"; rm -f {_SOCKET}', timeout=10)
        except CommandError as error:
            # The process ended before the signal.
            log.info("%s: %s", self.vm, error)

    async def _exchange(self, command: Command) -> dict[str, Any]:
        assert self._agent
        reader, writer = self._agent
        writer.write(command.encoded)
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ConnectionLostError(
                f"The agent on {self.vm} closed its socket before it answered"
            )
        try:
            answer = parsed_object(line)
        except ValueError as error:
            raise RemoteError(
                f"The agent on {self.vm} sent an invalid answer: {error}", where=self.vm
            ) from error
        if not answer.get("ok"):
            raise TrainingError(
                clipped(str(answer.get("error", "The agent refused the command"))), where=self.vm
            )
        return answer


def _prepared_run(process: object) -> str:
    """Return the run for which an agent's process is on standby with everything ready, or ""."""
    if not isinstance(process, dict):
        return ""
    status = cast("Mapping[str, object]", process)
    if status.get("prepared") is True:
        return str(status.get("run", ""))
    return ""


async def _lives(connection: Connection, number: int) -> bool:
    """Return whether a process with this id runs on the VM."""
    try:
        await connection.run(f"kill -0 {number}", timeout=10)
    except CommandError:
        return False
    return True


async def _until_booted(connection: Connection) -> None:
    """Wait until the VM's start-up script has succeeded.

    The script checks the GPU even on an image with everything installed. An emulated VM, which has
    the address of its metadata in an environment variable, has no such script.
    """
    while True:
        try:
            await connection.run(f'[ -n "${{GCE_METADATA_HOST:-}}" ] || [ -e {BOOTED} ]')
        except CommandError:
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return


async def _until_one_fails(*work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutines concurrently until one fails, end the others, and raise its error.

    A task group would not do: it loses a cancellation that arrives while one of its tasks fails.
    The link of a deleted VM is cancelled while its connection breaks.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error
