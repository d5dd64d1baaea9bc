"""How a run and a measurement of stalls are shown in a cell: each has a panel of its own.

The panel of a measurement asks "what if". That arrives on the kernel's thread for widgets and is
computed right there, from the journal as it then is.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import TransientError
from ...panels.display import live_view
from ...panels.show import (
    current_shell,
    has_front_end,
    is_jupyterlab,
    publisher,
    show_live,
    shown_in_this_cell,
)
from ...panels.show import show as show_panel
from ...panels.snapshot import stalls as snapshot
from ...panels.twin.markup import picture
from ...panels.twin.stalls import stalls_picture
from .handle import Run, Stalls

if TYPE_CHECKING:
    from ...panels.snapshot.contract import StallAnswer
    from ...panels.widget import StallsPanel


def show(handle: Run | Stalls) -> None:
    """Show a run or a measurement in the running cell."""
    if isinstance(handle, Stalls):
        show_stalls(handle)
    else:
        show_panel(handle.cluster, handle.name)


def show_stalls(stalls: Stalls) -> None:
    """Show the measure in the cell that runs now, once per cell; where there is a front end, it
    follows until all is measured.
    """
    shell = current_shell()
    known = stalls.name in stalls.cluster.state.works
    if shown_in_this_cell(shell, stalls.cluster.identity, stalls.name):
        return
    if known:
        said = str(stalls)
    else:
        said = f"{stalls.name} is declared on {stalls.cluster.name}."
    if not has_front_end(shell):
        print(said)
        return
    publish = publisher(shell, f"transient-{uuid.uuid4().hex[:12]}")
    in_place = is_jupyterlab(shell)
    if known:
        view = snapshot.stalls_view(stalls.report)
    else:
        view = snapshot.declared_view(stalls.name)

    def ask(message: Mapping[str, Any]) -> None:
        if panel and message.get("do") == "what-if":
            panel.answer = dict(answered(stalls, message))

    panel: StallsPanel | None = show_live(
        publish,
        {"text/plain": said, "text/html": stalls_picture(view)},
        lambda widget: widget.StallsPanel(ask, view=dict(view), answer=dict(snapshot.UNASKED)),
        in_place=in_place,
    )  # type: ignore[assignment]

    def follow() -> None:
        for report in stalls.changes():
            view = snapshot.stalls_view(report)
            drawn = stalls_picture(view)
            if panel:
                panel.view = dict(view)
                drawn = picture(drawn, panel.place)
            if panel and not in_place:
                live = live_view(panel)
            else:
                live = {}
            publish({"text/plain": str(report), "text/html": drawn, **live}, update=True)

    if not (known and stalls.is_over(stalls.cluster.state)):
        threading.Thread(target=follow, name=f"{stalls.name} in its cell", daemon=True).start()


def answered(stalls: Stalls, message: Mapping[str, Any]) -> StallAnswer:
    """The answer to what a page asks: a step with a change, or why there is none."""
    number = message.get("asked")
    vm = message.get("vm")
    asked = number if isinstance(number, int) else 0
    try:
        change = snapshot.wanted(message.get("change"))
        return snapshot.answer(
            stalls.what_if(vm=vm if isinstance(vm, str) else "", **change), asked
        )
    except TransientError as error:
        return {**snapshot.UNASKED, "asked": asked, "error": str(error)}
