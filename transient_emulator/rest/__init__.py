"""Compute Engine's API, whatever it is about: calls, JSON, lists and filters, operations, what is kept on disk."""

from __future__ import annotations
