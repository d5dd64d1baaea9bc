"""The VMs' network: namespaces, cables, addresses, firewall rules as the kernel's, and who may talk to the emulator."""

from __future__ import annotations
