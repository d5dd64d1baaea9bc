"""One VM, as long as it lives: the SSH connection, the agent on it, and the work that the agent was
given.

A link connects (again and again, while the VM boots or its network fails), pushes the code, starts
the agent where none answers, keeps a socket to it open so that its death is seen at once, and makes
sure that the agent has the assignment that this VM should have. What the agent writes down comes
out as lines. The link decides nothing about the VM itself: it says `ready` and `lost`, and is
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
    """What a VM's agent should be doing: the assignment, and the files of the run that must be
    there before.

    `files`, by their paths in the run's folder, are asked for when they are brought. `run.json` is
    one of them. With `standby` all is got ready, and nothing begun; `ahead`: what can be while
    another run has the VM's worker.
    """

    assignment: Assignment
    files: Callable[[], Mapping[str, bytes | Path]]
    standby: bool = False
    ahead: bool = False

    def is_like(self, other: Work) -> bool:
        """Whether the agent is to do the same."""
        return replace(self, files=other.files) == other

    def command(self, runs: Sequence[str]) -> Command:
        """What the agent is told, which goes on with what it does for `runs`."""
        if self.ahead:
            return MakeReady.of(self.assignment)
        return Assign.of(self.assignment, tuple(sorted(runs)), standby=self.standby)


@dataclass(frozen=True)
class Hooks:
    """What a link tells its owner. Called in the loop, must not block."""

    ready: Callable[[str], None]
    lost: Callable[[str], None]
    agent_line: Callable[[str, AgentLine], None]
    trouble: Callable[[str, str], None]


class Link:
    """The connection to one VM. `connect` opens a connection and may raise RemoteError; `run` lives
    until cancelled.

    Without an agent, as on the VM that a controller has for itself, there is but the connection.
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
        self._held: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._heard = 0
        self._allowance = Allowance(_MOST_LINES)
        self._too_much = False
        self._refusals = RejectedLines(f"The agent on {vm}", lambda what: log.warning("%s", what))

    @property
    def answering(self) -> bool:
        """Whether the VM's agent, or what stands in for it, answers now."""
        return self._agent_answers.is_set()

    async def connection(self, run: str = "") -> Connection:
        """The live connection, waiting for it where there is none and, with `run`, for that run's
        files on the VM.
        """
        if run:
            await self._held[run].wait()
        while True:
            await self._connected.wait()
            if self._connection and not self._connection.closed.is_set():
                return self._connection
            self._connected.clear()

    def expect(self, run: str, role: Role, *, own: bool, warm: bool) -> None:
        """`assign` or `release` will follow, for this role in `run`; `own`: its model is not one of
        Tensor2Tensor's.

        With `warm` the agent has a fork server for it. That imports all that the role may need:
        where `assign` follows at once, a process that knows what it needs is faster.
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
        """Those that the agent has work of, or will have."""
        return frozenset(self._expected)

    def prepared(self, run: str) -> bool:
        """Whether the VM has all ready for `run`: the process that stands by there, or what such a
        process imports.
        """
        if run in self._work:
            return run in self._prepared
        return self._imported

    def assign(self, work: Work) -> None:
        """Have the agent do this, now and after every restart of the agent or the connection.

        It goes on with what it does for other runs, as trials that share a VM, until these are
        released.
        """
        if self._dismissed:
            return
        run = work.assignment.run
        known = self._work.get(run)
        if known is None or not known.is_like(work):
            self._work[run] = work
            self._work_changed.set()

    async def bring(self, run: str, files: Callable[[], Mapping[str, bytes | Path]]) -> Connection:
        """Have the files of a run on the VM before it is assigned. Raises RemoteError, also without
        a connection.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLostError(f"There is no connection to {self.vm} now")
        await self._bring(connection, run, files)
        return connection

    def release(self, run: str) -> None:
        """Have the agent end what it does for `run`."""
        if run in self._expected:
            del self._expected[run]
            self._work.pop(run, None)
            self._warm.discard(run)
            self._finished_runs.append(run)
            self._work_changed.set()

    async def dismiss(self) -> None:
        """Have the agent end its work, with the step in flight, and give it no other: the VM is
        about to be deleted.
        """
        self._dismissed = True
        runs = list(self._work)
        self._work = {}
        self._expected = {}
        for run in runs if self.answering else ():
            with suppress(RemoteError, TrainingError, OSError):
                await self.ask(Stop(run=run), timeout=_DISMISS_SECONDS)

    async def leave(self, *, at_once: bool) -> None:
        """Have the agent end its work, which goes on elsewhere, and give it no other; a parameter
        server's `at_once`, for its chief would say that the run has ended.

        Raises RemoteError or TrainingError where it does not say that it has: then it may go on.
        """
        self._dismissed = True
        for run in list(self._work):
            await self.ask(Stop(run=run, at_once=at_once), timeout=_DISMISS_SECONDS)
            self._work.pop(run, None)
        self._expected = {}

    def recall(self) -> None:
        """It is not deleted after all: it may be given work again."""
        self._dismissed = False

    async def ask(self, command: Command, timeout: float = 10.0) -> dict[str, Any]:
        """One command to the agent and its answer. Raises RemoteError or TrainingError (the agent
        said no).
        """
        try:
            async with asyncio.timeout(timeout):
                await self._agent_answers.wait()
                async with self._asking:
                    return await self._exchange(command)
        except TimeoutError:
            raise ConnectionLostError(f"The agent on {self.vm} does not answer") from None

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
                # Never retried in a hurry: somebody else may answer at this address.
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
        raise ConnectionLostError(f"The connection to {self.vm} was lost")

    async def _follow_agent(self) -> None:
        """Until the connection is lost, or the agent has written more than is taken from a VM: that
        is told once.
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
            _LINES, self._heard, allowance=self._allowance
        ):
            self._heard = offset
            try:
                told = from_agent(line, 0, int(now() * 1e9))
            except ValueError as error:
                self._refusals.add(line, error)
            else:
                self._hooks.agent_line(self.vm, told)

    async def _await_python(self) -> None:
        """Until the connection is lost: the VM's start-up has installed what a controller needs
        when that is there.
        """
        assert self._connection
        await _until_booted(self._connection)
        await self._connection.run("command -v transient-python")
        self._agent_answers.set()
        self._hooks.ready(self.vm)

    async def _keep_agent(self) -> None:
        """Hold a socket to the agent; when it breaks, the agent died: start another, which adopts
        what still runs.
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
            await asyncio.sleep(_FIRST_PAUSE)  # the VM may have no room for the files of the run

    async def _watch_agent(self) -> None:
        """A question every second: the quickest sign of an agent that died or hangs."""
        while True:
            await asyncio.sleep(1.0)
            if not self._asking.locked():  # a question under way has a limit of its own
                self._see(await self.ask(Ping(), timeout=15.0))

    def _see(self, told: Mapping[str, Any]) -> None:
        """What the agent says of its processes: a VM's word, which decides only when a run is
        handed over to it.
        """
        if isinstance(told.get("processes"), list):
            processes = cast("list[object]", told["processes"])
        else:
            processes = []
        self._prepared = frozenset(filter(None, map(_prepared_run, processes)))
        self._imported = told.get("imported") is True

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
                if self._work.get(run) is work:  # not released meanwhile, as a run that has ended
                    await self._tell(work.command([*self._work]))

    async def _bring(
        self, connection: Connection, run: str, files: Callable[[], Mapping[str, bytes | Path]]
    ) -> None:
        """Have the files of a run on the VM. Its run.json comes last: where that is, they all are,
        and what is written there since then must not be replaced by what an earlier controller had
        of it.
        """
        folder = layout.run_on_vm(run)
        if not self._held[run].is_set() and not await connection.exists(f"{folder}/{layout.RUN}"):
            found = dict(files())
            declaration = {layout.RUN: found.pop(layout.RUN)}
            await connection.put_files(found, below=folder)
            await connection.put_files(declaration, below=folder)
        self._held[run].set()

    async def _tell(self, command: Command) -> None:
        try:
            await self.ask(command, timeout=30.0)
        except TrainingError as error:  # as from a VM that is about to be taken away
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
        """Its process number. Where one runs already, the one that is started ends at once."""
        await _until_booted(connection)
        digest = await push_bundle(connection)
        command = (
            f'PYTHONPATH="$HOME/{layout.CODE_ON_VM}/{digest}" exec transient-python -m transient_magics.runtime.agent '
            f'--root "$HOME/{layout.ON_VM}"'
        )
        try:
            return await connection.start_detached(command, log=_LOG)
        except CommandError as error:
            raise ConnectionLostError(
                f"The agent on {self.vm} could not be started: {error}"
            ) from error

    async def _kill_agent(self) -> None:
        assert self._connection
        try:
            await self._connection.run(f'kill -9 "$(cat {_PID})"; rm -f {_SOCKET}', timeout=10)
        except CommandError as error:
            log.info("%s: %s", self.vm, error)  # it was gone already

    async def _exchange(self, command: Command) -> dict[str, Any]:
        assert self._agent
        reader, writer = self._agent
        writer.write(command.encoded)
        await writer.drain()
        line = await reader.readline()
        if not line:
            raise ConnectionLostError(f"The agent on {self.vm} closed its socket")
        try:
            answer = parsed_object(line)
        except ValueError as error:
            raise RemoteError(
                f"The agent on {self.vm} does not make sense: {error}", where=self.vm
            ) from error
        if not answer.get("ok"):
            raise TrainingError(
                clipped(str(answer.get("error", "The agent refused"))), where=self.vm
            )
        return answer


def _prepared_run(process: object) -> str:
    """The run for which a process that an agent tells of stands by with everything ready; empty for
    all else.
    """
    if not isinstance(process, dict):
        return ""
    told = cast("Mapping[str, object]", process)
    if told.get("prepared") is True:
        return str(told.get("run", ""))
    return ""


async def _lives(connection: Connection, number: int) -> bool:
    """Whether the process of this number runs on the VM."""
    try:
        await connection.run(f"kill -0 {number}", timeout=10)
    except CommandError:
        return False
    return True


async def _until_booted(connection: Connection) -> None:
    """Until the VM's start-up script has ended well: on an image that has all of it, the script
    still looks at the GPU.

    An emulated VM, which is told where its metadata are, has no such script.
    """
    while True:
        try:
            await connection.run(f'[ -n "${{GCE_METADATA_HOST:-}}" ] || [ -e {BOOTED} ]')
        except CommandError:
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return


async def _until_one_fails(*work: Coroutine[Any, Any, None]) -> None:
    """All of it at once. Raises the error of the one that fails, after the others have ended.

    Not by a task group, which forgets that it was cancelled when a task of it fails at that moment:
    the link of a VM that goes is cancelled while its connection breaks.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error
