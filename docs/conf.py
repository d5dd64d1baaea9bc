"""Sphinx's settings: pages in Markdown, the reference written from the code before they are read (generated.py).

The gallery is written from the stored notebooks (notebook_pages.py). The checkout has neither, so pages name what is
written as code (`%train -h`, `reference/events`), and only the built pages have links there.
"""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generated  # noqa: E402
import notebook_pages  # noqa: E402

from transient_magics import __version__  # noqa: E402

generated.write(HERE / "reference")
notebook_pages.write(HERE / "gallery")

_COMMAND = re.compile(r"`%+(?:transient_)?(\w+) -h`")
_WRITTEN = re.compile(r"`((?:reference|gallery)/\w+)`")


def link_written_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """Make links of what names a page of the reference or the gallery: `%train -h`, `reference/events`."""
    if "/" in page:
        return  # written itself

    def command(found: re.Match[str]) -> str:
        there = HERE / "reference" / f"{found[1]}.md"
        return f"[{found[0]}](reference/{found[1]}.md)" if there.exists() else found[0]

    source[0] = _WRITTEN.sub(r"[`\1`](\1.md)", _COMMAND.sub(command, source[0]))


def setup(app: Sphinx) -> None:
    """Connect what Sphinx calls."""
    app.connect("source-read", link_written_pages)


project = "transient_magics"
copyright = "its authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "transient_magics"
html_copy_source = False
smartquotes = False  # keeps the dashes of --options
pygments_style, pygments_dark_style = "friendly", "native"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
python_maximum_signature_line_length = 100
