"""A controller on a VM of its cluster: install, mirror, attach, and synchronize results."""

from __future__ import annotations
