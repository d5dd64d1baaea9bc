"""Where the panels' front end lies.

In a wheel it is `transient_magics/_widgets`; in a source tree, and so in an editable install, `widgets` beside the
package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def module(name: str) -> str:
    """The ES module of a panel: `page.js`, which all of them share, and the panel's own file `name`.

    A widget's module is loaded by itself, from no address, and so cannot import another file.
    """
    return "\n".join(path(each).read_text() for each in ("page.js", name))


def path(name: str) -> Path:
    """The file `name` of the front end."""
    shipped = _PACKAGE / "_widgets" / name
    return shipped if shipped.exists() else _PACKAGE.parent / "widgets" / name
