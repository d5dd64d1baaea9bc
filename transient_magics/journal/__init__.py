"""The journal: what happened to a cluster, as typed events in one append-only file, and the state
that they add up to.

One process appends (`Journal`), any number follow (`read`, `follow`), and everybody folds the same
events into the same `ClusterState`. Cost is computed from that state and never stored. Per-second
metrics of a run are a stream of their own (`metrics`), drawn as averages over spans of time
(`RunSeries`). What a journal cannot change lies beside it (`declared`): what this machine's user
declared and agreed to.
"""

from ..clock import Clock, SteadyClock, now
from . import events, metrics
from .cost import Bill, Cost, Projection, at_the_end, bill, costs
from .events import Event, decode, encode
from .folding import fold, replay
from .reading import KeptState, decode_lines, follow, kept, known_states, read
from .series import RunSeries
from .state import (
    MOST_FAILED_BOOTS,
    ClusterState,
    Relocation,
    RunState,
    VmState,
    WorkerState,
    boot_key,
    unknown_run,
)
from .store import Journal
from .work import Work, Works

__all__ = [
    "MOST_FAILED_BOOTS",
    "Bill",
    "Clock",
    "ClusterState",
    "Cost",
    "Event",
    "Journal",
    "KeptState",
    "Projection",
    "Relocation",
    "RunSeries",
    "RunState",
    "SteadyClock",
    "VmState",
    "Work",
    "WorkerState",
    "Works",
    "at_the_end",
    "bill",
    "boot_key",
    "costs",
    "decode",
    "decode_lines",
    "encode",
    "events",
    "fold",
    "follow",
    "kept",
    "known_states",
    "metrics",
    "now",
    "read",
    "replay",
    "unknown_run",
]
