"""Decisions as pure functions of what is known: which VMs to ask for, and where; which to give up."""

from __future__ import annotations
