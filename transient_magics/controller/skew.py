"""A clock of this machine that is not Compute Engine's, by which VMs end at a moment: what is said
of it, and done.

Where it is off by more than a minute no cluster is made: its journal, its bill and a controller on
a VM would each have another time, and setting a clock takes a minute. A cluster that is there goes
on, its limits by Compute Engine's clock.
"""

from __future__ import annotations

from .. import journal
from ..spec import render_duration

MOST_SECONDS = 60.0


def wrong(ahead: float) -> str:
    """What is wrong with a clock that is so many seconds ahead of Compute Engine's (negative:
    behind), or nothing.
    """
    if abs(ahead) <= MOST_SECONDS:
        return ""
    way = "ahead of" if ahead > 0 else "behind"
    return (
        f"This machine's clock is {render_duration(abs(ahead))} {way} Compute Engine's, by which VMs end; to set it: "
        "sudo timedatectl set-ntp true"
    )


def ill_dated(declared_at: float) -> str:
    """What is wrong with a declaration that a clock which has been set since has dated, or nothing."""
    away = declared_at - journal.now()
    if away <= MOST_SECONDS:
        return ""
    return f"It was declared by a clock that was {render_duration(away)} ahead; declare it again"


def now(ahead: float) -> float:
    """The present moment (seconds since 1970): by this machine's clock, or by Compute Engine's
    where that is wrong.
    """
    return journal.now() - (ahead if wrong(ahead) else 0.0)
