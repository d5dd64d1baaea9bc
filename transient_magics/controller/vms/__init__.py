"""A cluster's VMs: requested, reached, watched over SSH, deleted.

`fleet` has them all, `link` is one; `machines` says what a request holds, `access` gives the
clients and the ways in.
"""

from __future__ import annotations
