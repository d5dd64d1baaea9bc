"""Snapshots of panels: pure functions of the state, for the page and the static picture."""

from __future__ import annotations
