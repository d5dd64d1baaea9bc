"""The creation of instances: one (`single`), or many by one request (`bulk`)."""

from __future__ import annotations
