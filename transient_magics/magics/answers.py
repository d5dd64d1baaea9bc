"""What `list`, `status` and `--dry-run` give back: values with an HTML face for notebooks, text for terminals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from .. import panels
from ..client import Cluster, Diagnosis, ImageList, Preview, text
from ..journal import Bill, ClusterState, bill
from ..panels.markup import COLOURS, escape, row, table

WORD_COLOURS = {
    word: f"<span style='color:{COLOURS[colour]};white-space:nowrap'>%s</span>"
    for word, colour in (("good", "good"), ("note", "warn"), ("NOT GOOD", "bad"))
}


class Listing(Sequence[Cluster]):
    """Clusters, as a sequence of handles that shows itself as a table."""

    def __init__(self, clusters: Sequence[Cluster], unreadable: Sequence[str] = ()) -> None:
        """`unreadable`: what to say of those that are passed over."""
        self._clusters, self._unreadable = list(clusters), list(unreadable)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._clusters[index]

    def __len__(self) -> int:
        return len(self._clusters)

    def __repr__(self) -> str:
        return "\n".join([text.listing(self._states()), *self._unreadable])

    def _repr_html_(self) -> str:
        rows = [text.listing_row(*each) for each in self._states()]
        told = "".join(f"<div>{escape(each)}</div>" for each in self._unreadable)
        if not rows:
            return f"<div>No cluster. For example: <code>%transient_cluster k80x4</code></div>{told}"
        return _table(list(rows[0]), [list(row.values()) for row in rows]) + told

    def _states(self) -> Iterator[tuple[str, ClusterState, Bill]]:
        now = time.time()
        for cluster in self._clusters:
            state = cluster.state
            yield cluster.name, state, bill(state, now)


class Snapshot:
    """How a cluster was at one moment."""

    def __init__(self, state: ClusterState, forecast: str = "") -> None:
        self.state = state
        self._at = time.time()
        self._forecast = forecast

    def __repr__(self) -> str:
        return text.status(self.state, bill(self.state, self._at), self._at, self._forecast)

    def _repr_html_(self) -> str:
        foretold = f"<div>{escape(self._forecast)}</div>" if self._forecast else ""
        return panels.html(panels.view(self.state, bill(self.state, self._at), self._at)) + foretold


def preview_html(preview: Preview) -> str:
    """What a declaration would create, as HTML."""
    rows = [
        [str(row["count"]), row["role"], row["zone"], row["machine_type"], row["accelerator"].upper() or "-",
         text.RENTED[row["model"]], text.money(row["hourly"]), text.money(row["on_demand_hourly"])]
        for row in preview.rows
    ]  # fmt: skip
    head = ["VMs", "role", "zone", "machine", "GPU", "rented", "per hour each", "on demand"]
    first, *words = str(preview).splitlines()
    below = "".join(f"<div>{escape(each)}</div>" for each in words[len(rows) :])
    return f"<div>{escape(first)}{_table(head, rows)}{below}</div>"


def images_html(images: ImageList) -> str:
    """Images and builds under way, as HTML."""
    rows = images.rows
    if not rows:
        return f"<div style='white-space:pre-line'>{escape(str(images))}</div>"
    builds = "".join(f"<div style='white-space:pre-line'>{escape(str(build))}</div>" for build in images.builds)
    return f"<div>{_table(list(rows[0]), [list(row.values()) for row in rows])}{builds}</div>"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """What the doctor found, as HTML."""
    mends = any(each["mend"] for each in diagnosis.rows)
    head = ["", "about", "answer", *(["type this"] if mends else [])]
    rows = [
        [WORD_COLOURS[each["verdict"]] % escape(each["verdict"]), escape(each["subject"]), escape(each["said"]),
         *([f"<code>{escape(each['mend'])}</code>" if each["mend"] else ""] if mends else [])]
        for each in diagnosis.rows
    ]  # fmt: skip
    end = "".join(f"<div>{escape(each)}</div>" for each in diagnosis.end.splitlines())
    return f"<div>{table([row(head, 'th'), *map(row, rows)])}{end}</div>"


def preview_text(preview: Preview, printer: Any, cycle: bool) -> None:
    """What a declaration would create, for IPython's text printer."""
    printer.text(str(preview))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table([row(map(escape, head), "th"), *(row(map(escape, each)) for each in rows)])
