"""Calls of Google's services: credentials, clients, limits, retries, and typed errors."""

from __future__ import annotations
