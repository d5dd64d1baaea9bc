"""Tasks of a cluster's controller for every kind of work; each kind subclasses `Works`.

Clients call `declare` and `stop` by commands; the control loop calls `declare_waiting` and `tick`.
Every method may be repeated by another controller, which continues from the journal and from the
folders of the work.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from ..errors import ClusterError, TrainingError
from ..journal import ClusterState, Event, VmState, events
from ..journal.declared import read_declaration, waiting
from ..kinds import KINDS
from ..protocol import layout
from ..protocol.cluster_commands import Command
from ..protocol.vm_events import ProcessGaveUp
from ..remote import Allowance
from ..spec import ClusterSpec
from .packages import gather
from .record import Recorder
from .tasks import Tasks
from .vms.fleet import Fleet
from .vms.link import Link

log = logging.getLogger(__name__)

STOPPED_BY_USER = "stopped by the user"
NOT_DECLARED = "this machine has not declared it so"
"""Reason of the end of work that a controller on a VM began without a declaration of this user."""


class Spec(Protocol):
    """Declaration of work."""

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Return the declaration with these values. Raises ValueError."""
        ...

    def to_dict(self) -> dict[str, object]:
        """Return the values of the declaration."""
        ...


_Spec = TypeVar("_Spec", bound=Spec)
EndState = Literal["finished", "failed", "stopped"]
"""The state of work that is over."""


class WithPackages(Protocol):
    """Part of a declaration with the packages that the work needs."""

    @property
    def pip(self) -> Sequence[str]:
        """Requirements of the packages, as pip reads them."""
        ...

    @property
    def pip_build(self) -> bool:
        """Whether packages without a wheel may be built."""
        ...


@dataclass(frozen=True)
class Tick:
    """One pass of the control loop."""

    tasks: Tasks
    at: float
    """Seconds since 1970, by Compute Engine's clock."""
    slots: Callable[[], Mapping[int, str]]
    """Function that returns the present slots of the cluster's workers, each with its GPU."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Turn that has not come; `what` the cluster waits for is a clause."""

    what: str


@dataclass(frozen=True, slots=True)
class Comes:
    """Turn that has come, with this declaration."""

    spec: ClusterSpec


@dataclass(frozen=True, slots=True)
class Never:
    """Turn that will not come, for this reason, a clause."""

    reason: str


Turn = Waits | Comes | Never


class Works(ABC, Generic[_Spec]):
    """The work of one kind on a cluster.

    The module `conduct` of a kind's package has its subclass as `WORKS`.

    Parameters
    ----------
    directory
        The cluster's folder.
    recorder
        Records events in its journal.
    link
        Returns the link of a VM, if it has one.
    others
        The cluster's work of all kinds, by kind, for a kind whose work begins work of another one.
    """

    kind: ClassVar[str]
    """The name of the kind in `kinds.KINDS`."""
    spec_class: type[_Spec]
    """The class of its declarations."""
    stopped_as: ClassVar[EndState] = "stopped"
    """The state of work after it was stopped."""
    stopped_because: ClassVar[str] = STOPPED_BY_USER
    """Reason of the end if a user stops the work, a clause."""
    most_event_bytes: ClassVar[int] = 16 * 2**20
    """Limit of the events that VMs report under one allowance, in bytes."""

    def __init__(
        self,
        directory: Path,
        recorder: Recorder,
        link: Callable[[str], Link | None],
        others: Mapping[str, Works[Any]] | None = None,
    ) -> None:
        self.directory = directory
        self.recorder = recorder
        self.link = link
        if others is None:
            others = {}
        # The controller adds the kinds that it creates later, so keep the mapping itself.
        self.others = others
        self.fleet: Fleet | None = None
        """The cluster's VMs, once its controller is in charge of them."""
        self.tasks: Tasks
        """Tasks of the controller, from then on."""
        self._gathered: set[str] = set()
        """Work whose packages are in its folder."""
        self._allowances: dict[tuple[object, ...], Allowance] = {}

    @property
    def state(self) -> ClusterState:
        """State of the cluster in the journal."""
        return self.recorder.state

    # Methods that each kind defines

    @abstractmethod
    def tick(self, tick: Tick) -> None:
        """Record and start what is due."""

    # Methods that a kind defines if it needs them

    def declared(self, name: str, spec: _Spec) -> Event:
        """Return the event by which the work begins."""
        return events.WorkDeclared(work=name, of=self.kind, spec=spec.to_dict())

    def failed(self, name: str, reason: str) -> Event:
        """Return the event by which work that is not over fails."""
        return events.WorkEnded(work=name, of=self.kind, state="failed", reason=reason)

    async def stop(self, name: str, reason: str = "") -> None:
        """Stop declared work for its user. Does nothing if it is over or stopping.

        Parameters
        ----------
        name
            The work.
        reason
            Why it stops, a clause (default: `stopped_because` of its kind).
        """
        self.request_end(name, reason=reason or self.stopped_because)

    def prepare(self, name: str, spec: _Spec) -> None:
        """Make what the work needs before it begins.

        Raises ClusterError if it cannot begin here.
        """

    def turn(self, spec: ClusterSpec, at: float) -> Turn | None:
        """Return whether the cluster, which has no VM yet, may have some now.

        None means that it does not wait for another cluster.
        """
        return None

    def demand(self, at: float) -> None:
        """Record which VMs the work needs from now on, before the decisions about VMs."""

    async def obey(self, command: Command) -> bool:
        """Carry out a command if it is for this kind alone, and return whether it was."""
        return False

    def save_ahead(self) -> None:
        """Save all work, because the cluster ends soon."""

    def gave_up(self, vm: VmState, line: ProcessGaveUp) -> None:
        """Note that a process on `vm` keeps ending and is no longer restarted."""

    def metrics_files(self) -> Sequence[Path]:
        """Return the metrics files of active work, for comparing the speeds of workers."""
        return ()

    def unprepared(self) -> frozenset[str]:
        """Return the VMs in the target of a move that do not have all that the work needs."""
        return frozenset()

    async def moving_bytes(self) -> tuple[int, int]:
        """Return how many bytes of checkpoints and of data follow the cluster to another place."""
        return 0, 0

    async def hand_over(self, leaves: Sequence[str], *, save: bool) -> None:
        """Bring the work to the VMs in the target of a move; the VMs in `leaves` are deleted.

        Raises RemoteError, TrainingError or OSError if that is not possible: the work then
        continues on its present VMs.
        """

    # Methods shared by all kinds

    def request_end(self, name: str, *, reason: str, state: EndState | None = None) -> None:
        """Record that declared work is stopping. Does nothing if it is over, stopping or unknown.

        Parameters
        ----------
        name
            The work.
        reason
            Why it stops, a clause.
        state
            Its state once it is over (default: `stopped_as` of its kind).
        """
        work = self.state.of_kind(self.kind).get(name)
        if work and not work.over and not work.stop:
            state = state or self.stopped_as
            stopping = events.WorkStopping(work=name, of=self.kind, reason=reason, state=state)
            self.recorder.record(stopping)

    def record_end(self, name: str, *, state: EndState, reason: str = "") -> None:
        """Record that work is over, with a `reason` (a clause), and clear its troubles."""
        self.recorder.record(events.WorkEnded(work=name, of=self.kind, state=state, reason=reason))
        self.note(name, "")

    def take_charge(self, fleet: Fleet, tasks: Tasks) -> None:
        """Begin to conduct the work; before this call it can only be declared and stopped."""
        self.fleet = fleet
        self.tasks = tasks

    def folder(self, name: str) -> Path:
        """Return the folder of work on this machine."""
        return self.directory / KINDS[self.kind].folder / name

    def read(self, name: str) -> _Spec:
        """Return the user's declaration. Raises ClusterError if it cannot be read."""
        return read_declaration(self.directory, self.kind, name, self.spec_class.from_dict)

    def declare(self, name: str) -> None:
        """Begin the work whose declaration is in the cluster's folder, unless it has begun.

        Raises ClusterError if the declaration cannot be read, its name is in use, or such work
        cannot begin here.
        """
        if name in self.state.of_kind(self.kind):
            return
        self.state.refuse_taken(self.kind, name)
        spec = self.read(name)
        self.prepare(name, spec)
        self.recorder.record(self.declared(name, spec))

    def declare_waiting(self) -> None:
        """Begin declared work whose command did not reach a controller."""
        if not KINDS[self.kind].waits:
            return
        for name in waiting(self.directory, self.state, self.kind):
            try:
                self.declare(name)
            except ClusterError as error:
                self.refused(name, error)

    def refused(self, name: str, error: ClusterError) -> None:
        """Report waiting work that cannot begin. It does not block other work."""
        self.note(name, str(error))

    def fail_waiting(self, reason: str) -> None:
        """Begin and fail all waiting work: after the loss of a journal it may have ended before."""
        if not KINDS[self.kind].waits:
            return
        for name in waiting(self.directory, self.state, self.kind):
            try:
                self.declare(name)
            except ClusterError as error:
                # It cannot begin either.
                log.warning("%s", error)
            else:
                self.recorder.record(self.failed(name, reason))

    def take_back(self) -> None:
        """Fail work that this machine's user did not declare, after a VM wrote the journal."""
        for name, work in self.state.of_kind(self.kind).items():
            if work.over:
                continue
            try:
                is_known = self.read(name) == work.spec
            except ClusterError as error:
                log.warning("%s", error)
                is_known = False
            if not is_known:
                self.recorder.record(self.failed(name, NOT_DECLARED))

    def has_packages(self, name: str, spec: WithPackages, tasks: Tasks) -> bool:
        """Return whether the packages of work are in its folder; if not, begin to gather them."""
        if not spec.pip or name in self._gathered:
            return True
        tasks.do(f"packages of {name}", lambda: self._gather(name, spec))
        return False

    async def _gather(self, name: str, spec: WithPackages) -> None:
        wheels = self.folder(name) / layout.WHEELS
        why = ""
        try:
            await gather(spec.pip, wheels, build=spec.pip_build, purpose=self.recorder.spec.purpose)
        except TrainingError as error:
            why = str(error)
        except OSError as error:
            why = f"The packages could not be gathered: {error}"
        if why:
            self.recorder.record(self.failed(name, why))
        self._gathered.add(name)

    def note(self, name: str, what: str) -> None:
        """Report what hinders work, in one sentence; empty if it is no longer hindered."""
        self.recorder.note(f"{self.kind} {name}", what)

    def allowance(self, *key: object) -> Allowance:
        """Return the limit of bytes that VMs may report under this key, over all followings."""
        return self._allowances.setdefault(key, Allowance(self.most_event_bytes))


def refuse_when_ending(state: ClusterState) -> None:
    """Raise ClusterError if the cluster is being deleted."""
    if state.phase in ("deleting", "deleted"):
        raise ClusterError(f"{state.name} is being deleted", fix="Declare another cluster.")
