"""Showing handles: a live panel in a notebook, HTML where there is no front end, text in a
terminal.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..client import Cluster, Handle, focus, follower, text
from ..client.folders import Identity
from ..client.forecaster import ending
from ..client.recorded_run import RecordedRun
from ..journal import ClusterState, RunState, bill
from ..kinds import find
from .display import Display, Feed, Followed, known, live_view
from .feeds import Forecasts
from .sections import sections
from .snapshot.curves import curves
from .snapshot.view import shown_run, view
from .static.markup import picture
from .static.panel import html

if TYPE_CHECKING:
    from .widget import Panel

log = logging.getLogger(__name__)

Publish = Callable[..., None]
"""`publish(bundle, update=...)`: whether it takes the place of what was published before."""

_CELL = "cellId"
_JUPYTERLAB = "recordTiming"
"""What a page says when it asks for a cell, and what only JupyterLab says."""
_DISPLAYS: dict[tuple[Identity, str | None], Display] = {}
_SHOWN: dict[tuple[Identity, str | None], object] = {}
_UNHEARD: dict[str, dict[str, Any]] = {}
"""By display_id, what may have come between two cells."""


def show(
    cluster: Followed,
    run: str | None = None,
    *,
    feed: Feed | None = None,
    forecasts: Forecasts = ending,
) -> None:
    """Show the panel of `cluster` (of its `run` alone) in the cell that runs now, once per cell."""
    shell = current_shell()
    if shown_in_this_cell(shell, cluster.identity, run):
        return
    if not has_front_end(shell):
        print(status(known(cluster), run))
        return
    display = _display(cluster, run, feed, forecasts)
    asked = _asked_with(shell)
    page = _CELL in asked
    publish = publisher(shell, display.display_id, between_cells=page)
    display.show(publish, page=page, in_place=_JUPYTERLAB in asked)


def show_instead(cluster: Followed, publish: Publish, *, in_place: bool) -> None:
    """Show the panel of `cluster` instead of what was published under a display_id, which a page
    shows.
    """
    display = _display(cluster, None, None, ending)
    display.show(lambda data, update: publish(data, update=True), page=True, in_place=in_place)


def publisher(shell: Any, display_id: str, *, between_cells: bool = True) -> Publish:
    """Publishes MIME bundles under a display_id: the first time into the cell that runs now, then
    as updates of it.

    Programs that run notebooks (nbclient, papermill) hear only what belongs to the cell that runs
    now. Where nobody listens `between_cells`, the last update is sent once more when the next cell
    begins.
    """
    if not between_cells:
        shell.events.register("pre_run_cell", _say_again)

    def publish(data: dict[str, Any], *, update: bool) -> None:
        _UNHEARD.pop(display_id, None)
        if not update:
            _send(shell, display_id, data, update=False)
            return
        # In a context of its own, an update belongs to whichever cell runs now and not to the one
        # that showed the panel, which is over.
        contextvars.Context().run(partial(_send, shell, display_id, data, update=True))
        if not between_cells:
            _UNHEARD[display_id] = data

    return publish


def _say_again(*_: object) -> None:
    for display_id in list(_UNHEARD):
        if data := _UNHEARD.pop(display_id, None):
            _send(current_shell(), display_id, data, update=True)


def _send(shell: Any, display_id: str, data: dict[str, Any], *, update: bool) -> None:
    shell.display_pub.publish(
        data=data, metadata={}, transient={"display_id": display_id}, update=update
    )


def show_live(
    publish: Publish, data: dict[str, Any], make: Callable[[ModuleType], Panel], *, in_place: bool
) -> Panel | None:
    """Publish `data` with the panel that `make` builds of the panels' module; without ipywidgets
    `data` alone.

    `in_place`: the page puts the panel before the HTML by itself.
    """
    try:
        from . import widget
    except ImportError as error:
        log.info("no live panel: %s", error)
        publish(data, update=False)
        return None
    panel = make(widget)
    data = {**data, "text/html": picture(data["text/html"], panel.place)}
    publish(data if in_place else {**data, **live_view(panel)}, update=False)
    return panel


def bundle(handle: Cluster | RecordedRun) -> dict[str, Any]:
    """What a handle looks like now, as a MIME bundle without a live view (to be stored or nested)."""
    if isinstance(handle, RecordedRun):
        cluster = handle.cluster
        run = handle.name
    else:
        cluster = handle
        run = None
    state = known(cluster)
    now = time.time()
    shown = shown_run(state, run)
    snapshot = view(state, bill(state, now), now, run)
    return {
        "text/plain": status(state, run),
        "text/html": html(
            snapshot,
            curves(state, shown) if shown else None,
            {} if run else sections(state, now),
        ),
    }


def status(state: ClusterState, run: str | None = None) -> str:
    """The text of a cluster's panel, or of a run's."""
    now = time.time()
    if run and (found := state.of(RunState).get(run)):
        return f"{found.name} on {state.name}: {text.work_words(found, state)}"
    return text.status(state, bill(state, now), now)


def has_front_end(shell: Any) -> bool:
    """Whether this IPython is a kernel, whose displays somebody else draws."""
    return getattr(shell, "kernel", None) is not None


def is_jupyterlab(shell: Any) -> bool:
    """Whether JupyterLab (or Notebook 7, which is made of it) asked for this cell. It puts panels
    into their places.
    """
    return _JUPYTERLAB in _asked_with(shell)


def _asked_with(shell: Any) -> Mapping[str, Any]:
    """What the request for this cell said beside its code; programs that run notebooks say nothing."""
    parent = getattr(shell.kernel, "get_parent", dict)() or {}
    return parent.get("metadata", {})


def _display(
    cluster: Followed, run: str | None, feed: Feed | None, forecasts: Forecasts
) -> Display:
    key = (cluster.identity, run)
    if key not in _DISPLAYS:
        _DISPLAYS[key] = Display(cluster, run, feed or follower(), forecasts)
    return _DISPLAYS[key]


def shown_in_this_cell(shell: Any, cluster: Identity, work: str | None) -> bool:
    """A magic shows a panel and returns the handle, which IPython would show again at the end of
    the cell.

    `work`: the run, job or measure on the cluster that is shown by itself.
    """
    if shell is None:
        return False
    cell = (id(shell), getattr(shell, "execution_count", 0))
    if _SHOWN.get((cluster, work)) == cell:
        return True
    _SHOWN[cluster, work] = cell
    return False


def current_shell() -> Any:
    """The IPython that runs the cell; None outside of one."""
    from IPython.core.getipython import get_ipython

    return get_ipython()


# One function that shows any handle in the running cell.


def show_handle(handle: Cluster | Handle[Any, Any]) -> None:
    """Show a cluster or work in the running cell: its panel, or text where there is no front end."""
    if isinstance(handle, Cluster):
        show(handle)
        return
    own = getattr(find(handle.kind, "view"), "show", None)
    if own:
        own(handle)
    else:
        _show_on_cluster(handle)


def _show_on_cluster(work: Handle[Any, Any]) -> None:
    """Show the panel of the cluster, or a picture of work that is over and not on that panel any
    more.
    """
    state = work.cluster.state
    shell = current_shell()
    view = find(work.kind, "view")
    text = getattr(view, "text_of", _line)
    if not has_front_end(shell):
        print(text(work))
        return
    known = state.works.get(work.name)
    if known is None or known in (
        *focus.trained(state),
        *focus.of_kind(state, work.kind),
    ):
        show(work.cluster)
        return
    picture = getattr(view, "picture", _line_html)
    shell.display_pub.publish(data={"text/plain": text(work), "text/html": picture(work)})


def _line(work: Handle[Any, Any]) -> str:
    return f"{work.name} on {work.cluster.name}: {work.words}"


def _line_html(work: Handle[Any, Any]) -> str:
    return work._repr_html_()
