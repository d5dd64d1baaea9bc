"""What verbs answer with where no value of the client shows itself: each is text as `str`;
notebooks add an HTML.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..client import Cluster, Handle, text
from ..client.planning.deadlines import on_demand_words
from ..client.recorded_run import RecordedRun
from ..journal import Bill, ClusterState, Event, bill


class Sentence(str):
    """What was done, or a line of what happens. It is printed: nobody computes with it."""


@dataclass(frozen=True)
class Deleted:
    """A cluster that is gone."""

    cluster: Cluster

    def __str__(self) -> str:
        return text.deleted_words(self.cluster.state, self.cluster.cost())


@dataclass(frozen=True)
class Begun:
    """Work that was declared when its cluster's journal had come to the event `since`."""

    work: Handle[Any, Any]
    since: int

    def __str__(self) -> str:
        declared = f"{self.work.name} is declared on {self.work.cluster.name}."
        return " ".join(filter(None, (declared, self.promised)))

    @property
    def promised(self) -> str:
        """What is known before the start of a run with a deadline; empty for other work."""
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
        """`unreadable`: what to say of those that are passed over. `unattended`: of those without a
        controller.
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
        """A dict for each cluster, whose values JSON can express."""
        return [_cluster_data(*state) for state in self._states()]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per cluster, as it is now."""
        return [text.listing_row(*state) for state in self._states()]

    def _states(self) -> Iterator[tuple[str, ClusterState, Bill]]:
        now = time.time()
        for cluster in self._clusters:
            state = cluster.state
            yield cluster.name, state, bill(state, now)


class Snapshot:
    """How a cluster was at one moment, `at`, with a `forecast` of its run in a sentence.

    `unattended`: a sentence where no controller was running.
    """

    def __init__(
        self, cluster: Cluster, state: ClusterState, forecast: str = "", unattended: str = ""
    ) -> None:
        self.cluster = cluster
        self.state = state
        self.unattended = unattended
        self.at = time.time()
        self.forecast = forecast

    @property
    def data(self) -> dict[str, Any]:
        """The values, which JSON can express."""
        state = self.state
        vms = [
            {
                "name": vm.name,
                "role": vm.role,
                "zone": vm.zone,
                "machine_type": vm.machine_type,
                "gpu": None if vm.accelerator in ("", "cpu") else vm.accelerator,
                "state": vm.state,
                "hourly": vm.hourly,
            }
            for vm in state.living
        ]
        work = self.cluster.work().data
        return {
            **_cluster_data(state.name, state, bill(state, self.at)),
            "reason": state.reason,
            "trouble": state.trouble,
            "ends_at": state.spec.ends_at if state.spec else None,
            "revocations": state.revocations,
            "vms": vms,
            "work": work,
        }

    def __repr__(self) -> str:
        status = text.status(self.state, bill(self.state, self.at), self.at, self.forecast)
        if self.unattended:
            return f"{self.unattended}\n{status}"
        return status


def _cluster_data(name: str, state: ClusterState, so_far: Bill) -> dict[str, Any]:
    """Return what lists and states of clusters have in JSON: times in seconds since 1970, money in
    US dollars.
    """
    spec = state.spec
    return {
        "name": name,
        "phase": "starting" if state.phase == "unknown" else state.phase,
        "workers": spec.spec if spec else None,
        "project": spec.project if spec else None,
        "declared_at": state.declared_at,
        "vms_ready": sum(vm.state == "ready" for vm in state.living),
        "vms_living": len(state.living),
        "cost": so_far.total,
        "hourly": so_far.hourly,
    }
