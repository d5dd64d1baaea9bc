"""The forms of Compute Engine's API: calls, JSON, lists, filters, operations, and state on disk."""

from __future__ import annotations
