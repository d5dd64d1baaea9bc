"""Sphinx's settings: pages in Markdown, the reference written from the code before they are read (generated.py).

The gallery is written from the stored notebooks (notebook_pages.py).
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generated  # noqa: E402
import notebook_pages  # noqa: E402

from transient_magics import __version__  # noqa: E402

generated.write(HERE / "reference")
notebook_pages.write(HERE / "gallery")

project = "transient_magics"
copyright = "its authors, Apache-2.0"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "transient_magics"
html_copy_source = False
smartquotes = False  # --options are no dashes
pygments_style, pygments_dark_style = "friendly", "native"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
python_maximum_signature_line_length = 100
