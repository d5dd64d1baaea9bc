"""The live panels: anywidgets, each with the few values that its page draws.

A cluster's panel is made when it is first shown; from then on it is changed by the follower's
thread alone. What the page asks for arrives on whatever thread the kernel uses for such messages,
and is handed on at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anywidget
import ipywidgets
import traitlets
from comm.base_comm import BaseComm
from IPython.core.getipython import get_ipython

from . import assets
from .sections import Sections
from .snapshot.curves import tail

_ASKED: ContextVar[Mapping[str, Any]] = ContextVar("asked", default={})  # noqa: B039 - nobody changes it
"""The page's wish for a state that is being answered; nothing elsewhere."""


class CellFreeComm(BaseComm):
    """A channel to the page whose messages belong to no cell.

    ipykernel hands the page's answers to the thread that sent last: as part of a cell that would be
    the main one, and a button would wait for every cell that is running or queued. This way the
    page's own choice counts, which is a thread for widgets (a subshell) where the kernel has them.
    Also, programs that run notebooks store no live view.

    A page that is loaded again asks each widget for its state where the kernel is slow (ipywidgets
    waits four seconds for all at once), and draws none before it has a state that says which wish
    it answers.
    """

    def handle_msg(self, msg: Any) -> None:
        asks = msg["content"]["data"].get("method") == "request_state"
        token = _ASKED.set(msg if asks else {})
        try:
            super().handle_msg(msg)
        finally:
            _ASKED.reset(token)

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        kernel = _kernel()
        kernel.session.send(
            kernel.iopub_socket,
            msg_type,
            {"data": data or {}, "comm_id": self.comm_id, **keys},
            metadata=metadata or {},
            parent=_ASKED.get(),
            ident=self.topic,
            buffers=buffers,
        )


def _kernel() -> Any:
    return getattr(get_ipython(), "kernel", None)


class Panel(anywidget.AnyWidget):
    """A panel in the page. `ask(message)` is called with what the reader asks for.

    `place`: the class of its static pictures, before which a page of JupyterLab draws it
    (widgets/mount.js); named after the model, which the page finds by it (widgets/hearing.js).
    """

    _css = assets.path("panel.css")
    place = traitlets.Unicode().tag(sync=True)

    def __init__(self, ask: Callable[[Mapping[str, Any]], None], **state: Any) -> None:
        model_id = uuid.uuid4().hex
        super().__init__(model_id=model_id, place=f"transient-{model_id}", **state)
        self.on_msg(
            lambda _widget, content, _buffers: (
                ask(content) if isinstance(content, Mapping) else None
            )
        )

    def open(self) -> None:
        """Open the channel, unless that is done; where this is no ipykernel, the usual one."""
        if self.comm is None and hasattr(_kernel(), "iopub_socket"):
            self.comm = CellFreeComm(
                target_name="jupyter.widget",
                comm_id=self._model_id,
                data={"state": self.get_state(), "buffer_paths": []},
                metadata={"version": ipywidgets.__protocol_version__},
            )
        else:
            super().open()


class ClusterPanel(Panel):
    """A view of one cluster, or of one of its runs.

    `view`: the latest snapshot; `curves`: what the charts are drawn from, as they were a while ago,
    and `tail`: what came since; `speeds`: of the workers of other runs; `sections`: by kind of work
    what `panels.sections` has, which is sent less often than the rest; `log`: the last lines of the
    worker that the reader asked for; `picture`: the static part of its MIME bundle, as last stored.
    """

    _esm = assets.path("cluster.js")
    view = traitlets.Dict().tag(sync=True)
    curves = traitlets.Dict().tag(sync=True)
    tail = traitlets.Dict().tag(sync=True)
    speeds = traitlets.List().tag(sync=True)
    sections = traitlets.Dict().tag(sync=True)
    log = traitlets.Dict().tag(sync=True)
    picture = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        view: Mapping[str, Any],
        curves: Mapping[str, Any],
        sections: Sections,
        ask: Callable[[Mapping[str, Any]], None],
    ) -> None:
        super().__init__(
            ask, view=dict(view), curves={**curves, "number": 1}, sections=dict(sections)
        )

    def show(self, view: Mapping[str, Any]) -> None:
        """Send a snapshot to every page that shows this panel."""
        self.view = dict(view)

    def show_curves(self, curves: Mapping[str, Any]) -> None:
        """Send the curves as they are now: what is new, if the pages have the rest."""
        behind: Any = tail(self.curves, curves) if self.curves.get("time") and curves else None  # type: ignore[arg-type]
        with self.hold_sync():
            if behind is None:
                self.curves = {**curves, "number": self.curves["number"] + 1}
            self.tail = behind or {}

    def resend(self) -> None:
        """Send the latest of everything once more."""
        self.send_state(["view", "curves", "tail", "speeds", "sections"])


class DeclarePanel(Panel):
    """Where a cluster is put together. `menu`: what there is; `choices`: what is chosen; `offer`:
    what that means.
    """

    _esm = assets.path("declare.js")
    menu = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    offer = traitlets.Dict().tag(sync=True)


class PlanPanel(Panel):
    """A search of the catalog. `choices`: what it began with; `view`: what was found for the latest
    ones.
    """

    _esm = assets.path("plan.js")
    choices = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)


class StallsPanel(Panel):
    """A measure of stalls. `view`: what was measured so far; `answer`: what a step would take with
    what was asked.
    """

    _esm = assets.path("stalls.js")
    view = traitlets.Dict().tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)
