"""The journal of a cluster: typed events in one append-only file, and the resulting state.

One process appends (`Journal`), and any number of processes follow (`read`, `follow`). All of them
fold the same events into the same `ClusterState`. Cost is computed from that state and never
stored. Per-second metrics of a run are a separate stream (`metrics`), drawn as averages over time
spans (`RunSeries`). Declarations and agreements of this machine's user are separate files
(`declared`), which a journal cannot change.
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
