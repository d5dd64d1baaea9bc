"""Files of a run: its checkpoints, its records, and their ways to workers and into buckets."""

from __future__ import annotations
