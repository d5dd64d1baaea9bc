"""The static picture of a measurement of stalls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .snapshot import stalls as snapshot
from .twin.stalls import stalls_picture

if TYPE_CHECKING:
    from ..client.results.stalls import Report


def stalls_html(report: Report) -> str:
    """The report as HTML."""
    return stalls_picture(snapshot.stalls_view(report))
