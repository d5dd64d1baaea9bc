"""How a run reads records that come in blocks, as one reads it."""

from __future__ import annotations

from ...journal import events
from .words import count, size


def data_words(told: events.TrainData) -> str:
    """Data, epochs, caches, and how often each byte has crossed the network so far."""
    words = f"{size(told.bytes)} in {count(told.blocks, 'block')}, a worker {told.bound} of them at a time at most"
    if told.epochs:
        words += f"; {count(told.epochs, 'epoch')} read"
    if read := told.saved_bytes + told.fetched_bytes:
        words += f"; {size(told.fetched_bytes)} copied"
        words += f", {size(told.saved_bytes)} ({100 * told.saved_bytes / read:.0f}%) from caches" if told.hits else ""
    if told.bytes and told.fetched_bytes > told.bytes:
        words += f", each byte {told.fetched_bytes / told.bytes:.1f} times"
    words += f"; {count(told.again, 'block')} read again" if told.again else ""
    if told.waited_seconds >= 1:
        words += f"; {told.waited_seconds:,.0f} s waited for records"
    return words
