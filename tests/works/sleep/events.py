"""The events of sleeps: what their VMs report, and what the controller records."""

from __future__ import annotations

from ...protocol.checks import Amount, Count, Name
from ...protocol.events import FACT, Event, event, read_foreign
from ...protocol.vm_events import VM

# What VMs report


@event("sleep.woke", FACT)
class SleepWoke(Event):
    """An attempt ended on its VM, `seconds` after its start.

    `rested`: it has slept as long as declared. `reason`, a clause, says how it failed; it is empty
    if it was woken by a stop or by a preemption notice.
    """

    sleep: Name
    attempt: Count
    seconds: Amount
    rested: bool = False
    reason: str = ""


def from_vm(line: bytes, sleep: str, attempt: int, since: int, until: int) -> Event:
    """Return the event on a line of a VM. Raises ValueError for any other line."""
    found = read_foreign(line, {SleepWoke.kind: SleepWoke}, VM, since, until)
    if (found.values["sleep"], found.values["attempt"]) != (sleep, attempt):
        raise ValueError(f"a {found.kind} event of another sleep")
    return found


# What the controller records


@event("sleep.began", FACT)
class SleepBegan(Event):
    """An attempt begins on this VM. Attempts are numbered from 1."""

    sleep: Name
    attempt: Count
    vm: Name


@event("sleep.interrupted", FACT)
class SleepInterrupted(Event):
    """An attempt is over and another one follows. `failed`: this one counts as a failure."""

    sleep: Name
    attempt: Count
    reason: str
    failed: bool = False
