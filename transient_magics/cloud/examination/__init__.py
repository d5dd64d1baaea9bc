"""Checks before anything is created: can a project have these VMs, and what to type if not."""

from __future__ import annotations
