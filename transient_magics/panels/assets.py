"""Location of the panels' bundled front end, which `tools/bundle.py` builds.

In a wheel it is `transient_magics/_widgets`; in a source tree, and so in an editable install,
`widgets/dist` beside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def path(name: str) -> Path:
    """Return a file of the front end. Raises ImportError in a source tree without the bundle."""
    shipped = _PACKAGE / "_widgets" / name
    built = _PACKAGE.parent / "widgets" / "dist" / name
    found = shipped if shipped.exists() else built
    if not found.exists():
        raise ImportError(f"{found} is missing: run `make venv` or tools/bundle.py")
    return found
