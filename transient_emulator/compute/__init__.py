"""The resources of Compute Engine's API, one module per kind; `creation` makes instances."""

from __future__ import annotations
