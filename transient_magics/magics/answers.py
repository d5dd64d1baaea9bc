"""What `list`, `status`, `--dry-run` and others give back, as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import panels
from ..cli.answers import Listing, Snapshot
from ..client import Diagnosis, ImageList, Preview, text
from ..journal import bill
from ..panels.static.markup import COLOURS, escape, row, table

WORD_COLOURS = {
    word: f"<span style='color:{COLOURS[colour]};white-space:nowrap'>%s</span>"
    for word, colour in (("good", "good"), ("note", "warn"), ("NOT GOOD", "bad"))
}


def listing_html(listing: Listing) -> str:
    """Clusters, as HTML."""
    rows = listing.rows
    told = "".join(f"<div>{escape(each)}</div>" for each in listing.unreadable)
    if not rows:
        return f"<div>No cluster. For example: <code>%transient_cluster k80x4</code></div>{told}"
    above = "".join(f"<div>{escape(sentence)}</div>" for sentence in listing.unattended)
    return above + _table(list(rows[0]), [list(row.values()) for row in rows]) + told


def snapshot_html(snapshot: Snapshot) -> str:
    """How a cluster was, as HTML."""
    if snapshot.forecast:
        forecast = f"<div>{escape(snapshot.forecast)}</div>"
    else:
        forecast = ""
    if snapshot.unattended:
        unattended = f"<div>{escape(snapshot.unattended)}</div>"
    else:
        unattended = ""
    shown = panels.view(snapshot.state, bill(snapshot.state, snapshot.at), snapshot.at)
    return unattended + panels.html(shown) + forecast


def preview_html(preview: Preview) -> str:
    """What a declaration would create, as HTML."""
    rows = [
        [
            str(row["count"]),
            row["role"],
            row["zone"],
            row["machine_type"],
            row["accelerator"].upper() or "-",
            text.RENTED[row["model"]],
            text.money(row["hourly"]),
            text.money(row["on_demand_hourly"]),
        ]
        for row in preview.rows
    ]
    head = ["VMs", "role", "zone", "machine", "GPU", "rented", "per hour each", "on demand"]
    first, *words = str(preview).splitlines()
    below = "".join(f"<div>{escape(each)}</div>" for each in words[len(rows) :])
    return f"<div>{escape(first)}{_table(head, rows)}{below}</div>"


def images_html(images: ImageList) -> str:
    """Images and builds under way, as HTML."""
    rows = images.rows
    if not rows:
        return f"<div style='white-space:pre-line'>{escape(str(images))}</div>"
    builds = "".join(
        f"<div style='white-space:pre-line'>{escape(str(build))}</div>" for build in images.builds
    )
    return f"<div>{_table(list(rows[0]), [list(row.values()) for row in rows])}{builds}</div>"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Return the checks of the doctor as HTML: a row for each."""
    rows = [row(["", "check", "question", "found", "fix"], "th")]
    for check in diagnosis.rows:
        result = WORD_COLOURS[check["result"]] % escape(check["result"])
        if check["fix"]:
            fix = f"<code>{escape(check['fix'])}</code>"
        else:
            fix = ""
        rows.append(
            row(
                [
                    result,
                    escape(check["check"]),
                    escape(check["question"]),
                    escape(check["found"]),
                    fix,
                ]
            )
        )
    return f"<div>{table(rows)}<div>{escape(diagnosis.end)}</div></div>"


def preview_text(preview: Preview, printer: Any, cycle: bool) -> None:
    """What a declaration would create, for IPython's text printer."""
    printer.text(str(preview))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table([row(map(escape, head), "th"), *(row(map(escape, each)) for each in rows)])
