"""A controller on a VM of its cluster (`--controller cluster`): put there, followed, attached to,
taken back.
"""

from __future__ import annotations
