"""Measured stalls: each stall of a step with its interval, its removable part, and advice."""

from __future__ import annotations
