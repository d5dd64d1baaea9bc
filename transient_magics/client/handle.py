"""The base of the handles of all kinds of work."""

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
from ..protocol.checks import is_name
from ..protocol.cluster_commands import Stop
from . import commands, text
from .cluster_handle import Cluster
from .following.cluster import until_home

State = TypeVar("State", bound=Work[object])
Outcome = TypeVar("Outcome")


class Handle(Generic[State, Outcome]):
    """The handle of one piece of work: a run, study, job, bag, Dask cluster or stalls measurement.

    A handle stores nothing: it reads the cluster's journal and sends commands to the cluster's
    controller. All handles of the same work, in all processes, are equivalent. `await handle` is
    `handle.wait()` without blocking the event loop.

    Attributes
    ----------
    name : str
        The name of the work, unique on its cluster.
    cluster : Cluster
        The cluster of the work.

    Examples
    --------
    >>> for work in tm.work():
    ...     if work.phase == "running":
    ...         work.stop()
    """

    kind: ClassVar[str]
    """The kind of the work, such as `job`: a key of `kinds.KINDS`."""
    word: ClassVar[str]
    """The kind in lists of work: `kind`, or `stalls` for a run that measures stalls."""
    at_stop: ClassVar[str]
    """The effect of a stop on work that has begun, as a clause."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Set `word` to the kind of the subclass, unless it has one."""
        super().__init_subclass__(**options)
        cls.word = cls.__dict__.get("word", cls.kind)

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster

    @property
    def directory(self) -> Path:
        """The folder on this machine with the declaration and the results of the work.

        Raises
        ------
        UnknownWorkError
            `name` is not a valid name of work.
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
                f"{self.name} has not started yet",
                where=self.cluster.name,
                fix="Try again in a moment.",
            )
        return found

    def is_over(self, state: ClusterState | None = None) -> bool:
        """Return whether the work has ended, or its cluster is deleted.

        Parameters
        ----------
        state
            A state of its cluster (default: the present state of all its clusters).
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
            The time limit in seconds (default: none).

        Returns
        -------
        Outcome
            The `Result` of a run, the best `Trial` of a study (None without a complete trial), the
            `Report` of a measurement of stalls, or the final state of all other work.

        Raises
        ------
        TrainingError
            The work failed, its cluster was deleted first, or it is not over after `timeout`
            seconds.

        Examples
        --------
        >>> result = tm.run("run-1").wait(timeout=3600)
        """
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + timeout
        state = self._until_over(timeout)
        work = self._state_in(state)
        if work is not None:
            until_home(self.cluster, self._is_home, deadline=deadline)
        if work is None or not work.over:
            verb = "began"
            if work is not None and work.phase != "declared":
                verb = "ended"
            raise TrainingError(f"{self.cluster.name} was deleted before {self.name} {verb}")
        if failure := self._failure(work):
            raise TrainingError(failure, where=self.cluster.name)
        return self._outcome(state, work)

    def __await__(self) -> Generator[Any, None, Outcome]:
        """Wait as `wait`, without blocking the event loop of the notebook."""
        return asyncio.to_thread(self.wait).__await__()

    def stop(self) -> None:
        """Stop the work and keep its results so far. Do nothing if it is over.

        A run, and each run of a study or of a measurement of stalls, saves a final checkpoint. The
        command of a job receives SIGTERM, and the folder that it keeps is copied here once more. A
        bag starts no further jobs. The VMs of a Dask cluster become free for other work.

        Raises
        ------
        UnknownWorkError
            The cluster has no such work.
        ClusterError
            The cluster is deleted, or its controller does not answer.
        """
        commands.send(self.cluster.directory, Stop(kind=self.kind, name=self.name))

    def cost(self) -> Cost:
        """Return the cost of the work so far, and for a run the projected cost at its end.

        The cost covers the time of its VMs, its share of the cluster's other VMs while it ran, and
        its data transfer. It does not change after the end of the work. Start-up, idle VMs and VMs
        after a preemption notice are in the cluster's bill only.

        Returns
        -------
        Cost
            `total` in US dollars, and `projected` for a run that is not over (None if it is too
            early for a forecast, or if `note` has another reason).
        """
        return costs(self.cluster.state, now()).get(self.name) or Cost(subject=self.name, total=0.0)

    @property
    def parts(self) -> tuple[Self, ...]:
        """The handles of the work on each of its clusters. Only a study can have several."""
        return (self,)

    @property
    def alone(self) -> bool:
        """Whether the cluster was declared only for this work, as studies can do."""
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
        """Return the state of the work in a state of its cluster; None before it is recorded."""
        return cast("State | None", state.of_kind(self.kind).get(self.name))

    def _until_over(self, timeout: float | None, left: float | None = None) -> ClusterState:
        """Block until the work is over and return the cluster's state.

        `left` is the rest of the time limit (default: all). Raises TrainingError after it.
        """
        if left is None:
            left = timeout
        state = self.cluster.follow(self.is_over, left)
        if state is None:
            raise TrainingError(
                f"{self.name} has not ended within {timeout:.0f} s",
                where=self.cluster.name,
                fix="It continues; wait again.",
            )
        return state

    def _is_home(self) -> bool:
        """Return whether the results of the work have arrived on this machine."""
        return True

    def _failure(self, work: State) -> str:
        """Return why the work failed, as a sentence without a period; empty if it did not fail."""
        if work.phase != "failed":
            return ""
        return f"{self.name} failed: {work.reason.rstrip('.')}"

    def _outcome(self, state: ClusterState, work: State) -> Outcome:
        """Return the result of `wait` for work that has ended and did not fail."""
        return cast("Outcome", work)

    @property
    def words(self) -> str:
        """The activity or the end of the work in words, such as `waits for 2 workers`."""
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
        """Return name, state and cost on one line, for notebooks without live panels."""
        name = f"<b>{markup.escape(self.name)}</b> on {markup.escape(self.cluster.name)}"
        cost = f"<span style='{markup.FAINT}'>, {markup.escape(self.cost().words)}</span>"
        return markup.block(f"{name}: {markup.escape(self.words)}{cost}")
