"""A measure of stalls in a cell: a panel to ask "what if" in, its picture where none is drawn, text in a terminal.

What is asked arrives on the kernel's thread for widgets and is computed right there, from the journal as it then is.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..client import Stalls
from ..errors import TransientError
from .display import live_view
from .show import current_shell, has_front_end, is_jupyterlab, publisher, show_live, shown_in_this_cell
from .snapshot import stalls as snapshot
from .twin.markup import picture
from .twin.stalls import stalls_picture

if TYPE_CHECKING:
    from ..client.results.stalls import Report
    from .snapshot.contract import StallAnswer
    from .widget import StallsPanel


def stalls_html(report: Report) -> str:
    """The report as HTML."""
    return stalls_picture(snapshot.stalls_view(report))


def show_stalls(stalls: Stalls) -> None:
    """Show the measure in the cell that runs now, once per cell; where there is a front end, it follows until all is
    measured."""
    shell, known = current_shell(), stalls.name in stalls.cluster.state.works
    if shown_in_this_cell(shell, stalls.cluster.identity, stalls.name):
        return
    said = str(stalls) if known else f"{stalls.name} is declared on {stalls.cluster.name}."
    if not has_front_end(shell):
        print(said)
        return
    publish, in_place = publisher(shell, f"transient-{uuid.uuid4().hex[:12]}"), is_jupyterlab(shell)
    view = snapshot.stalls_view(stalls.report) if known else snapshot.declared_view(stalls.name)

    def ask(message: Mapping[str, Any]) -> None:
        if panel and message.get("do") == "what-if":
            panel.answer = dict(answered(stalls, message))

    panel: StallsPanel | None = show_live(
        publish, {"text/plain": said, "text/html": stalls_picture(view)},
        lambda widget: widget.StallsPanel(ask, view=dict(view), answer=dict(snapshot.UNASKED)),
        in_place=in_place,
    )  # type: ignore[assignment] # fmt: skip

    def follow() -> None:
        for report in stalls.changes():
            view = snapshot.stalls_view(report)
            drawn = stalls_picture(view)
            if panel:
                panel.view = dict(view)
                drawn = picture(drawn, panel.place)
            live = live_view(panel) if panel and not in_place else {}
            publish({"text/plain": str(report), "text/html": drawn, **live}, update=True)

    if not (known and stalls.is_over(stalls.cluster.state)):
        threading.Thread(target=follow, name=f"{stalls.name} in its cell", daemon=True).start()


def answered(stalls: Stalls, message: Mapping[str, Any]) -> StallAnswer:
    """The answer to what a page asks: a step with a change, or why there is none."""
    number, vm = message.get("asked"), message.get("vm")
    asked = number if isinstance(number, int) else 0
    try:
        change = snapshot.wanted(message.get("change"))
        return snapshot.answer(stalls.what_if(vm=vm if isinstance(vm, str) else "", **change), asked)
    except TransientError as error:
        return {**snapshot.UNASKED, "asked": asked, "error": str(error)}
