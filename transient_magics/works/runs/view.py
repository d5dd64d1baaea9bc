"""How a run, or the measurement of stalls that it is, is shown in a cell: in a panel of its own."""

from __future__ import annotations

from ...panels.show import show as show_panel
from .handle import Run
from .stalls.handle import Stalls
from .stalls.view import show_stalls


def show(handle: Run | Stalls) -> None:
    """Show a run or a measurement of stalls in the running cell."""
    if isinstance(handle, Stalls):
        show_stalls(handle)
    else:
        show_panel(handle.cluster, handle.name)
