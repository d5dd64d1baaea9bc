"""The sections of a cluster's panel, such as the table of a study: one for kinds that have it.

They are in the part `view` of each kind:

| name in `view` | returns | without it |
|---|---|---|
| `sections(state, now)` | the snapshots of its section, one for each piece of work | a line for each |
| `pace(state)` | how many times longer than usual to wait until they are sent again | required with `sections` |
| `section_html(snapshot)` | the static picture of one of them | required with `sections` |
| `more_words(work, state)`, `last_words(work, state)` | what its line says before and after the cost | nothing |
| `add_progress(line, work, state)` | nothing: it adds phase and progress to a line | neither |
| `training(run, state, cost, forecast, now)`, `title(run)` | runs alone: the run that a panel shows | required of runs |
| `show(handle)` | nothing: it shows the work in the running cell | the panel of the cluster |
| `text_of(handle)`, `picture(handle)` | work that is not on the panel of its cluster | a line |

The page draws the sections of the kinds that `widgets/sections.js` lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any

from ..journal import ClusterState
from ..kinds import parts

Sections = Mapping[str, Sequence[Mapping[str, Any]]]
"""The snapshots of sections, by kind of work."""


@cache
def section_views() -> Mapping[str, ModuleType]:
    """Return the views of the kinds that have a section, by kind."""
    return {kind: view for kind, view in parts("view").items() if hasattr(view, "sections")}


def sections(state: ClusterState, now: float) -> Sections:
    """Return the sections of a cluster's panel. `now`: seconds since 1970."""
    return {kind: view.sections(state, now) for kind, view in section_views().items()}


def pace(state: ClusterState) -> float:
    """Return how many times longer than usual to wait before sections are sent again.

    Many points take long to send.
    """
    return max(view.pace(state) for view in section_views().values())


def sections_html(snapshots: Sections) -> str:
    """Return the static pictures of all sections."""
    views = section_views()
    return "".join(
        views[kind].section_html(snapshot) for kind in snapshots for snapshot in snapshots[kind]
    )
