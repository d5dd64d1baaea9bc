"""Decisions as pure functions of what is known: which VMs to ask for, and where; which to give up;
who has workers.
"""

from __future__ import annotations
