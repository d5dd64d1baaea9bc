"""Answers of verbs for which the client has no value with a text form of its own.

Each is text as `str`; notebooks add HTML.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ..client import Cluster, Handle, text
from ..client.planning.deadlines import on_demand_words
from ..client.recorded_run import RecordedRun
from ..journal import Bill, ClusterState, Event, VmState, bill


class Sentence(str):
    """A result or a line of progress. It is printed only: programs use other values."""


@dataclass(frozen=True)
class Deleted:
    """A deleted cluster."""

    cluster: Cluster

    def __str__(self) -> str:
        return text.deleted_words(self.cluster.state, self.cluster.cost())


@dataclass(frozen=True)
class Begun:
    """Work that was declared.

    Attributes
    ----------
    work : Handle
        The work.
    since : int
        The number of the last event in the journal of its cluster before the declaration.
    notes : tuple of str
        Sentences about its code, such as the lines that are not executed.
    names : mapping of str to object
        Variables that a notebook gets, in addition to the handle.
    """

    work: Handle[Any, Any]
    since: int
    notes: tuple[str, ...] = ()
    names: Mapping[str, object] = field(default_factory=dict[str, object])

    def __str__(self) -> str:
        declared = f"{self.work.name} is declared on {self.work.cluster.name}."
        return " ".join(filter(None, (declared, self.promised, *self.notes)))

    @property
    def promised(self) -> str:
        """The forecast for a run with a deadline before it starts; empty for other work."""
        if not isinstance(self.work, RecordedRun):
            return ""
        run = self.work.declared
        sentences = (
            text.declared_words(self.work.kind, run, time.time()),
            on_demand_words(self.work.cluster, run),
        )
        return " ".join(filter(None, sentences))


class EventLine(Sentence):
    """An event of a journal, in words."""

    def __new__(cls, event: Event) -> Self:
        """Create the line from an event."""
        line = super().__new__(cls, text.event_line(event, dated=True))
        line.event = event
        return line

    event: Event


class Listing(Sequence[Cluster]):
    """Clusters, as a sequence of handles that shows itself as a table."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        unreadable: Sequence[str] = (),
        unattended: Sequence[str] = (),
    ) -> None:
        """Create the list.

        Parameters
        ----------
        clusters
            The clusters that the list shows.
        unreadable
            A sentence for each cluster that was left out because its folder is unreadable.
        unattended
            A sentence for each cluster that had no controller.
        """
        self._clusters = list(clusters)
        self.unreadable = list(unreadable)
        self.unattended = list(unattended)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._clusters[index]

    def __len__(self) -> int:
        return len(self._clusters)

    def __repr__(self) -> str:
        return "\n".join([*self.unattended, text.listing(self._states()), *self.unreadable])

    @property
    def data(self) -> list[dict[str, Any]]:
        """One dict per cluster, with values that JSON can express."""
        return [_cluster_data(*state) for state in self._states()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table: one dict per cluster, with its present state."""
        return [text.listing_row(*state) for state in self._states()]

    def _states(self) -> Iterator[tuple[str, ClusterState, Bill]]:
        now = time.time()
        for cluster in self._clusters:
            state = cluster.state
            yield cluster.name, state, bill(state, now)


class Snapshot:
    """The state of a cluster at one moment, `at` (seconds since 1970)."""

    def __init__(
        self, cluster: Cluster, state: ClusterState, forecast: str = "", unattended: str = ""
    ) -> None:
        """Create the snapshot.

        Parameters
        ----------
        cluster
            The cluster.
        state
            Its state.
        forecast
            The end of its run, in a sentence.
        unattended
            A sentence if no controller was running.
        """
        self.cluster = cluster
        self.state = state
        self.unattended = unattended
        self.at = time.time()
        self.forecast = forecast

    @property
    def data(self) -> dict[str, Any]:
        """The state as a dict, with values that JSON can express."""
        state = self.state
        ends_at = None
        if state.spec:
            ends_at = state.spec.ends_at
        return {
            **_cluster_data(state.name, state, bill(state, self.at)),
            "reason": state.reason,
            "trouble": state.trouble,
            "ends_at": ends_at,
            "revocations": state.revocations,
            "vms": [_vm_data(vm) for vm in state.living],
            "work": self.cluster.work().data,
        }

    def __repr__(self) -> str:
        status = text.status(self.state, bill(self.state, self.at), self.at, self.forecast)
        if self.unattended:
            return f"{self.unattended}\n{status}"
        return status


def _vm_data(vm: VmState) -> dict[str, Any]:
    """Return the fields of a VM in JSON, its price in US dollars per hour."""
    gpu = vm.accelerator
    if gpu == "cpu":
        gpu = ""
    return {
        "name": vm.name,
        "role": vm.role,
        "zone": vm.zone,
        "machine_type": vm.machine_type,
        "gpu": gpu or None,
        "state": vm.state,
        "hourly": vm.hourly,
    }


def _cluster_data(name: str, state: ClusterState, so_far: Bill) -> dict[str, Any]:
    """Return the fields of a cluster in JSON: seconds since 1970, US dollars."""
    phase = state.phase
    if phase == "unknown":
        phase = "starting"
    workers = None
    project = None
    if state.spec:
        workers = state.spec.spec
        project = state.spec.project
    return {
        "name": name,
        "phase": phase,
        "workers": workers,
        "project": project,
        "declared_at": state.declared_at,
        "vms_ready": sum(vm.state == "ready" for vm in state.living),
        "vms_existing": len(state.living),
        "cost": so_far.total,
        "hourly": so_far.hourly,
    }
