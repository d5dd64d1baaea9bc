"""The local end of a cluster whose controller runs on a VM of its own: its journal followed, its
commands passed on.

Everything that reads the local journal or writes to the local socket finds here what it finds
beside a controller. A mirror decides nothing about VMs, and its death costs nobody anything. Of the
journal it keeps an exact copy from the first byte on; nobody but the controller in charge adds to
it. Where the VM has lost the end of its journal, what it writes now replaces ours from there on,
and ours is kept beside it. There is one exception: when Compute Engine says that the controller's
VM runs no more, nobody is in charge, and the cluster is taken back by the machine that declared it.
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
"""The end of a journal that only this machine had."""
TO_END = "to-end"
"""Why the cluster is to end, where its controller could not be told: this machine has said that it
will.
"""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_GONE = ("STOPPED", "TERMINATED", "SUSPENDED")
_MOST_JOURNAL = 256 * 2**20  # bytes
_NOT_FROM_A_VM = (events.ControllerMoved, events.ClusterDeleted, events.ClusterTakenBack)
"""Who is in charge and that nothing is left, the machine writes that asked Compute Engine: a
controller does not outlive its own VM.
"""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
_CONNECT_SECONDS = 20.0  # then Compute Engine is asked again whether the VM is there
_LOOK_SECONDS = 10.0
_PATIENCE = 120.0
_ANSWER_SECONDS = 20.0
_ROOM_SECONDS = 2.0


class ControllerProxy:
    """Follows the cluster in `directory`, whose lock the caller holds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = directory / layout.JOURNAL
        history = read(self._journal)
        self.state: ClusterState = replay(history)
        self._spec = agreed(
            directory, history
        )  # whatever the journal says of it since it was written elsewhere
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
        """What cannot be written here now, and why, in one sentence."""
        self._parted = ""
        """That the VM has lost the end of its journal, in one sentence."""
        self._tasks: Tasks | None = None

    async def run(self) -> None:
        """Follow until the controller's VM is gone; the journal says then that the cluster is this
        machine's again.
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
                    self._trouble = f"The controller on {self._vm.name} cannot be reached: {group.exceptions[0]}"
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

    # When nobody is there

    async def _is_vacant(self) -> bool:
        """Whether nobody is in charge: Compute Engine has to say that the VM is gone, silence alone
        means nothing.
        """
        name = instance_name(self._spec, self._vm.name)
        vm = await self._access.engine.get(self._vm.zone, name)
        if vm is None or vm.id != self._vm.vm_id or vm.status in _GONE:
            return True
        if self._silent_since:
            silent = time.monotonic() - self._silent_since
        else:
            silent = 0.0
        if (
            self._to_end and silent > _PATIENCE
        ):  # the end does not wait for a controller that does not hear of it
            await self._access.engine.delete(self._vm.zone, name, labels(self._spec))
            return True
        if vm.status == "STOPPING":
            raise ConnectionLostError(f"{self._vm.name} is about to go")
        return False

    async def _go_on(self) -> bool:
        """Have somebody in charge again, and say whether that is this machine.

        ControllerError where it is up to another machine and has not happened yet.

        Where no VM of the cluster is left it was ended, whatever our copy of the journal says: a
        controller deletes its own VM last. Else the machine that declared the cluster takes it
        back, and only that: there are never two.
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
        """Follow the controller on the VM that has taken the place of the one that is gone."""
        name = self._spec.name
        project = self._spec.project
        found = await attach.find(self._access, name)
        if not found or found[-1].name == instance_name(self._spec, self._vm.name):
            what = "It is gone, and the machine that declared the cluster has to take it back"
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
                    f"{seat.name} does not say that it is in charge of {name}", fix="Try again."
                )
            (Path(fresh) / layout.JOURNAL).replace(self._journal)
            name_twice(self._journal)
        self.state = state
        self._vm = replace(state.vms[state.seat], vm_id=str(seat.id))

    async def _complete_journal(self) -> None:
        """What the controller wrote while nobody followed it, from the cluster's bucket."""
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
        """What jobs and bags left on the VM that is gone, as far as it is in the bucket."""
        store = cluster_store(self._spec)
        if store and self._access.storage:
            await self._home.bring_all(BucketBackup(self._access.storage, store))

    # When somebody is

    async def _follow(self) -> None:
        """As long as one connection to the controller's VM lasts."""
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
        """See that somebody is in charge there, and knows what is wanted. Until cancelled."""
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
        """Return commands for declared work that no controller has recorded: their clients reached
        none.
        """
        return [
            Declare(kind=kind.name, name=name)
            for kind in KINDS.values()
            if kind.waits
            for name in waiting(self._directory, self.state, kind.name)
        ]

    async def _bring_declared(self, seat: RemoteInstall, command: Command) -> None:
        """Copy the folder of what the command declares, if it declares work."""
        if not isinstance(command, Declare):
            return
        if part := find(command.kind, "artifacts"):
            part.SYNC.before_sending(self._directory, self._spec, command.name)
        await seat.bring(self._directory, command.kind, command.name)

    async def live(self) -> Connection:
        """The live connection, waiting for it."""
        await self._connected.wait()
        assert self._there
        return self._there[0]

    async def _command(self, command: Command) -> dict[str, Any]:
        if isinstance(command, Ping):
            return {"pid": os.getpid(), "trouble": self._known_trouble}
        new = self._spec
        if isinstance(command, ExtendStudy | Move):
            note_asked(self._directory, command)
        if isinstance(
            command, Resize
        ):  # what is passed on is nothing that this machine would not take back
            new = resized(self._spec, ClusterSpec.from_dict(command.spec), self.state, now())
            command = Resize(spec=new.to_dict(), give_up=command.give_up)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._pass_on(command)
        except TimeoutError:
            if isinstance(command, Delete):
                self._to_end = command.reason
                (self._directory / TO_END).write_text(
                    self._to_end, encoding="utf-8"
                )  # whoever follows after us knows it, too
                return {}
            what = f"{self._vm.name}, on which the controller runs, does not answer now"
            raise ControllerError(what, fix="The cluster goes on; try again in a moment.") from None
        answer = checked_answer(answer)
        if isinstance(command, Resize):
            self._spec = new
            agree(self._directory, self._spec)
        return answer

    async def _pass_on(self, command: Command) -> dict[str, Any]:
        """The controller's answer. It may be starting at this moment."""
        while True:
            await self.live()
            assert self._there
            try:
                await self._bring_declared(self._there[1], command)
                return await self._there[1].ask(command)
            except RemoteError as error:
                log.info("%s", error)
                await asyncio.sleep(_FIRST_PAUSE)

    # What it writes

    def do(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Begin it, unless it is under way, and begin it again while this machine has no room for
        what it writes.
        """
        if self._tasks:
            self._tasks.do(what, lambda: self._with_room(what, work))

    async def _with_room(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work, and again while there is no room for what it writes: commands are passed on
        meanwhile.
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
        """End what is under way."""
        if self._tasks:
            self._tasks.cancel(what)

    def append(self, what: str, path: Path, lines: bytes) -> None:
        """Add lines to a file here: there is room for `what` then."""
        jsonl.append_lines(path, lines)
        self._no_room.pop(what, None)

    async def _follow_journal(self, connection: Connection) -> None:
        """From our last line on, by which we see that it is still the one that we have; else from
        its first line on.
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
                    whole = (
                        whole or offset == len(line) + 1
                    )  # a shorter file is read from its first line on
                    if not whole and self._differs(offset, line):
                        break
                    self._copy(offset, line)
            start = 0

    def _differs(self, offset: int, line: bytes) -> bool:
        """Whether our copy has something else where this line is."""
        begin = offset - len(line) - 1
        with self._journal.open("rb") as file:
            file.seek(begin)
            ours = file.read(len(line) + 1)
        # This machine's own lines, which the VM was given, are forged only where another machine
        # writes them.
        return bool(ours) and ours not in (line + b"\n", _as_copied(line) + b"\n")

    def _part(self, begin: int) -> None:
        """Go on from byte `begin`, up to where our copy and the VM's journal are the same. Ours is
        kept beside it.
        """
        content = self._journal.read_bytes()
        state = replay(decode_lines(content[:begin])[0])
        if (
            state.seat != self._vm.name
        ):  # what this machine wrote before it gave the cluster away, no VM replaces
            raise JournalError(
                f"The journal on {self._vm.name} is not the one that is followed", where=str(begin)
            )
        kept = self._journal.with_name(LOST)
        common = self._journal.with_name(f".{layout.JOURNAL}.common")
        for path, lines in ((kept, content[begin:]), (common, content[:begin])):
            path.unlink(missing_ok=True)
            jsonl.append_lines(path, lines)
        common.replace(self._journal)  # another file: its readers begin at its first line
        name_twice(self._journal)
        self.state = state
        self._parted = (
            f"The journal on {self._vm.name} has lost its end, and the cluster goes on from what is left: "
            f"what only this machine has of it is in {kept}"
        )
        log.warning("%s", self._parted)

    def _copy(self, offset: int, line: bytes) -> None:
        begin = offset - len(line) - 1
        size = self._journal.stat().st_size
        if begin < size:
            if not self._differs(offset, line):
                return
            self._part(begin)
        elif (
            begin > size
        ):  # a line that is too long to be one: here it is as long, and says nothing
            os.truncate(self._journal, begin - 1)
            jsonl.append_lines(self._journal, b"\n")
        if _is_forged(line):
            log.warning(
                "%s says what only Compute Engine's answer could tell: %s", self._vm.name, line[:80]
            )
            line = _as_copied(line)
        self.append("journal", self._journal, line + b"\n")
        try:
            event = decode(line)
            self.state = fold(self.state, event)
        except (
            JournalError
        ) as error:  # as one that a crash tore apart; everybody who reads it passes it over
            log.warning("%s", error)
            return
        self._home.react(event)


def _seat(history: Sequence[Event]) -> VmState:
    """Return the controller's VM as it was when it got the cluster: what it writes of itself since
    is its own word.

    By the id in there this machine knows whether Compute Engine still has it.
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
    """As our copy has it: blanks for what is forged."""
    if _is_forged(line):
        return b" " * len(line)
    return line


def _is_forged(line: bytes) -> bool:
    """Whether it is a line that no controller on a VM writes."""
    try:
        return isinstance(decode(line), _NOT_FROM_A_VM)
    except JournalError:
        return False
