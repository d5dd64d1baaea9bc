"""The local end of a cluster whose controller runs on one of its VMs: its journal followed, its commands passed on.

Everything that reads the local journal or writes to the local socket finds here what it finds beside a controller. A
mirror decides nothing about VMs, and its death costs nobody anything. Of the journal it keeps an exact copy from the
first byte on; nobody but the controller in charge adds to it. There is one exception: when Compute Engine says that the
controller's VM runs no more, nobody is in charge, and the cluster is taken back.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ..errors import (
    CloudError,
    ConnectionLostError,
    ControllerError,
    GoneError,
    JournalError,
    RemoteError,
)
from ..journal import ClusterState, Event, Journal, decode, events, fold, metrics, read, replay
from ..remote import Connection, follow_across
from ..runtime.manifest import split
from ..spec import ClusterSpec, cluster_store
from .access import Access
from .commands import serve
from .machines import instance_name, labels
from .seat import JOURNAL, Seat, command_socket
from .tasks import Tasks

log = logging.getLogger(__name__)

_GONE = ("STOPPED", "TERMINATED", "SUSPENDED")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
_LOOK_SECONDS = 10.0
_ANSWER_SECONDS = 20.0


class Mirror:
    """Follows the cluster in `directory`, whose lock the caller holds."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = directory / JOURNAL
        self._state: ClusterState = replay(read(self._journal))
        self._vm = self._state.vms[self._state.seat]
        self._access = Access(self._spec)
        self._there: tuple[Connection, Seat] | None = None
        self._connected = asyncio.Event()
        self._over = asyncio.Event()
        self._to_end = ""
        self._trouble = ""
        self._tasks: Tasks

    @property
    def _spec(self) -> ClusterSpec:
        assert self._state.spec
        return self._state.spec

    async def run(self) -> None:
        """Follow until the controller's VM is gone; the journal says then that the cluster is this machine's again."""
        async with serve(command_socket(self._directory), self._command), self._access, asyncio.TaskGroup() as group:
            self._tasks = Tasks(group, lambda: None, lambda key, what: log.error("%s: %s", key, what))
            self._tasks.do("journal", self._follow_journal)
            for run in self._state.runs.values():
                if run.phase == "running":
                    self._follow_metrics(run.name)
            self._tasks.do("connection", self._keep_connected)
            await self._over.wait()
            self._tasks.cancel_all()

    async def _keep_connected(self) -> None:
        pause = _FIRST_PAUSE
        while self._directory.exists():
            try:
                await self._access.reopen()
                if await self._is_vacant():
                    await self._take_back()
                    break
                async with self._connection() as connection:
                    pause = _FIRST_PAUSE
                    await connection.closed.wait()
            except (CloudError, RemoteError, OSError) as error:
                self._trouble = f"The controller on {self._vm.name} cannot be reached: {error}"
                log.warning("%s", self._trouble)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._over.set()

    async def _is_vacant(self) -> bool:
        """Whether nobody is in charge: Compute Engine has to say that the VM is gone, silence alone means nothing."""
        name = instance_name(self._spec, self._vm.name)
        vm = await self._access.engine.get(self._vm.zone, name)
        if vm is None or vm.id != self._vm.vm_id or vm.status in _GONE:
            return True
        if self._to_end and self._trouble:  # whoever wants the end does not wait for a controller that is silent
            await self._access.engine.delete(self._vm.zone, name)
            return True
        return False

    async def _take_back(self) -> None:
        """Have the cluster in charge of this machine.

        Where no VM of it is left it was ended, whatever our copy of the journal says: its own VM is the last that a
        controller deletes.
        """
        await self._complete_journal()
        found = await self._access.engine.list(labels(self._spec))
        left = [vm for vm in found if vm.name != instance_name(self._spec, self._vm.name)]
        reason = self._to_end or ("" if left else f"{self._vm.name}, on which its controller ran, was its last VM")
        with Journal(self._journal) as journal:
            journal.append(events.ControllerMoved(vm=""))
            if reason and self._state.phase != "deleting":
                journal.append(events.ClusterDeleting(reason=reason))
            journal.sync()

    async def _complete_journal(self) -> None:
        """What the controller wrote while nobody followed it, from the cluster's bucket."""
        store = cluster_store(self._spec)
        if not store or not self._access.storage:
            return
        bucket, path = split(store)
        whole = self._journal.with_name(f".{JOURNAL}.whole")
        try:
            await self._access.storage.download(bucket, f"{path}{JOURNAL}", whole)
        except GoneError:
            return
        ours, theirs = self._journal.read_bytes(), whole.read_bytes()
        if theirs.startswith(ours):
            whole.replace(self._journal)
            self._state = replay(read(self._journal))
        whole.unlink(missing_ok=True)

    # The controller there

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        """A connection to the controller's VM, on which it has been started where it did not run."""
        async with await self._access.connect(self._vm, self._directory / "key") as connection:
            seat = Seat(connection, self._state.name, self._vm.name)
            await seat.furnish(self._directory)
            await seat.start()
            self._there, self._trouble = (connection, seat), ""
            self._connected.set()
            self._tasks.do("look after", lambda: self._look_after(seat))
            try:
                yield connection
            finally:
                self._connected.clear()
                self._there = None
                self._tasks.cancel("look after")

    async def _look_after(self, seat: Seat) -> None:
        """Hand over what waits, and see now and then that somebody is in charge."""
        if self._to_end:
            await seat.ask({"do": "delete", "reason": self._to_end})
        for folder in sorted((self._directory / "runs").glob("*/run.json"), key=lambda path: path.stat().st_mtime):
            if folder.parent.name not in self._state.runs:
                await self._train(seat, folder.parent.name)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await seat.start()

    async def _train(self, seat: Seat, run: str) -> None:
        await seat.bring_run(self._directory, run)
        await seat.ask({"do": "train", "run": run})

    async def _live(self) -> Connection:
        """The live connection, waiting for it."""
        while True:
            await self._connected.wait()
            if self._there and not self._there[0].closed.is_set():
                return self._there[0]
            self._connected.clear()

    async def _command(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("do") == "ping":
            return {"pid": os.getpid(), "trouble": self._trouble or self._state.trouble}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._pass_on(request)
        except (TimeoutError, RemoteError) as error:
            if request.get("do") == "delete":
                self._to_end = str(request.get("reason") or "asked by the user")
                return {}
            what = f"{self._vm.name}, on which the controller runs, does not answer now: {error or 'it is silent'}"
            raise ControllerError(what, fix="The cluster goes on; try again in a moment.") from error

    async def _pass_on(self, request: dict[str, Any]) -> dict[str, Any]:
        while True:
            await self._live()
            assert self._there
            _, seat = self._there
            try:
                if request.get("do") == "train":
                    await seat.bring_run(self._directory, str(request["run"]))
                return await seat.ask(request)
            except (ConnectionLostError, RemoteError) as error:
                log.info("%s", error)  # it may be starting at this moment
                await asyncio.sleep(_FIRST_PAUSE)

    # What it writes

    async def _follow_journal(self) -> None:
        while True:
            try:
                self._cut_torn_line()
                there = f"{Seat.folder(self._state.name)}/{JOURNAL}"
                async for offset, line in follow_across(self._live, there, self._journal.stat().st_size):
                    self._copy(offset, line)
            except (RemoteError, OSError) as error:
                log.warning("the journal is not followed: %s", error)
                await asyncio.sleep(_LONGEST_PAUSE)

    def _copy(self, offset: int, line: bytes) -> None:
        if offset != self._journal.stat().st_size + len(line) + 1:
            raise JournalError(f"The journal on {self._vm.name} is not the one that is followed", where=str(offset))
        metrics.append(self._journal, line + b"\n")
        try:
            event = decode(line)
        except JournalError:
            return  # a line that a crash tore apart
        self._state = fold(self._state, event)
        self._react(event)

    def _react(self, event: Event) -> None:
        match event:
            case events.TrainDeclared() if not (self._directory / "runs" / event.run / "run.json").exists():
                self._tasks.do(f"run {event.run}", lambda: self._bring_run(event.run))
            case events.TrainStarted():
                self._follow_metrics(event.run)
            case events.TrainFinished() | events.TrainFailed():
                self._tasks.cancel(f"metrics {event.run}")
                self._tasks.do(f"results {event.run}", lambda: self._bring_results(event.run))

    def _follow_metrics(self, run: str) -> None:
        path = self._directory / "runs" / run / "metrics.jsonl"

        async def follow() -> None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            offset = path.stat().st_size if path.exists() else 0
            async for _, line in follow_across(self._live, f"transient/runs/{run}/{path.name}", offset):
                metrics.append(path, line + b"\n")

        self._tasks.do(f"metrics {run}", follow)

    async def _bring_run(self, run: str) -> None:
        """The folder of a run that another machine declared."""
        there = f"{Seat.folder(self._state.name)}/runs/{run}"
        await (await self._live()).get_tree(there, self._directory / "runs" / run)

    async def _bring_results(self, run: str) -> None:
        """The run's own files as they are at its end; its checkpoints are in the bucket."""
        connection = await self._live()
        for name in ("metrics.jsonl", "events.jsonl"):
            await connection.get(f"transient/runs/{run}/{name}", self._directory / "runs" / run / name)

    def _cut_torn_line(self) -> None:
        """An earlier mirror may have been killed while it wrote."""
        content = self._journal.read_bytes()
        os.truncate(self._journal, content.rfind(b"\n") + 1)
