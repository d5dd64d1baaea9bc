"""Pure decisions: which VMs to request and delete, and which work gets which workers."""

from __future__ import annotations
