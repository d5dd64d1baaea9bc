"""What a panel shows, as pure functions of the state: the snapshot that a page reads, and that its
twin is drawn of.
"""

from __future__ import annotations
