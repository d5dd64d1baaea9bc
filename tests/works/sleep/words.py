"""States and events of sleeps in words."""

from __future__ import annotations

from ...client.text.words import count
from ...journal import ClusterState, Event, VmState
from ...protocol.checks import plain
from ...spec import render_duration
from .events import SleepBegan, SleepInterrupted, SleepWoke
from .fold import SleepState

QUIET = ()
TONES = {SleepInterrupted: "warn"}
"""Colours of events on a panel."""


def work_words(sleep: SleepState, cluster: ClusterState | None) -> str:
    """Return `sleeps on worker-1 for 30 s, after 1 revocation`, or how it ended."""
    after = ""
    if sleep.interruptions:
        after = f", after {count(sleep.interruptions, 'revocation')}"
    if sleep.failures:
        after += f", after {count(sleep.failures, 'failure')}"
    if sleep.over:
        reason = f": {plain(sleep.reason)}" if sleep.reason else ""
        return f"{sleep.phase}{reason}{after}"
    if sleep.stop:
        return f"ends: {sleep.stop.reason}"
    if not sleep.vm:
        return f"waits for 1 worker{after}"
    return f"sleeps on {sleep.vm} for {render_duration(sleep.spec.seconds)}{after}"


def user_of(sleep: SleepState, vm: VmState) -> str:
    """Return the name of a sleep that uses the VM; else nothing."""
    if vm.name == sleep.vm and not sleep.over:
        return sleep.name
    return ""


def event_words(event: Event) -> str:
    """Return what happened to a sleep; an empty text for other events."""
    match event:
        case SleepBegan():
            return f"{event.sleep} begins on {event.vm} (attempt {event.attempt})"
        case SleepWoke() if event.reason:
            return f"{event.sleep} failed: {event.reason}"
        case SleepWoke():
            return f"{event.sleep} woke after {event.seconds:.1f} s"
        case SleepInterrupted():
            return f"{event.sleep} starts again: {event.reason}"
    return ""
