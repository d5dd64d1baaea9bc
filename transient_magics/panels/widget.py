"""The live panels: anywidgets with the few values that their page draws.

The panel of a cluster is created when it is first shown. From then on only the follower's thread
changes it. Messages of the page arrive on the kernel's thread for such messages and are passed on.
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

_ASKED: ContextVar[Mapping[str, Any]] = ContextVar("asked", default={})  # noqa: B039 - read-only
"""The page's request for a state that is being answered; empty otherwise."""


class CellFreeComm(BaseComm):
    """A channel to the page whose messages belong to no cell.

    ipykernel passes replies of the page to the thread that sent last. For messages of a cell that
    is the main thread, and a button would wait for each running or queued cell. Without a cell the
    page chooses the thread: one for widgets (a subshell) if the kernel has them. Also, programs
    that run notebooks store no live view.

    A reloaded page requests the state of each widget if the kernel is slow (ipywidgets waits four
    seconds for all together). It draws a widget only after a state that names the request.
    """

    def handle_msg(self, msg: Any) -> None:
        """Handle a message of the page; keep a request for a state while it is answered."""
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
        """Send a message to the page, as a reply to its request or outside of any cell."""
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
    """A panel in the page. `ask(message)` is called with the messages of the page.

    `place` is the class of its static pictures, before which JupyterLab draws it
    (widgets/mount.js). It is named after the model, by which the page finds it
    (widgets/hearing.js).
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
        """Open the channel, unless it is open; outside of ipykernel the default one."""
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

    Attributes
    ----------
    view
        The latest snapshot.
    curves, tail
        The data of the charts at an earlier time, and the rows added since.
    speeds
        The speeds of other runs' workers.
    sections
        The sections, by kind of work, which are sent less often.
    log
        The last lines of a worker's log that the user asked for.
    picture
        The static part of its MIME bundle, as last stored.
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
        """Send a snapshot to each page that shows this panel."""
        self.view = dict(view)

    def show_curves(self, curves: Mapping[str, Any]) -> None:
        """Send the present curves: what is new, if the pages have the rest."""
        behind: Any = tail(self.curves, curves) if self.curves.get("time") and curves else None  # type: ignore[arg-type]
        with self.hold_sync():
            if behind is None:
                self.curves = {**curves, "number": self.curves["number"] + 1}
            self.tail = behind or {}

    def resend(self) -> None:
        """Send all latest data once more."""
        self.send_state(["view", "curves", "tail", "speeds", "sections"])


class DeclarePanel(Panel):
    """The panel that declares a cluster: `menu`, `choices`, and the `offer` for them."""

    _esm = assets.path("declare.js")
    menu = traitlets.Dict().tag(sync=True)
    choices = traitlets.Dict().tag(sync=True)
    offer = traitlets.Dict().tag(sync=True)


class PlanPanel(Panel):
    """A search of the catalog: its first `choices`, and the `view` of the latest result."""

    _esm = assets.path("plan.js")
    choices = traitlets.Dict().tag(sync=True)
    view = traitlets.Dict().tag(sync=True)


class StallsPanel(Panel):
    """A measurement of stalls: the `view` so far, and the `answer` to the latest question."""

    _esm = assets.path("stalls.js")
    view = traitlets.Dict().tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)
