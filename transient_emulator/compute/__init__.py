"""The resources of Compute Engine's API, one module for each kind; creation/ has all that one instance needs."""

from __future__ import annotations
