"""Files of a run: checkpoints, records and archives, and their transfers to workers and buckets."""

from __future__ import annotations
