"""A worker of a run that measures stalls: the same step in six arrangements, of which each has one more part."""

from __future__ import annotations
