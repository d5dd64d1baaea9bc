"""The live panel: one anywidget whose only state is the latest snapshot.

Made in the main thread when a panel is first shown; from then on it is changed by the follower's thread alone. What the
page asks for arrives on whatever thread the kernel uses for such messages, and is handed on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

from . import assets


class ClusterPanel(anywidget.AnyWidget):
    """A view of one cluster, or of one of its runs. `ask(message)` is called with what the page asks for."""

    _esm = assets.path("cluster.js")
    _css = assets.path("cluster.css")
    view = traitlets.Dict().tag(sync=True)

    def __init__(self, view: Mapping[str, Any], ask: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(view=dict(view))
        self.on_msg(lambda _widget, content, _buffers: ask(content) if isinstance(content, Mapping) else None)

    def show(self, view: Mapping[str, Any]) -> None:
        """Send a snapshot to every page that shows this panel."""
        self.view = dict(view)

    def resend(self) -> None:
        """Send the latest snapshot once more."""
        self.send_state("view")
