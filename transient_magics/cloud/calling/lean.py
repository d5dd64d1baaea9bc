"""Google's client of Compute Engine without the hundred services that nobody here asks: less than half of its import.

`import google.cloud.compute_v1` imports a client for each of them. Its `__init__` does nothing else but give names to
what its modules define; so a stand-in bears the package's name, and finds each name where it is asked for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Sequence
from typing import Any

from ...imports import uncollected

_PACKAGE = "google.cloud.compute_v1"
_MESSAGES = f"{_PACKAGE}.types.compute"


class _StandIn(types.ModuleType):
    """In the place of the package: its messages, and the clients of its services."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # who looks at any module for a name of his own is not Google's user
            raise AttributeError(name)
        messages = importlib.import_module(_MESSAGES)
        place = messages if hasattr(messages, name) else _service(name)
        if place is None:
            raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
        found = getattr(place, name)
        setattr(self, name, found)
        return found


def prepare(services: Sequence[str] = ()) -> None:
    """Have `from google.cloud import compute_v1` import only what is asked of it; import `services`.

    Changes nothing where all of the package is there already.
    """
    if _PACKAGE not in sys.modules and (found := importlib.util.find_spec(_PACKAGE)):
        stand_in = _StandIn(_PACKAGE)
        stand_in.__path__ = list(found.submodule_search_locations or ())
        stand_in.__spec__, stand_in.__file__ = found, found.origin
        sys.modules[_PACKAGE] = stand_in
    with uncollected():
        for service in services:
            importlib.import_module(f"{_PACKAGE}.services.{service}")


def _service(name: str) -> types.ModuleType | None:
    """The module of the client called `name` (InstancesClient: services.instances), if there is one."""
    words = re.findall("[A-Z][a-z0-9]*", name.removesuffix("Client"))
    module = f"{_PACKAGE}.services.{'_'.join(words).lower()}"
    if not name.endswith("Client") or importlib.util.find_spec(module) is None:
        return None
    return importlib.import_module(module)
