"""The base of the handles of all kinds of work: runs, studies, jobs, bags, Dask clusters,
measurements of stalls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

from .. import markup
from ..errors import ClusterError, TrainingError, UnknownWorkError, unknown
from ..journal import ClusterState, Cost, Work, costs, now
from ..kinds import KINDS
from ..protocol.cluster_commands import Stop
from ..protocol.names import is_name
from . import commands, text
from .cluster_handle import Cluster
from .following.cluster import until_home

State = TypeVar("State", bound=Work[object])
Outcome = TypeVar("Outcome")


class Handle(Generic[State, Outcome]):
    """One piece of work on one cluster.

    A handle stores nothing: it reads the cluster's journal and sends commands to the cluster's
    controller. Any number of handles of the same work, in any number of processes, show the same.

    Attributes
    ----------
    name : str
        The name of the work, which no other work of the cluster has.
    cluster : Cluster
        The cluster that does the work.
    """

    kind: ClassVar[str]
    """The kind of the work, such as `job`: a key of `kinds.KINDS`."""
    word: ClassVar[str]
    """What lists of work call it: `kind`, or `stalls` for a run that measures stalls."""
    at_stop: ClassVar[str]
    """What happens when work that has begun is stopped, a clause."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.word = cls.__dict__.get("word", cls.kind)

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster

    @property
    def directory(self) -> Path:
        """The folder on this machine with the declaration of the work and with its results.

        Raises
        ------
        UnknownWorkError
            `name` cannot be the name of any work.
        """
        if not is_name(self.name):
            raise unknown(
                str(KINDS[self.kind]),
                self.name,
                (),
                where=self.cluster.name,
                error=UnknownWorkError,
            )
        return self.cluster.directory / KINDS[self.kind].folder / self.name

    @property
    def state(self) -> State:
        """The state of the work in the cluster's journal.

        Raises
        ------
        ClusterError
            The controller has not recorded the work yet.
        """
        found = self._state_in(self.cluster.state)
        if found is None:
            raise ClusterError(
                f"{self.name} has not begun", where=self.cluster.name, fix="Try again in a moment."
            )
        return found

    def is_over(self, state: ClusterState | None = None) -> bool:
        """Return whether the work has ended, or was ended by the deletion of its cluster.

        Parameters
        ----------
        state
            A state of its cluster (default: the present state of all of its clusters).
        """
        if state is None:
            return all(part.is_over(part.cluster.state) for part in self.parts)
        work = self._state_in(state)
        return state.over or (work is not None and work.over)

    def wait(self, timeout: float | None = None) -> Outcome:
        """Block until the work is over and its results are on this machine.

        An interrupt ends the wait only: the work continues.

        Parameters
        ----------
        timeout
            Seconds after which the wait ends (default: no limit).

        Returns
        -------
        Outcome
            The `Result` of a run, the best `Trial` of a study (None without a complete trial), the
            `Report` of a measurement of stalls; of all other work its final state.

        Raises
        ------
        TrainingError
            The work failed, its cluster was deleted before, or it is not over after `timeout`
            seconds.
        """
        if timeout is None:
            deadline = None
        else:
            deadline = time.monotonic() + timeout
        state = self._until_over(timeout)
        work = self._state_in(state)
        if work is not None:
            until_home(self.cluster, self._is_home, deadline=deadline)
        if work is None or not work.over:
            if work is not None and work.phase != "declared":
                verb = "ended"
            else:
                verb = "began"
            raise TrainingError(f"{self.cluster.name} was deleted before {self.name} {verb}")
        if failure := self._failure(work):
            raise TrainingError(failure, where=self.cluster.name)
        return self._outcome(state, work)

    def __await__(self) -> Generator[Any, None, Outcome]:
        """Wait as `wait` does, without blocking the event loop of the notebook."""
        return asyncio.to_thread(self.wait).__await__()

    def stop(self) -> None:
        """End the work. Its results so far remain. Does nothing if it is over.

        A run, and each run of a study or of a measurement of stalls, saves a last checkpoint. The
        command of a job receives SIGTERM, and the folder that it keeps is copied here once more. A
        bag starts no further job. The VMs of a Dask cluster are free for other work.

        Raises
        ------
        UnknownWorkError
            The cluster has no such work.
        ClusterError
            The cluster is deleted, or its controller does not answer.
        """
        commands.send(self.cluster.directory, Stop(kind=self.kind, name=self.name))

    def cost(self) -> Cost:
        """Return the cost of the work so far, in US dollars, and of a run the projected cost at its
        end.

        It counts the time of the VMs that the work had, its share of the cluster's other VMs while
        it ran, and its data transfer. It does not change after the end of the work. Start-up, idle
        VMs and VMs after a preemption notice are in the cluster's bill only.

        Returns
        -------
        Cost
            `total` in US dollars; `projected` of a run that is not over (None where it is too early
            for a forecast, or where `note` has the reason).
        """
        return costs(self.cluster.state, now()).get(self.name) or Cost(subject=self.name, total=0.0)

    @property
    def parts(self) -> tuple[Self, ...]:
        """The same work on each of its clusters. Only a study can have several."""
        return (self,)

    @property
    def alone(self) -> bool:
        """Whether its cluster was declared for it alone. Only that of a study can be."""
        return False

    @property
    def phase(self) -> str:
        """The phase of the work: `declared`, `running`, `finished`, `failed` or `stopped`."""
        state = self.cluster.state
        work = self._state_in(state)
        if work is not None:
            return text.work_phase(work, state)
        return "declared"

    def _state_in(self, state: ClusterState) -> State | None:
        """Return the state of the work in a state of its cluster; None before the controller has
        recorded it.
        """
        return cast("State | None", state.of_kind(self.kind).get(self.name))

    def _until_over(self, timeout: float | None, left: float | None = None) -> ClusterState:
        """Block until the work is over and return the cluster's state. Raises TrainingError after
        `timeout` seconds.

        `left`: how many of these are left (default: all).
        """
        state = self.cluster.follow(self.is_over, timeout if left is None else left)
        if state is None:
            raise TrainingError(
                f"{self.name} is not over after {timeout:.0f} s", where=self.cluster.name
            )
        return state

    def _is_home(self) -> bool:
        """Return whether the results of the work have arrived on this machine."""
        return True

    def _failure(self, work: State) -> str:
        """Return why the work failed, in one sentence without its end; empty where it did not fail."""
        if work.phase != "failed":
            return ""
        return f"{self.name} failed: {work.reason.rstrip('.')}"

    def _outcome(self, state: ClusterState, work: State) -> Outcome:
        """Return what `wait` returns of work that is over and has not failed."""
        return cast("Outcome", work)

    @property
    def words(self) -> str:
        """What the work does, or how it ended, in words such as `waits for 2 workers`."""
        state = self.cluster.state
        work = self._state_in(state)
        if work is not None:
            return text.work_words(work, state)
        return "declared"

    def __str__(self) -> str:
        return f"{self.name}: {self.words}."

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} on {self.cluster.name}: {self.words}>"

    def _repr_html_(self) -> str:
        """Return one line with the name, the state and the cost, for notebooks without live panels."""
        name = f"<b>{markup.escape(self.name)}</b> on {markup.escape(self.cluster.name)}"
        cost = f"<span style='{markup.FAINT}'>, {markup.escape(self.cost().words)}</span>"
        return markup.block(f"{name}: {markup.escape(self.words)}{cost}")
