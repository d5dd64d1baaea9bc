"""A panel's static twin, as pure functions of what a page is sent: HTML and SVG for stored
notebooks and mail.
"""

from __future__ import annotations
