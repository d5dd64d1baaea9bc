"""Static pictures of panels: HTML and SVG of snapshots, for stored notebooks and mail."""

from __future__ import annotations
