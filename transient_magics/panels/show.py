"""Showing handles: a live panel in a notebook, HTML where there is no front end, text in a terminal."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..client import Cluster, Run, follower, text
from ..client.forecasts import ending
from ..journal import ClusterState, bill
from .curves import curves
from .display import Display, Feed, Followed, known, live_view
from .outlook import Forecasts
from .twin import html
from .view import shown_run, view

if TYPE_CHECKING:
    from .widget import Panel

log = logging.getLogger(__name__)

Publish = Callable[..., None]
"""`publish(bundle, update=...)`: whether it takes the place of what was published before."""

_DISPLAYS: dict[tuple[str, float, str | None], Display] = {}
_SHOWN: dict[tuple[str, str | None], object] = {}


def show(cluster: Followed, run: str | None = None, *, feed: Feed | None = None, forecasts: Forecasts = ending) -> None:
    """Show the panel of `cluster` (of its `run` alone) in the cell that runs now, once per cell."""
    shell = current_shell()
    if _shown_in_this_cell(shell, cluster.name, run):
        return
    if not has_front_end(shell):
        print(status(known(cluster), run))
        return
    display = _display(cluster, run, feed, forecasts)
    display.show(publisher(shell, display.display_id), page=_asked_by_page(shell))


def show_in_place(cluster: Followed, publish: Publish) -> None:
    """Show the panel of `cluster` in the place of what was published under a display_id, which a page shows."""
    _display(cluster, None, None, ending).show(lambda data, update: publish(data, update=True), page=True)


def publisher(shell: Any, display_id: str) -> Publish:
    """Publishes MIME bundles under a display_id: the first time into the cell that runs now, then as updates of it."""

    def publish(data: dict[str, Any], *, update: bool) -> None:
        transient = {"display_id": display_id}
        send = partial(shell.display_pub.publish, data=data, metadata={}, transient=transient, update=update)
        # In a context of its own, an update belongs to whichever cell runs now and not to the one that showed the
        # panel, which is over: nbclient and papermill would drop it.
        if update:
            contextvars.Context().run(send)
        else:
            send()

    return publish


def show_live(publish: Publish, data: dict[str, Any], make: Callable[[ModuleType], Panel]) -> Panel | None:
    """Publish `data` with the panel that `make` builds of the panels' module; without ipywidgets `data` alone."""
    try:
        from . import widget
    except ImportError as error:
        log.info("no live panel: %s", error)
        publish(data, update=False)
        return None
    panel = make(widget)
    publish({**data, **live_view(panel)}, update=False)
    return panel


def show_run(run: Run) -> None:
    """Show the panel of one run in the cell that runs now."""
    show(run.cluster, run.name)


def show_handle(handle: Cluster | Run) -> None:
    """Show whatever the handle stands for."""
    if isinstance(handle, Run):
        show_run(handle)
    else:
        show(handle)


def bundle(handle: Cluster | Run) -> dict[str, Any]:
    """What a handle looks like now, as a MIME bundle without a live view (for whoever stores or nests it)."""
    cluster, run = (handle.cluster, handle.name) if isinstance(handle, Run) else (handle, None)
    state, now = known(cluster), time.time()
    shown = shown_run(state, run)
    snapshot = view(state, bill(state, now), now, run)
    return {
        "text/plain": status(state, run),
        "text/html": html(snapshot, curves(state, shown) if shown else None),
    }


def status(state: ClusterState, run: str | None = None) -> str:
    """The text of a cluster's panel, or of a run's."""
    now = time.time()
    if run and (found := state.runs.get(run)):
        return f"{found.name} on {state.name}: {text.run_words(found, state)}"
    return text.status(state, bill(state, now), now)


def has_front_end(shell: Any) -> bool:
    """Whether this IPython is a kernel, whose displays somebody else draws."""
    return getattr(shell, "kernel", None) is not None


def _asked_by_page(shell: Any) -> bool:
    """Whether a page asked for this cell: pages name the cell in their request, programs that run notebooks do not."""
    parent = getattr(shell.kernel, "get_parent", dict)() or {}
    return "cellId" in parent.get("metadata", {})


def _display(cluster: Followed, run: str | None, feed: Feed | None, forecasts: Forecasts) -> Display:
    spec = known(cluster).spec
    key = (cluster.name, spec.declared_at if spec else 0.0, run)
    if key not in _DISPLAYS:
        _DISPLAYS[key] = Display(cluster, run, feed or follower(), forecasts)
    return _DISPLAYS[key]


def _shown_in_this_cell(shell: Any, name: str, run: str | None) -> bool:
    """A magic shows a panel and returns the handle, which IPython would show again at the end of the cell."""
    cell = (id(shell), getattr(shell, "execution_count", 0))
    if _SHOWN.get((name, run)) == cell:
        return True
    _SHOWN[name, run] = cell
    return False


def current_shell() -> Any:
    """The IPython that runs the cell; None outside of one."""
    from IPython.core.getipython import get_ipython

    return get_ipython()
