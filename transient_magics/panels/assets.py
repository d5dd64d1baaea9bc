"""Where the panels' front end lies.

In a wheel it is `transient_magics/_widgets`; in a source tree, and so in an editable install, `widgets` beside the
package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def path(name: str) -> Path:
    """The file `name` of the front end."""
    shipped = _PACKAGE / "_widgets" / name
    return shipped if shipped.exists() else _PACKAGE.parent / "widgets" / name
