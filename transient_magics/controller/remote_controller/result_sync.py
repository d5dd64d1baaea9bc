"""Results of a cluster with a remote controller, copied from its VM into the local folder.

The journal lists the results. An artifact is copied when the journal reports it or when the VM is
reached again, and from the bucket if the VM is gone. It is checked here as it was there. The `Sync`
of a kind lists what its work leaves: the module `artifacts` of the kind's package has it as `SYNC`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from ...errors import ForeignError, RoomError
from ...journal import ClusterState, Event
from ...kinds import KINDS, having
from ...protocol.backoff import backoff
from ...remote import Connection
from ...spec import ClusterSpec
from ..artifacts import Artifact, Source, VmFolder, bring, follow
from .install import RemoteInstall

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 600.0
"""Longest pause, in seconds, before a missing file is requested again.

A rank that printed nothing never has a file.
"""
_Work = TypeVar("_Work")
Action = Callable[[], Awaitable[None]]


class Host(Protocol):
    """Program that follows the controller: its connection, its copy of the journal, its tasks."""

    @property
    def state(self) -> ClusterState:
        """The state of the cluster in the local copy of the journal."""
        ...

    async def live(self) -> Connection:
        """Return the live connection; wait for it if necessary."""
        ...

    def do(self, what: str, work: Action) -> None:
        """Start the work unless it is in flight."""
        ...

    def cancel(self, what: str) -> None:
        """Cancel the work of this name."""
        ...

    def append(self, what: str, path: Path, lines: bytes) -> None:
        """Append lines to a local file."""
        ...


class Sync(Generic[_Work]):
    """Copy from the controller's VM, or the bucket, of what work of one kind left, for `home`."""

    kind: ClassVar[str]
    """The name of the kind in `kinds.KINDS`."""
    in_bucket: ClassVar[tuple[str, ...]] = ()
    """Patterns of files in the cluster's folder that a remote controller copies to the bucket."""

    def __init__(self, home: ResultSync) -> None:
        self.home = home

    @property
    def works(self) -> Mapping[str, _Work]:
        """The work of the kind, by name."""
        return cast("Mapping[str, _Work]", self.home.state.of_kind(self.kind))

    def folder(self, name: str) -> Path:
        """Return the folder of work on this machine."""
        return self.home.directory / KINDS[self.kind].folder / name

    # Methods that a kind defines if it needs them

    @classmethod
    def before_sending(cls, directory: Path, spec: ClusterSpec, name: str) -> None:
        """Make what the controller on the VM needs with a declaration.

        Raises OSError or ValueError.

        Parameters
        ----------
        directory
            The cluster's folder on this machine.
        spec
            The cluster's declaration.
        name
            The work, whose folder is copied to the VM after this.
        """

    def left(self, work: _Work) -> Iterator[Artifact]:
        """Yield the artifacts that the work has left so far and that do not grow."""
        return iter(())

    def growing(self, work: _Work) -> Iterator[Artifact]:
        """Yield the files of the work to which lines are being appended."""
        return iter(())

    def tells(self, event: Event) -> bool:
        """Return whether an event reports that work may have left something or a file grows."""
        return True

    def tidy(self, work: _Work) -> None:
        """Delete local files that the work no longer needs."""

    def makes(self, name: str) -> bool:
        """Make the folder of work that work of this kind has begun.

        Returns False if it has begun none of this name. Raises ClusterError if the folder cannot be
        made.
        """
        return False

    # Methods shared by all kinds

    def catch_up(self) -> None:
        """Follow growing files that were known before the VM was reached."""
        for work in self.works.values():
            self._follow(work)
            self.tidy(work)

    def keep_up(self) -> None:
        """Bring missing artifacts, except those that the source lacked a moment ago."""
        for name in self.works:
            for what, action in self.pending(name, self.home.seat, due=True).items():
                self.home.do(what, action)

    def react(self, event: Event) -> None:
        """Copy what a line of the journal has just reported."""
        name = event.work_of(self.kind)
        work = self.works.get(name)
        if work is not None and self.tells(event):
            self._follow(work)
            self.tidy(work)
            self.begin(name)

    async def bring_all(self, source: Source) -> None:
        """Bring what was left and is not here, as far as there is room for it.

        Raises the errors of the source.
        """
        for name in self.works:
            for what, action in self.pending(name, source).items():
                try:
                    await action()
                except RoomError as error:
                    log.warning("the %s is not copied yet: %s", what, error)

    def begin(self, name: str) -> None:
        """Copy what a piece of work left from the VM, unless it is here or a copy is in flight."""
        for what, action in self.pending(name, self.home.seat).items():
            self.home.do(what, action)

    def pending(self, name: str, source: Source, *, due: bool = False) -> dict[str, Action]:
        """Return what a piece of work left and is not here, and how to bring it.

        With `due`, only artifacts whose next request is due are included.
        """
        found = dict.fromkeys(artifact.what for artifact in self._missing(name, due=due))
        return {what: partial(self._bring, name, what, source, due=due) for what in found}

    def _missing(self, name: str, *, due: bool, what: str = "") -> list[Artifact]:
        """Return what a piece of work left and is not here, or only the artifacts named `what`."""
        missing: list[Artifact] = []
        for artifact in self.left(self.works[name]):
            if self.home.is_here(artifact) or what not in ("", artifact.what):
                continue
            if not due or self.home.is_due(artifact):
                missing.append(artifact)
        return missing

    async def _bring(self, name: str, what: str, source: Source, *, due: bool) -> None:
        """Bring the artifacts of a piece of work with the name `what`.

        Artifacts that the source lacks are requested later.
        """
        absent: set[Artifact] = set()
        while True:
            # The list is made again after each round, because the work may have left more.
            missing = [
                found for found in self._missing(name, due=due, what=what) if found not in absent
            ]
            if not missing:
                break
            for artifact in missing:
                if not await self.home.take(artifact, source):
                    absent.add(artifact)
        self.tidy(self.works[name])

    def _follow(self, work: _Work) -> None:
        for artifact in self.growing(work):
            self.home.follow(_following(artifact.files[0]), artifact)


class ResultSync:
    """Copy from elsewhere of the artifacts of the cluster in `directory`."""

    def __init__(self, directory: Path, spec: ClusterSpec, host: Host) -> None:
        self.directory = directory
        self.spec = spec
        self.seat = VmFolder(host.live, RemoteInstall.folder(spec.name))
        """The cluster's folder on the controller's VM."""
        self._host = host
        self._done: set[Artifact] = set()
        """Artifacts that came since this program began, or were refused."""
        self._absences: dict[Artifact, tuple[int, float]] = {}
        """Failed requests of an artifact, and the time of the next one (`time.monotonic`)."""
        self._syncs: list[Sync[Any]] = [part.SYNC(self) for part in having("artifacts")]

    @property
    def state(self) -> ClusterState:
        """Cluster in the state of the copied journal."""
        return self._host.state

    async def live(self) -> Connection:
        """Return the live connection to the VM; wait for it if necessary."""
        return await self._host.live()

    def catch_up(self) -> None:
        """Copy what was reported before the VM was reached, and follow what grows there."""
        for sync in self._syncs:
            sync.catch_up()
        self.do("what was left", self._keep_up)

    async def _keep_up(self) -> None:
        """Copy what was left before the VM was reached; retry missing files until cancelled."""
        while True:
            for sync in self._syncs:
                sync.keep_up()
            await asyncio.sleep(_AGAIN_SECONDS)

    def react(self, event: Event) -> None:
        """Copy what a line of the journal has just reported."""
        for sync in self._syncs:
            sync.react(event)

    async def bring_all(self, source: Source) -> None:
        """Bring what was left and is not here, as far as there is room for it.

        Raises the errors of the source.
        """
        for sync in self._syncs:
            await sync.bring_all(source)

    # Methods that kinds use

    def do(self, what: str, action: Action) -> None:
        """Start the action unless it is in flight."""
        self._host.do(what, action)

    def cancel(self, what: str) -> None:
        """Cancel an action in flight."""
        self._host.cancel(what)

    def makes(self, name: str) -> bool:
        """Make the folder of work that other work has begun, from this machine's files.

        Returns False if no work has begun it. Raises ClusterError if the folder cannot be made.
        """
        return any(sync.makes(name) for sync in self._syncs)

    def is_here(self, artifact: Artifact) -> bool:
        """Return whether an artifact is here, or was refused."""
        if artifact in self._done:
            return True
        return artifact.version is None and all(
            (self.directory / name).exists() for name in artifact.files
        )

    def is_due(self, artifact: Artifact) -> bool:
        """Return whether an artifact that the source lacked may be there by now."""
        return artifact not in self._absences or time.monotonic() >= self._absences[artifact][1]

    async def take(self, artifact: Artifact, source: Source) -> bool:
        """Bring an artifact; return False if the source lacks it.

        A refused artifact is not requested again.
        """
        for file in artifact.files:
            self.cancel(_following(file))
        try:
            found = await bring(artifact, self.directory, source)
        except ForeignError as error:
            log.warning("the %s was refused: %s", artifact.what, error)
            found = True
        if found:
            self._done.add(artifact)
            self._absences.pop(artifact, None)
        else:
            times = self._absences.get(artifact, (0, 0.0))[0] + 1
            pause = backoff(times, _AGAIN_SECONDS, _LONGEST_PAUSE_SECONDS)
            self._absences[artifact] = (times, time.monotonic() + pause)
        return found

    def follow(self, what: str, artifact: Artifact, *, rows: bool = False) -> None:
        """Follow the lines of a file to this machine as they are written."""
        append = partial(self._host.append, what)
        self.do(what, lambda: follow(artifact, self.directory, self.seat, append, rows=rows))


def _following(file: str) -> str:
    return f"output in {file}"
