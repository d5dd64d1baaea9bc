"""VMs as processes of this machine: booted, reached by SSH, told their metadata, revoked, ended."""

from __future__ import annotations
