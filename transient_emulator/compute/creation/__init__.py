"""Instances made: one (`single`), many at once (`bulk`), or none, for want of quota, capacity or right (`refusals`)."""

from __future__ import annotations
