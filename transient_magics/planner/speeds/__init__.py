"""How fast workers are, alone and together: published, learned, and between the two."""

from __future__ import annotations
