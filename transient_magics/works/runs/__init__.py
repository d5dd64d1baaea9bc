"""A cluster's runs: checked before they begin, brought to the VMs, followed, their results brought home."""

from __future__ import annotations
