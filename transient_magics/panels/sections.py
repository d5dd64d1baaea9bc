"""The sections of a cluster's panel, such as the table of a study: each kind of work may have one,
in its `view`.

| name in `view` | returns | without it |
|---|---|---|
| `sections(state, now)` | the snapshots of its section, one for each piece of work | a line for each |
| `pace(state)` | how many times longer than usual to wait until they are sent again | required with `sections` |
| `section_html(snapshot)` | the static picture of one of them | required with `sections` |
| `more_words(work, state)`, `last_words(work, state)` | what its line says before and after the cost | nothing |
| `show(handle)` | nothing: it shows the work in the running cell | the panel of the cluster |
| `text_of(handle)`, `picture(handle)` | work that is not on the panel of its cluster | a line |

The page draws the sections of the kinds that `widgets/cluster.js` lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from ..journal import ClusterState
from ..kinds import parts

Sections = Mapping[str, Sequence[Mapping[str, Any]]]
"""By kind of work the snapshots of its section."""


@cache
def section_views() -> Mapping[str, ModuleType]:
    """Return the views of the kinds that have a section, by kind."""
    return {kind: view for kind, view in parts("view").items() if hasattr(view, "sections")}


def sections(state: ClusterState, now: float) -> Sections:
    """Return what a cluster's panel shows in sections at `now`, in seconds since 1970."""
    return {kind: view.sections(state, now) for kind, view in section_views().items()}


def pace(state: ClusterState) -> float:
    """Return how many times longer than usual to wait until the sections are sent again: many
    points take long.
    """
    return max(view.pace(state) for view in section_views().values())


def sections_html(found: Sections) -> str:
    """Return the static pictures of all sections."""
    views = section_views()
    return "".join(views[kind].section_html(snapshot) for kind in found for snapshot in found[kind])
