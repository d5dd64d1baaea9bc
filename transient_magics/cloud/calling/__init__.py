"""How Google is called: in whose name, by which clients, with what limits and retries, and what
refusals mean.
"""

from __future__ import annotations
