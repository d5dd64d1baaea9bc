"""What `list` and `status` give back: values with an HTML face for notebooks and a text face for terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape

from .. import panels
from ..client import Cluster, text
from ..journal import Bill, ClusterState, bill


class Listing(Sequence[Cluster]):
    """Clusters, as a sequence of handles that shows itself as a table."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self._clusters = list(clusters)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._clusters[index]

    def __len__(self) -> int:
        return len(self._clusters)

    def __repr__(self) -> str:
        return text.listing(self._states())

    def _repr_html_(self) -> str:
        rows = [text.listing_row(state, costs) for state, costs in self._states()]
        if not rows:
            return "<div>No cluster. For example: <code>%transient_cluster k80x4</code></div>"
        head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escape(value)}</td>" for value in row.values()) + "</tr>"
            for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _states(self) -> Iterator[tuple[ClusterState, Bill]]:
        now = time.time()
        for cluster in self._clusters:
            state = cluster.state
            yield state, bill(state, now)


class Snapshot:
    """How a cluster was at one moment."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._at = time.time()

    def __repr__(self) -> str:
        return text.status(self.state, bill(self.state, self._at), self._at)

    def _repr_html_(self) -> str:
        return panels.html(panels.view(self.state, bill(self.state, self._at), self._at))
