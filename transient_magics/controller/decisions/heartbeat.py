"""Which VMs have fallen silent for good, as far as can be told from here.

A VM that Compute Engine calls running and that has not answered for a minute is given up. But
silence may also be this machine's own: while Compute Engine is not heard either nobody learns
anything from it, and where no VM answers at all (an address that the firewall does not let in any
more, a network that lets no SSH out) that is likelier than that all of them have died at once. They
train on then, and nothing is deleted.

All times are seconds of a clock that stands still while this machine sleeps: after waking up VMs
get their time.
"""

from __future__ import annotations

from collections.abc import Collection

SECONDS = 60.0
_PROMPT_SECONDS = 10.0  # an answer that took longer was itself on its way while nobody was heard


class Silence:
    """Since when each VM has been silent. One that has never answered is not known here."""

    def __init__(self) -> None:
        self._lost_at: dict[str, float] = {}
        self._told_at = 0.0
        self._none_answers = False
        self.closed = False
        """Whether the way to the VMs seems to be closed: none has answered for long."""

    def __contains__(self, vm: str) -> bool:
        return vm in self._lost_at

    def begin(self, vm: str, now: float) -> None:
        """It does not answer any more."""
        self._lost_at.setdefault(vm, now)

    def end(self, vm: str) -> None:
        """It answers, or is gone."""
        self._lost_at.pop(vm, None)

    def asked(self, began: float, now: float, *, answered: bool) -> None:
        """Compute Engine was asked which VMs it has, and has answered or not."""
        if answered and now - began <= _PROMPT_SECONDS:
            self._told_at = began
        else:
            self._begin_anew(now)

    def for_good(self, known: Collection[str], now: float) -> list[str]:
        """Those that are to be given up, of the VMs that have once answered (`known`)."""
        none_answers = len(known) > 1 and all(vm in self for vm in known)
        if self._none_answers and not none_answers:
            self._begin_anew(now)  # the first one is back, and the others have their time to follow
        self._none_answers = none_answers
        silent = [vm for vm in known if vm in self and self._told_at - self._lost_at[vm] > SECONDS]
        self.closed = none_answers and bool(silent)
        return [] if none_answers else silent

    def _begin_anew(self, now: float) -> None:
        self._lost_at = dict.fromkeys(self._lost_at, now)
