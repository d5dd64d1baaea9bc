"""Before anything is made: whether a project can have these VMs, and what to type where it cannot."""

from __future__ import annotations
