"""One function that shows any handle in the running cell."""

from __future__ import annotations

from typing import Any

from ..client import Cluster, Handle, focus
from ..kinds import find
from .show import current_shell, has_front_end, show


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
