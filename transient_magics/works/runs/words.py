"""Runs in words. The texts are in `client.text`, because panels and results of the frame draw runs."""

from __future__ import annotations

from ...client.text.states import run_words, was_stopped
from ...journal import ClusterState, Event, RunState

QUIET = ()


def work_words(run: RunState, cluster: ClusterState | None) -> str:
    """Return what a run does, or how it ended, on a cluster in this state."""
    return run_words(run, cluster)


def work_phase(run: RunState) -> str:
    """Return the phase of a run: `stopped` where it ended before its last step because it was
    stopped.
    """
    return "stopped" if was_stopped(run) else run.phase


def event_words(event: Event) -> str:
    """Return nothing: `client.text.events` has the words for events of runs."""
    return ""
