"""What `%load_ext transient_magics` sets up in a shell, and `%unload_ext` takes away.

Loading twice is harmless. Another extension's `%%train` is left to it; `%%transient_train` is ours in any case.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

from .. import panels
from ..client import Cluster, Diagnosis, ImageList, Lifetimes, Preview, Run
from ..client.handles import set_display
from ..errors import TransientError
from .answers import diagnosis_html, images_html, preview_html, preview_text
from .cells import TransientMagics
from .completion import matcher

_NAMES = ("transient_cluster", "transient_train", "train")
_SEARCH = ("transient_magics.planner.search", "Search")
_LINE_NAMES = ("transient_weather", "transient_lifetimes", "transient_plan", "transient_image", "transient_doctor")


def load(shell: Any) -> None:
    """Register magics, completion and the display of handles in an InteractiveShell."""
    magics = TransientMagics(shell)
    for kind in ("line", "cell"):
        registered = shell.magics_manager.magics[kind]
        for name in (*_NAMES, *(_LINE_NAMES if kind == "line" else ())):
            if name == "train" and not _ours(registered.get(name)):
                continue
            registered[name] = getattr(magics, name)
    if not _ours(shell.magics_manager.magics["cell"].get("train")):
        print("%%train belongs to another extension here; %%transient_train is ours.")
    if matcher not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(matcher)
    set_display(panels.bundle)
    for handle in (Cluster, Run):
        shell.display_formatter.ipython_display_formatter.for_type(handle, panels.show_handle)
    shell.display_formatter.formatters["text/html"].for_type(Preview, preview_html)
    shell.display_formatter.formatters["text/html"].for_type(Diagnosis, diagnosis_html)
    shell.display_formatter.formatters["text/html"].for_type(ImageList, images_html)
    shell.display_formatter.formatters["text/html"].for_type(Lifetimes, panels.lifetimes_html)
    shell.display_formatter.formatters["text/plain"].for_type(Preview, preview_text)
    # By name: the planner, and NumPy with it, is loaded by the first plan.
    html = shell.display_formatter.formatters["text/html"]
    html.for_type_by_name("transient_magics.planner.plan", "Plan", panels.plan_html)
    shell.display_formatter.ipython_display_formatter.for_type_by_name(*_SEARCH, panels.show_search)
    atexit.unregister(_warn_of_what_goes_on)
    atexit.register(_warn_of_what_goes_on)


def unload(shell: Any) -> None:
    """Take away what `load` registered. Clusters go on."""
    for registered in shell.magics_manager.magics.values():
        for name in (*_NAMES, *_LINE_NAMES):
            if name in registered and _ours(registered[name]):
                del registered[name]
    if matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(matcher)
    for handle in (Cluster, Run):
        shell.display_formatter.ipython_display_formatter.pop(handle, None)
    shell.display_formatter.ipython_display_formatter.pop(".".join(_SEARCH), None)
    atexit.unregister(_warn_of_what_goes_on)


def _ours(function: Any) -> bool:
    return function is None or isinstance(getattr(function, "__self__", None), TransientMagics)


def _warn_of_what_goes_on() -> None:
    """A courtesy at the end of the process: the safety is in the limits that every cluster has."""
    for cluster in TransientMagics.held.values():
        try:
            state = cluster.state
        except (OSError, TransientError):
            continue
        if state.phase in ("provisioning", "ready"):
            where = "emulated" if state.spec and state.spec.emulated else "billed"
            print(
                f"transient_magics: {cluster.name} goes on ({where}, {len(state.living)} VMs); "
                f"`transient cluster delete {cluster.name}` ends it.",
                file=sys.__stderr__,
            )
