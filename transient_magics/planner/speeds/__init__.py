"""Speeds of workers, alone and together: published, learned, and combined."""

from __future__ import annotations
