"""The VMs' network: namespaces, cables, addresses, firewall rules, and access to the emulator."""

from __future__ import annotations
