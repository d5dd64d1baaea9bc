"""Local proxy of a cluster whose controller runs on a VM: follow its journal, forward commands.

Readers of the local journal and clients of the local socket work as they do beside a local
controller. The proxy makes no decisions about VMs, so its death costs nothing. It keeps an exact
copy of the journal from the first byte, and only the controller in charge adds to it. If the VM
lost the end of its journal, what it writes now replaces the local copy from there, and the replaced
end is kept in `LOST`. One exception: when Compute Engine reports that the controller's VM is gone,
no controller is in charge, and the machine that declared the cluster takes it back.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import (
    ConnectionLostError,
    ControllerError,
    GoneError,
    JournalError,
    RemoteError,
    RoomError,
    TransientError,
    checked_answer,
    reason_of,
)
from ...journal import (
    ClusterState,
    Event,
    Journal,
    VmState,
    decode,
    decode_lines,
    events,
    fold,
    now,
    read,
    replay,
)
from ...journal.declared import ATTACHED, agree, agreed, note_asked, resized, waiting
from ...journal.store import name_twice, restore
from ...kinds import KINDS, find
from ...protocol import jsonl, layout
from ...protocol.cluster_commands import Command, Declare, Delete, ExtendStudy, Move, Ping, Resize
from ...remote import Allowance, Connection
from ...runtime.files.manifest import split
from ...spec import ClusterSpec, cluster_store
from ..commands import serve
from ..host import command_socket
from ..tasks import Tasks
from ..vms.access import Access
from ..vms.machines import instance_name, labels
from . import attach
from .bucket_backup import BucketBackup
from .install import RemoteInstall
from .result_sync import ResultSync

log = logging.getLogger(__name__)

LOST = "journal.lost.jsonl"
"""End of a journal that only this machine had."""
TO_END = "to-end"
"""File with the reason of a requested deletion that could not be sent to the controller."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_GONE = ("STOPPED", "TERMINATED", "SUSPENDED")
_MOST_JOURNAL = 256 * 2**20  # bytes
_NOT_FROM_A_VM = (events.ControllerMoved, events.ClusterDeleted, events.ClusterTakenBack)
"""Events that only the machine that asked Compute Engine writes.

A controller does not outlive its own VM, so it cannot report that another one is in charge or that
no VM is left.
"""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
# Retry after this time, which asks Compute Engine again whether the VM still exists.
_CONNECT_SECONDS = 20.0
_LOOK_SECONDS = 10.0
_PATIENCE = 120.0
_ANSWER_SECONDS = 20.0
_ROOM_SECONDS = 2.0


class ControllerProxy:
    """Proxy of the cluster in `directory`, whose lock the caller holds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = directory / layout.JOURNAL
        history = read(self._journal)
        self.state: ClusterState = replay(history)
        # Local changes agreed since the journal was written on another machine also count.
        self._spec = agreed(directory, history)
        self._home = ResultSync(directory, self._spec, self)
        self._vm = _seat(history)
        self._access = Access(self._spec)
        self._there: tuple[Connection, RemoteInstall] | None = None
        self._connected = asyncio.Event()
        self._to_end = _read(directory / TO_END)
        self._trouble = ""
        self._trouble_there = ""
        self._silent_since = 0.0
        self._no_room: dict[str, str] = {}
        """Reasons why data cannot be written on this machine, one sentence for each task."""
        self._parted = ""
        """Sentence that the VM lost the end of its journal; empty otherwise."""
        self._tasks: Tasks | None = None

    async def run(self) -> None:
        """Follow the controller until its VM is gone.

        The journal then says that this machine is in charge of the cluster again.
        """
        async with serve(command_socket(self._directory), self._command), self._access:
            pause = _FIRST_PAUSE
            while self._directory.exists():
                began = time.monotonic()
                try:
                    await self._access.reopen()
                    if not await self._is_vacant():
                        await self._follow()
                    elif await self._go_on():
                        return
                except* (TransientError, OSError) as group:
                    self._trouble = (
                        f"The controller on {self._vm.name} cannot be reached: "
                        f"{group.exceptions[0]}"
                    )
                    self._silent_since = self._silent_since or time.monotonic()
                    log.warning("%s", self._trouble)
                if time.monotonic() - began > _LONGEST_PAUSE:
                    pause = _FIRST_PAUSE
                else:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                await asyncio.sleep(pause)

    @property
    def _known_trouble(self) -> str:
        no_room = next(iter(self._no_room.values()), "")
        return self._trouble or no_room or self._trouble_there or self.state.trouble or self._parted

    # Takeover when no controller is in charge

    async def _is_vacant(self) -> bool:
        """Return whether no controller is in charge.

        Compute Engine has to report that the VM is gone. Missing answers from the VM do not count.
        """
        name = instance_name(self._spec, self._vm.name)
        vm = await self._access.engine.get(self._vm.zone, name)
        if vm is None or vm.id != self._vm.vm_id or vm.status in _GONE:
            return True
        if self._silent_since:
            silent = time.monotonic() - self._silent_since
        else:
            silent = 0.0
        # A requested end does not wait for a controller that cannot be reached.
        if self._to_end and silent > _PATIENCE:
            await self._access.engine.delete(self._vm.zone, name, labels(self._spec))
            return True
        if vm.status == "STOPPING":
            raise ConnectionLostError(f"{self._vm.name} is being stopped")
        return False

    async def _go_on(self) -> bool:
        """Put a controller in charge again, and return whether it is this machine.

        If no other VM of the cluster is left, the cluster was ended, whatever the local journal
        says: a controller deletes its own VM last. Otherwise only the machine that declared the
        cluster takes it back, so there are never two controllers.

        Raises
        ------
        ControllerError
            Another machine has to take the cluster back and has not done so yet.
        """
        await self._complete_journal()
        await self._complete_work()
        gone = instance_name(self._spec, self._vm.name)
        zones = {*self._spec.all_zones, *(vm.zone for vm in self.state.vms.values())}
        found = await self._access.engine.list(labels(self._spec), within=zones)
        left = [vm for vm in found if vm.name != gone]
        if left and (self._directory / ATTACHED).exists():
            await self._follow_another()
            return False
        reason = self._to_end or (
            "" if left else f"{self._vm.name}, on which its controller ran, was its last VM"
        )
        with Journal(self._journal) as journal:
            journal.append(events.ControllerMoved(vm=""))
            if reason and self.state.phase != "deleting":
                journal.append(events.ClusterDeleting(reason=reason))
            journal.sync()
        return True

    async def _follow_another(self) -> None:
        """Follow the controller on the VM that replaced the one that is gone."""
        name = self._spec.name
        project = self._spec.project
        found = await attach.find(self._access, name)
        if not found or found[-1].name == instance_name(self._spec, self._vm.name):
            what = (
                f"{self._vm.name}, on which the controller ran, is gone. Only the machine that "
                "declared the cluster can take it back"
            )
            raise ControllerError(
                what, fix="To end the cluster from here: `transient cluster sweep --all-machines`."
            )
        seat = await attach.the_seat(self._access, name, project)
        with tempfile.TemporaryDirectory(dir=self._directory) as fresh:
            await attach.copy(self._access, seat, self._directory / layout.KEY, Path(fresh))
            attach.fitting(Path(fresh), seat, name, project)
            state = replay(read(Path(fresh) / layout.JOURNAL))
            if state.seat not in state.vms:
                raise ControllerError(
                    f"{seat.name} does not run the controller of {name}",
                    fix="Try again in a moment.",
                )
            (Path(fresh) / layout.JOURNAL).replace(self._journal)
            name_twice(self._journal)
        self.state = state
        self._vm = replace(state.vms[state.seat], vm_id=str(seat.id))

    async def _complete_journal(self) -> None:
        """Add what the controller wrote after the connection was lost, from the bucket."""
        store = cluster_store(self._spec)
        if not store or not self._access.storage:
            return
        jsonl.cut_torn_line(self._journal)
        bucket, path = split(store)
        name = f"{path}{layout.JOURNAL}"
        whole = self._journal.with_name(f".{layout.JOURNAL}.whole")
        try:
            there = await self._access.storage.list(bucket, name, most=1)
            if not there or there[0].name != name or there[0].size > _MOST_JOURNAL:
                return
            await self._access.storage.download(bucket, name, whole, generation=there[0].generation)
        except GoneError:
            return
        ours = self._journal.read_bytes()
        theirs = whole.read_bytes()
        if theirs.startswith(ours) and not any(map(_is_forged, theirs[len(ours) :].splitlines())):
            whole.replace(self._journal)
            name_twice(self._journal)
            self.state = replay(read(self._journal))
        whole.unlink(missing_ok=True)

    async def _complete_work(self) -> None:
        """Bring the results of jobs and bags on the lost VM, as far as they are in the bucket."""
        store = cluster_store(self._spec)
        if store and self._access.storage:
            await self._home.bring_all(BucketBackup(self._access.storage, store))

    # Connection to the controller in charge

    async def _follow(self) -> None:
        """Follow the controller for the lifetime of one connection to its VM."""
        async with await self._access.connect(
            self._vm, self._directory / layout.KEY, timeout=_CONNECT_SECONDS
        ) as connection:
            seat = RemoteInstall(connection, self._spec, self._vm.name)
            await seat.furnish(self._directory)
            self._there = (connection, seat)
            self._trouble = ""
            self._silent_since = 0.0
            self._connected.set()
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = Tasks(
                        group, lambda: None, lambda key, what: log.warning("%s: %s", key, what)
                    )
                    self._tasks = tasks
                    tasks.do("controller", lambda: self._look_after(seat))
                    following = group.create_task(
                        self._with_room("journal", lambda: self._follow_journal(connection))
                    )
                    self._home.catch_up()
                    await connection.closed.wait()
                    following.cancel()
                    tasks.cancel_all()
            finally:
                self._tasks = None
                self._connected.clear()

    async def _look_after(self, seat: RemoteInstall) -> None:
        """Keep the controller running and send it pending requests, until cancelled."""
        while True:
            try:
                self._trouble_there = await seat.start()
                if self._to_end:
                    checked_answer(await seat.ask(Delete(reason=self._to_end)))
                for command in self._unheard():
                    await self._bring_declared(seat, command)
                    checked_answer(await seat.ask(command))
            except (TransientError, OSError) as error:
                log.warning("%s", error)
            await asyncio.sleep(_LOOK_SECONDS)

    def _unheard(self) -> list[Declare]:
        """Return commands for declared work that has not reached a controller yet."""
        return [
            Declare(kind=kind.name, name=name)
            for kind in KINDS.values()
            if kind.waits
            for name in waiting(self._directory, self.state, kind.name)
        ]

    async def _bring_declared(self, seat: RemoteInstall, command: Command) -> None:
        """Copy the folder of the work that the command declares, if any."""
        if not isinstance(command, Declare):
            return
        if part := find(command.kind, "artifacts"):
            part.SYNC.before_sending(self._directory, self._spec, command.name)
        await seat.bring(self._directory, command.kind, command.name)

    async def live(self) -> Connection:
        """Return the live connection; wait for it if necessary."""
        await self._connected.wait()
        assert self._there
        return self._there[0]

    async def _command(self, command: Command) -> dict[str, Any]:
        if isinstance(command, Ping):
            return {"pid": os.getpid(), "trouble": self._known_trouble}
        new = self._spec
        if isinstance(command, ExtendStudy | Move):
            note_asked(self._directory, command)
        # Forward only a resize that this machine would accept, too.
        if isinstance(command, Resize):
            new = resized(self._spec, ClusterSpec.from_dict(command.spec), self.state, now())
            command = Resize(spec=new.to_dict(), give_up=command.give_up)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._pass_on(command)
        except TimeoutError:
            if isinstance(command, Delete):
                self._to_end = command.reason
                # A later proxy reads it, too.
                (self._directory / TO_END).write_text(self._to_end, encoding="utf-8")
                return {}
            what = f"{self._vm.name}, on which the controller runs, does not answer"
            raise ControllerError(
                what, fix="The cluster continues; try again in a moment."
            ) from None
        answer = checked_answer(answer)
        if isinstance(command, Resize):
            self._spec = new
            agree(self._directory, self._spec)
        return answer

    async def _pass_on(self, command: Command) -> dict[str, Any]:
        """Return the controller's answer; wait for a controller that is starting."""
        while True:
            await self.live()
            assert self._there
            try:
                await self._bring_declared(self._there[1], command)
                return await self._there[1].ask(command)
            except RemoteError as error:
                log.info("%s", error)
                await asyncio.sleep(_FIRST_PAUSE)

    # Writing on this machine

    def do(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start the work unless it is in flight; retry it while this machine has no disk space."""
        if self._tasks:
            self._tasks.do(what, lambda: self._with_room(what, work))

    async def _with_room(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work, and retry it while there is no disk space for its output.

        Commands are still forwarded during the retries.
        """
        try:
            while True:
                try:
                    return await work()
                except (OSError, RoomError) as error:
                    if isinstance(error, OSError) and error.errno not in _NO_ROOM:
                        raise
                    why = reason_of(error)
                    self._no_room[what] = f"The {what} cannot be copied to this machine: {why}"
                    log.warning("%s", self._no_room[what])
                await asyncio.sleep(_ROOM_SECONDS)
        finally:
            self._no_room.pop(what, None)

    def cancel(self, what: str) -> None:
        """Cancel the work of this name."""
        if self._tasks:
            self._tasks.cancel(what)

    def append(self, what: str, path: Path, lines: bytes) -> None:
        """Append lines to a local file, and clear the report of missing disk space for `what`."""
        jsonl.append_lines(path, lines)
        self._no_room.pop(what, None)

    async def _follow_journal(self, connection: Connection) -> None:
        """Follow the journal from the last local line, or from the start if the copies differ.

        The last local line is read again to check that the VM still has the same one.
        """
        restore(self._journal)
        jsonl.cut_torn_line(self._journal)
        there = f"{RemoteInstall.folder(self.state.name)}/{layout.JOURNAL}"
        content = self._journal.read_bytes()
        start = content.rfind(b"\n", 0, max(len(content) - 1, 0)) + 1
        while True:
            whole = start == 0
            async with aclosing(
                connection.follow(there, start, allowance=Allowance(_MOST_JOURNAL, start))
            ) as lines:
                async for offset, line in lines:
                    # A file that became shorter is read from its first line.
                    whole = whole or offset == len(line) + 1
                    if not whole and self._differs(offset, line):
                        break
                    self._copy(offset, line)
            start = 0

    def _differs(self, offset: int, line: bytes) -> bool:
        """Return whether the local copy has different content at the position of this line."""
        begin = offset - len(line) - 1
        with self._journal.open("rb") as file:
            file.seek(begin)
            ours = file.read(len(line) + 1)
        # Lines that this machine wrote before it passed the journal to the VM are forged only where
        # another machine writes them.
        return bool(ours) and ours not in (line + b"\n", _as_copied(line) + b"\n")

    def _part(self, begin: int) -> None:
        """Cut the local copy at byte `begin`, where it stops matching the VM's journal.

        The cut end is kept in `LOST`.
        """
        content = self._journal.read_bytes()
        state = replay(decode_lines(content[:begin])[0])
        # A VM cannot replace what this machine wrote before it passed the cluster on.
        if state.seat != self._vm.name:
            raise JournalError(
                f"The journal on {self._vm.name} differs from its copy on this machine",
                where=str(begin),
            )
        kept = self._journal.with_name(LOST)
        common = self._journal.with_name(f".{layout.JOURNAL}.common")
        for path, lines in ((kept, content[begin:]), (common, content[:begin])):
            path.unlink(missing_ok=True)
            jsonl.append_lines(path, lines)
        # A new file, so its readers start again at its first line.
        common.replace(self._journal)
        name_twice(self._journal)
        self.state = state
        self._parted = (
            f"The journal on {self._vm.name} has lost its end, and the cluster continues from the "
            f"rest. The lost lines, which only this machine has, are in {kept}"
        )
        log.warning("%s", self._parted)

    def _copy(self, offset: int, line: bytes) -> None:
        begin = offset - len(line) - 1
        size = self._journal.stat().st_size
        if begin < size:
            if not self._differs(offset, line):
                return
            self._part(begin)
        elif begin > size:
            # The VM skipped a line that is too long. Here a blank of the same length replaces it.
            os.truncate(self._journal, begin - 1)
            jsonl.append_lines(self._journal, b"\n")
        if _is_forged(line):
            log.warning(
                "%s sent an event that only Compute Engine's answer can cause: %s",
                self._vm.name,
                line[:80],
            )
            line = _as_copied(line)
        self.append("journal", self._journal, line + b"\n")
        try:
            event = decode(line)
            self.state = fold(self.state, event)
        except JournalError as error:
            # Readers skip the line, as they skip one torn by a crash.
            log.warning("%s", error)
            return
        self._home.react(event)


def _seat(history: Sequence[Event]) -> VmState:
    """Return the controller's VM as recorded when the controller moved to it.

    The controller itself writes what the journal says about its VM since then. With the id in this
    record, this machine asks Compute Engine whether the VM still exists.
    """
    moves = [
        place
        for place, event in enumerate(history)
        if isinstance(event, events.ControllerMoved) and event.vm
    ]
    state = replay(history[: moves[-1] + 1])
    return state.vms[state.seat]


def _read(path: Path) -> str:
    if path.exists():
        return path.read_text(encoding="utf-8")
    return ""


def _as_copied(line: bytes) -> bytes:
    """Return the line as stored in the local copy: blanks if it is forged."""
    if _is_forged(line):
        return b" " * len(line)
    return line


def _is_forged(line: bytes) -> bool:
    """Return whether the line is an event that no controller on a VM writes."""
    try:
        return isinstance(decode(line), _NOT_FROM_A_VM)
    except JournalError:
        return False
