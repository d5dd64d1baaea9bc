"""Decide which VMs have stopped answering for good. Pure.

A VM that Compute Engine lists as running and that has not answered for a minute is given up. But
the cause of the silence may be this machine. While Compute Engine does not answer either, no VM is
given up. If no VM answers at all, a closed path (a firewall that no longer admits this address, a
network that blocks SSH) is likelier than the death of all VMs. They continue to train, and none is
deleted.

All times are in seconds of a clock that stops while this machine sleeps, so that VMs get their full
minute after it wakes up.
"""

from __future__ import annotations

from collections.abc import Collection

SECONDS = 60.0
"""Silence after which a VM is given up, in seconds."""
_PROMPT_SECONDS = 10.0
"""A slower answer of Compute Engine was itself delayed, so it proves nothing about this machine."""


class SilentVms:
    """The VMs that have answered before and do not answer now."""

    def __init__(self) -> None:
        self._silent_since: dict[str, float] = {}
        self._latest_poll = 0.0
        """When the latest poll of Compute Engine began that was answered promptly."""
        self._none_answers = False
        self.path_closed = False
        """Whether no VM has answered for a minute, so that the path to them is likely closed."""

    def __contains__(self, vm: str) -> bool:
        return vm in self._silent_since

    def add(self, vm: str, now: float) -> None:
        """Note that a VM does not answer."""
        self._silent_since.setdefault(vm, now)

    def remove(self, vm: str) -> None:
        """Note that a VM answers, or is gone."""
        self._silent_since.pop(vm, None)

    def polled(self, began: float, ended: float, *, answered: bool) -> None:
        """Note a poll of Compute Engine, and whether it was answered."""
        if answered and ended - began <= _PROMPT_SECONDS:
            self._latest_poll = began
        else:
            self._restart(ended)

    def given_up(self, vms: Collection[str], now: float) -> list[str]:
        """Return which of `vms`, all VMs that have ever answered, are given up."""
        none_answers = len(vms) > 1 and all(vm in self for vm in vms)
        if self._none_answers and not none_answers:
            # The path is open again: the other VMs get a minute to answer, too.
            self._restart(now)
        self._none_answers = none_answers
        silent = [
            vm for vm in vms if vm in self and self._latest_poll - self._silent_since[vm] > SECONDS
        ]
        self.path_closed = none_answers and bool(silent)
        if none_answers:
            return []
        return silent

    def _restart(self, now: float) -> None:
        """Count the silence of all VMs from now on."""
        self._silent_since = dict.fromkeys(self._silent_since, now)
