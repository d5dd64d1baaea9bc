"""The display of handles and logs in IPython."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol.checks import all_plain

_DISPLAY: list[Callable[[Any], Any]] = []


def set_display(function: Callable[[Any], Any]) -> None:
    """Set the function that returns the MIME bundle of a handle."""
    _DISPLAY[:] = [function]


def displayed(handle: Any) -> Any:
    """Return the MIME bundle of a handle: its repr if no function is set."""
    if _DISPLAY:
        return _DISPLAY[0](handle)
    return {"text/plain": repr(handle)}


class Log(str):
    """The log of a VM. A notebook shows its lines."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(all_plain(str(self)))
