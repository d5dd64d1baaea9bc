"""transient_magics: train on cheap, revocable GPU servers without leaving the notebook.

In a notebook: `%load_ext transient_magics`. In Python: `import transient_magics as tm`, then
`tm.cluster("name")`, `tm.run("name")` and the other names in the stub (`__init__.pyi`). Each is
imported on first use.
"""

from __future__ import annotations

from typing import Any

from .imports import lazy
from .version import VERSION as __version__  # noqa: F401

__getattr__, __dir__ = lazy(__name__, __file__)


def load_ipython_extension(ipython: Any) -> None:
    """Load the extension: `%load_ext transient_magics`."""
    from .magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """Unload the extension: `%unload_ext transient_magics`."""
    from .magics import unload

    unload(ipython)
