"""`%load_ext transient_magics` and `%unload_ext transient_magics`.

Loading twice has no effect. A `%%train` or `%%sweep` of another extension remains registered;
`%%transient_train` and `%%transient_sweep` are always registered.
"""

from __future__ import annotations

import atexit
import importlib
import sys
from collections.abc import Callable
from typing import Any

from ..client.display_hook import set_display
from ..errors import TransientError
from ..kinds import WORK_MAGICS
from .cells import TransientMagics, with_body
from .completion import matcher

_SHORT = WORK_MAGICS
"""Names that another extension may have registered before."""
_WORK_NAMES = (*_SHORT, *(f"transient_{name}" for name in _SHORT))
_NAMES = ("transient_cluster", "transient_plan", "transient_stalls", *_WORK_NAMES)
_LINE_NAMES = (
    "transient_work",
    "transient_stop",
    "transient_weather",
    "transient_deflate",
    "transient_measure",
    "transient_lifetimes",
    "transient_image",
    "transient_doctor",
    "transient_help",
)

_PANELS = {  # shown as a panel
    ("client.cluster_handle", "Cluster"): "panels.show_handle",
    ("client.handle", "Handle"): "panels.show_handle",  # work of all kinds
    ("planner.search", "Search"): "panels.show_search",
}
_HTML = {
    ("client.declaring.dry_run", "Preview"): "magics.answers.preview_html",
    ("client.diagnosis", "Diagnosis"): "magics.answers.diagnosis_html",
    ("client.project.images", "ImageList"): "magics.answers.images_html",
    ("client.planning.lifetimes", "Lifetimes"): "panels.lifetimes_html",
    ("client.results.comparison", "Runs"): "panels.runs_html",
    ("client.results.comparison", "Comparison"): "panels.comparison_html",
    ("planner.plan", "Plan"): "panels.plan_html",
    ("cli.answers", "Listing"): "magics.answers.listing_html",
    ("cli.answers", "Snapshot"): "magics.answers.snapshot_html",
}
"""The function that renders each type. Both are imported when a value is shown."""
_ROOT = __name__.partition(".")[0]


def load(shell: Any) -> None:
    """Register magics, completion and the display of handles in an InteractiveShell."""
    magics = TransientMagics(shell)
    for kind, names in (("line", (*_NAMES, *_LINE_NAMES)), ("cell", _NAMES)):
        registered = shell.magics_manager.magics[kind]
        for name in names:
            if name in _SHORT and not _ours(registered.get(name)):
                continue
            if name in _WORK_NAMES:
                registered[name] = magics.work_magic(name)
            else:
                registered[name] = getattr(magics, name)
    for name in _SHORT:
        if not _ours(shell.magics_manager.magics["cell"].get(name)):
            print(f"%%{name} belongs to another extension here; %%transient_{name} is ours.")
    if matcher not in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.append(matcher)
    if with_body not in shell.input_transformers_cleanup:
        # First, before IPython's transformer turns a cell magic into a call.
        shell.input_transformers_cleanup.insert(0, with_body)
    set_display(_later("panels.bundle"))
    formatters = shell.display_formatter.formatters
    for (module, name), shows in _PANELS.items():
        shell.display_formatter.ipython_display_formatter.for_type_by_name(
            f"{_ROOT}.{module}", name, _later(shows)
        )
    for (module, name), shows in _HTML.items():
        formatters["text/html"].for_type_by_name(f"{_ROOT}.{module}", name, _later(shows))
    preview = _later("magics.answers.preview_text")
    formatters["text/plain"].for_type_by_name(
        f"{_ROOT}.client.declaring.dry_run", "Preview", preview
    )
    atexit.unregister(_warn_of_running_clusters)
    atexit.register(_warn_of_running_clusters)


def unload(shell: Any) -> None:
    """Remove the registrations of `load`. Clusters continue."""
    for registered in shell.magics_manager.magics.values():
        for name in (*_NAMES, *_LINE_NAMES):
            if name in registered and _ours(registered[name]):
                del registered[name]
    if matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(matcher)
    if with_body in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.remove(with_body)
    for module, name in _PANELS:
        shell.display_formatter.ipython_display_formatter.pop(f"{_ROOT}.{module}.{name}", None)
    atexit.unregister(_warn_of_running_clusters)


def _later(path: str) -> Callable[..., Any]:
    """Return a function that imports the function at `path` and calls it."""
    module, _, name = path.rpartition(".")

    def show(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"{_ROOT}.{module}"), name)(*arguments)

    return show


def _ours(function: Any) -> bool:
    return function is None or isinstance(getattr(function, "__self__", None), TransientMagics)


def _warn_of_running_clusters() -> None:
    """Warn about running clusters as the process ends; their limits end them in any case."""
    for cluster in TransientMagics.clusters.values():
        try:
            state = cluster.state
        except (OSError, TransientError):
            continue
        if state.phase in ("provisioning", "ready"):
            where = "billed"
            if state.spec and state.spec.emulated:
                where = "emulated"
            print(
                f"transient_magics: {cluster.name} is still running ({where}, {len(state.living)} "
                f"VMs); `transient cluster delete {cluster.name}` ends it.",
                file=sys.__stderr__,
            )
