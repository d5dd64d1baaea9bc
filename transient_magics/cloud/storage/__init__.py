"""Cloud Storage: objects in buckets, and tokens that open one place in one of them."""

from __future__ import annotations
