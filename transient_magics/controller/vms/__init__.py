"""The VMs of a cluster: request them, reach them over SSH, watch them, delete them.

`fleet` has all VMs, `link` is the connection to one. `machines` makes the requests, `access` has
the clients of Compute Engine and the ways in, `lookup` finds prices, zones and images.
"""

from __future__ import annotations
