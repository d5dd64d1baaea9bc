"""How handles, and what they bring, show themselves in IPython."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..protocol.checks import all_plain

_DISPLAY: list[Callable[[Any], Any]] = []


def set_display(function: Callable[[Any], Any]) -> None:
    """Have `function(handle)` show handles in IPython (it returns a MIME bundle)."""
    _DISPLAY[:] = [function]


def displayed(handle: Any) -> Any:
    """The MIME bundle of a handle: its repr, where nothing was set."""
    if _DISPLAY:
        return _DISPLAY[0](handle)
    return {"text/plain": repr(handle)}


class Log(str):
    """What a VM wrote, which a notebook shows line by line."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(all_plain(str(self)))
