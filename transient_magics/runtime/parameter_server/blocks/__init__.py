"""Records that come in blocks, on the chief's side: leased to workers, accounted for, sent."""

from __future__ import annotations
