"""Pure decisions: which VMs to request, where, and which to delete; which work gets which workers."""

from __future__ import annotations
