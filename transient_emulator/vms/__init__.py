"""VMs as processes of this machine: boot, SSH, metadata, preemption, end."""

from __future__ import annotations
