"""What a panel shows, as pure functions of the state: the snapshot that a page reads, and its HTML twin."""

from __future__ import annotations
