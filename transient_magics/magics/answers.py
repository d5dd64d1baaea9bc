"""HTML of answers for notebooks: `list`, `status`, `--dry-run` and others."""

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
    """Return a list of clusters as HTML."""
    rows = listing.rows
    unreadable = "".join(map(_line, listing.unreadable))
    if not rows:
        example = "<code>%transient_cluster k80x4</code>"
        return f"<div>No cluster. For example: {example}</div>{unreadable}"
    unattended = "".join(map(_line, listing.unattended))
    return unattended + _table(list(rows[0]), [list(row.values()) for row in rows]) + unreadable


def snapshot_html(snapshot: Snapshot) -> str:
    """Return the state of a cluster as HTML."""
    shown = panels.view(snapshot.state, bill(snapshot.state, snapshot.at), snapshot.at)
    return _line(snapshot.unattended) + panels.html(shown) + _line(snapshot.forecast)


def preview_html(preview: Preview) -> str:
    """Return the preview of a declaration as HTML."""
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
    below = "".join(map(_line, words[len(rows) :]))
    return f"<div>{escape(first)}{_table(head, rows)}{below}</div>"


def images_html(images: ImageList) -> str:
    """Return images, and builds in progress, as HTML."""
    rows = images.rows
    if not rows:
        return f"<div style='white-space:pre-line'>{escape(str(images))}</div>"
    builds = "".join(
        f"<div style='white-space:pre-line'>{escape(str(build))}</div>" for build in images.builds
    )
    return f"<div>{_table(list(rows[0]), [list(row.values()) for row in rows])}{builds}</div>"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Return the checks of the doctor as HTML, with a row for each."""
    rows = [row(["", "check", "question", "found", "fix"], "th")]
    for check in diagnosis.rows:
        result = WORD_COLOURS[check["result"]] % escape(check["result"])
        fix = ""
        if check["fix"]:
            fix = f"<code>{escape(check['fix'])}</code>"
        texts = [escape(check[column]) for column in ("check", "question", "found")]
        rows.append(row([result, *texts, fix]))
    return f"<div>{table(rows)}<div>{escape(diagnosis.end)}</div></div>"


def preview_text(preview: Preview, printer: Any, cycle: bool) -> None:
    """Print the preview of a declaration with IPython's text printer."""
    printer.text(str(preview))


def _line(sentence: str) -> str:
    """Return a sentence as a block of its own, or nothing for an empty one."""
    if not sentence:
        return ""
    return f"<div>{escape(sentence)}</div>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table([row(map(escape, head), "th"), *(row(map(escape, texts)) for texts in rows)])
