"""What verbs answer with where no value of the client shows itself: each is text as `str`; notebooks add an HTML."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..client import Bag, Cluster, Job, Run, Stalls, Study, text
from ..client.planning.deadlines import on_demand_words
from ..journal import Bill, ClusterState, bill


class Sentence(str):
    """What was done, or a line of what happens. It is printed: nobody computes with it."""


@dataclass(frozen=True)
class Deleted:
    """A cluster that is gone."""

    cluster: Cluster

    def __str__(self) -> str:
        return text.deleted_words(self.cluster.state, self.cluster.cost())


@dataclass(frozen=True)
class Launched:
    """A run that was declared when its cluster's journal had come to the event `since`."""

    run: Run
    since: int

    def __str__(self) -> str:
        said = f"{self.run.name} is declared on {self.run.cluster.name}."
        return " ".join(filter(None, (said, self.promised)))

    @property
    def promised(self) -> str:
        """What is said before it begins of a run that has to be done in time."""
        run = self.run.declared
        said = text.declared_words(run, time.time()), on_demand_words(self.run.cluster, run)
        return " ".join(filter(None, said))


@dataclass(frozen=True)
class Begun:
    """A study that was declared when its cluster's journal had come to the event `since`."""

    study: Study
    since: int

    def __str__(self) -> str:
        return f"{self.study.name} is declared on {self.study.cluster.name}."


@dataclass(frozen=True)
class Started:
    """A job that was declared."""

    job: Job

    def __str__(self) -> str:
        return f"{self.job.name} is declared on {self.job.cluster.name}."


@dataclass(frozen=True)
class Opened:
    """A bag that was declared when its cluster's journal had come to the event `since`."""

    bag: Bag
    since: int

    def __str__(self) -> str:
        return f"{self.bag.name} is declared on {self.bag.cluster.name}."


@dataclass(frozen=True)
class Measured:
    """A measure of stalls that was declared when its cluster's journal had come to the event `since`."""

    stalls: Stalls
    since: int

    def __str__(self) -> str:
        return f"{self.stalls.name} is declared on {self.stalls.cluster.name}."


class Listing(Sequence[Cluster]):
    """Clusters, as a sequence of handles that shows itself as a table."""

    def __init__(
        self, clusters: Sequence[Cluster], unreadable: Sequence[str] = (), unattended: Sequence[str] = ()
    ) -> None:
        """`unreadable`: what to say of those that are passed over. `unattended`: of those without a controller."""
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
    def rows(self) -> list[dict[str, Any]]:
        """One dict per cluster, as it is now."""
        return [text.listing_row(*each) for each in self._states()]

    def _states(self) -> Iterator[tuple[str, ClusterState, Bill]]:
        now = time.time()
        for cluster in self._clusters:
            state = cluster.state
            yield cluster.name, state, bill(state, now)


class Snapshot:
    """How a cluster was at one moment, `at`, with a `forecast` of its run in a sentence.

    `unattended`: a sentence where no controller was running.
    """

    def __init__(self, state: ClusterState, forecast: str = "", unattended: str = "") -> None:
        self.state = state
        self.unattended = unattended
        self.at = time.time()
        self.forecast = forecast

    def __repr__(self) -> str:
        status = text.status(self.state, bill(self.state, self.at), self.at, self.forecast)
        return f"{self.unattended}\n{status}" if self.unattended else status
