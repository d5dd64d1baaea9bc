"""Show handles: a live panel in a notebook, HTML without a front end, text in a terminal."""

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
from .display import Display, Feed, Followed, latest_state, live_view
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
"""`publish(bundle, update=...)`: `update` replaces what was published before."""

_CELL = "cellId"
_JUPYTERLAB = "recordTiming"
"""Metadata that a page sends with a cell, and metadata that only JupyterLab sends."""
_DISPLAYS: dict[tuple[Identity, str | None], Display] = {}
_SHOWN: dict[tuple[Identity, str | None], object] = {}
_UNDELIVERED: dict[str, dict[str, Any]] = {}
"""Updates that may have been sent between two cells, by display_id."""


def show(
    cluster: Followed,
    run: str | None = None,
    *,
    feed: Feed | None = None,
    forecasts: Forecasts = ending,
) -> None:
    """Show the panel of `cluster`, or of its `run` alone, in the running cell, once per cell."""
    shell = current_shell()
    if shown_in_this_cell(shell, cluster.identity, run):
        return
    if not has_front_end(shell):
        print(status(latest_state(cluster), run))
        return
    display = _display(cluster, run, feed, forecasts)
    asked = _asked_with(shell)
    page = _CELL in asked
    publish = publisher(shell, display.display_id, between_cells=page)
    display.show(publish, page=page, in_place=_JUPYTERLAB in asked)


def show_instead(cluster: Followed, publish: Publish, *, in_place: bool) -> None:
    """Show the panel of `cluster` in place of what a page shows under a display_id."""
    display = _display(cluster, None, None, ending)
    display.show(lambda data, update: publish(data, update=True), page=True, in_place=in_place)


def publisher(shell: Any, display_id: str, *, between_cells: bool = True) -> Publish:
    """Return a function that publishes MIME bundles under a display_id.

    The first bundle goes into the running cell, later ones update it. Programs that run notebooks
    (nbclient, papermill) receive only what belongs to the running cell. Without a page
    `between_cells`, the last update is sent once more when the next cell begins.
    """
    if not between_cells:
        shell.events.register("pre_run_cell", _send_again)

    def publish(data: dict[str, Any], *, update: bool) -> None:
        _UNDELIVERED.pop(display_id, None)
        if not update:
            _send(shell, display_id, data, update=False)
            return
        # In a new context an update belongs to the running cell, not to the one that showed the
        # panel, which is over.
        contextvars.Context().run(partial(_send, shell, display_id, data, update=True))
        if not between_cells:
            _UNDELIVERED[display_id] = data

    return publish


def _send_again(*_: object) -> None:
    for display_id in list(_UNDELIVERED):
        if data := _UNDELIVERED.pop(display_id, None):
            _send(current_shell(), display_id, data, update=True)


def _send(shell: Any, display_id: str, data: dict[str, Any], *, update: bool) -> None:
    shell.display_pub.publish(
        data=data, metadata={}, transient={"display_id": display_id}, update=update
    )


def show_live(
    publish: Publish, data: dict[str, Any], make: Callable[[ModuleType], Panel], *, in_place: bool
) -> Panel | None:
    """Publish `data` with a live panel; without ipywidgets `data` alone.

    Parameters
    ----------
    publish
        Sends a bundle.
    data
        The static picture and the text.
    make
        Creates the panel, with the module of panels.
    in_place
        Whether the page puts the panel before the picture.
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
    """Return how a handle looks now, as a MIME bundle without a live view."""
    run = None
    if isinstance(handle, RecordedRun):
        run = handle.name
        handle = handle.cluster
    state = latest_state(handle)
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
    """Return the text of a cluster's panel, or of a run's."""
    now = time.time()
    if run and (found := state.of(RunState).get(run)):
        return f"{found.name} on {state.name}: {text.work_words(found, state)}"
    return text.status(state, bill(state, now), now)


def has_front_end(shell: Any) -> bool:
    """Return whether this IPython is a kernel, whose displays a front end draws."""
    return getattr(shell, "kernel", None) is not None


def is_jupyterlab(shell: Any) -> bool:
    """Return whether JupyterLab or Notebook 7 sent this cell: it puts panels into place."""
    return _JUPYTERLAB in _asked_with(shell)


def _asked_with(shell: Any) -> Mapping[str, Any]:
    """Return the metadata of the request for this cell; programs that run notebooks send none."""
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
    """Return whether work was shown in this cell already, and note it.

    A magic shows a panel and returns the handle, which IPython would show again at the end of the
    cell. `work`: the run, job or measurement that is shown alone.
    """
    if shell is None:
        return False
    cell = (id(shell), getattr(shell, "execution_count", 0))
    if _SHOWN.get((cluster, work)) == cell:
        return True
    _SHOWN[cluster, work] = cell
    return False


def current_shell() -> Any:
    """Return the IPython that runs the cell; None outside of one."""
    from IPython.core.getipython import get_ipython

    return get_ipython()


# One function that shows any handle in the running cell.


def show_handle(handle: Cluster | Handle[Any, Any]) -> None:
    """Show a cluster or work in the running cell: its panel, or text without a front end."""
    if isinstance(handle, Cluster):
        show(handle)
        return
    own = getattr(find(handle.kind, "view"), "show", None)
    if own:
        own(handle)
    else:
        _show_on_cluster(handle)


def _show_on_cluster(work: Handle[Any, Any]) -> None:
    """Show the panel of the cluster; for work that is no longer on it, a picture."""
    state = work.cluster.state
    shell = current_shell()
    view = find(work.kind, "view")
    text = getattr(view, "text_of", _line)
    if not has_front_end(shell):
        print(text(work))
        return
    current = state.works.get(work.name)
    if current is None or current in (
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
