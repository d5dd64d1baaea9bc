"""One function that shows any handle in the running cell."""

from __future__ import annotations

from ..client import Bag, Cluster, Dask, Job, Run, Stalls, Study, foreground
from ..journal import ClusterState
from .bag import bag_panel_html, bag_text
from .job import show_job
from .show import current_shell, has_front_end, show
from .stalls import show_stalls
from .study import study_panel_html, study_text


def show_handle(handle: Cluster | Run | Study | Job | Bag | Dask | Stalls) -> None:
    """Show a cluster or work in the running cell: its panel, or text where there is no front end."""
    match handle:
        case Cluster():
            show(handle)
        case Run():
            show(handle.cluster, handle.name)
        case Job():
            show_job(handle)
        case Stalls():
            show_stalls(handle)
        case Study() | Bag() | Dask():
            _show_on_cluster(handle)


def _show_on_cluster(work: Study | Bag | Dask) -> None:
    """Show the panel of the cluster, or a picture of work that is over and not on that panel any more."""
    state = work.cluster.state
    shell = current_shell()
    if not has_front_end(shell):
        print(_text(work))
    elif work.name not in state.kind_by_name or work.name in _on_panel(state):
        show(work.cluster)
    else:
        shell.display_pub.publish(data={"text/plain": _text(work), "text/html": _picture(work)})


def _on_panel(state: ClusterState) -> set[str]:
    """Return the names of the studies, bags and Dask clusters on the panel of a cluster."""
    shown = (*foreground.studies(state), *foreground.bags(state), *foreground.dasks(state))
    return {work.name for work in shown}


def _text(work: Study | Bag | Dask) -> str:
    match work:
        case Study():
            return study_text(work)
        case Bag():
            return bag_text(work)
        case Dask():
            return f"{work.name} on {work.cluster.name}: {work.words}"


def _picture(work: Study | Bag | Dask) -> str:
    match work:
        case Study():
            return study_panel_html(work)
        case Bag():
            return bag_panel_html(work)
        case Dask():
            return work._repr_html_()
