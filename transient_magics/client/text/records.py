"""How a run reads records that come in blocks, as one reads it."""

from __future__ import annotations

from ...journal import events
from .words import count, size


def data_words(told: events.TrainData) -> str:
    """Data, epochs, hits and misses of the caches, and how often each byte has been copied so far."""
    words = f"{size(told.bytes)} in {count(told.blocks, 'block')}, a worker {told.bound} of them at a time at most"
    if told.epochs:
        words += f"; {count(told.epochs, 'epoch')} read"
    if told.hits:
        share = f"{100 * told.hits / (told.hits + told.misses):.0f}%"
        words += (
            f"; {count(told.hits, 'block')} ({share}) from caches, {size(told.saved_bytes)} saved"
        )
    if told.misses:
        words += f"; {count(told.misses, 'block')} copied, {size(told.fetched_bytes)}"
    if told.straight_bytes and told.fetched_bytes:
        words += (
            f" ({100 * told.straight_bytes / told.fetched_bytes:.0f}% straight from the bucket)"
        )
    if told.bytes and told.fetched_bytes > told.bytes:
        words += f", each byte {told.fetched_bytes / told.bytes:.1f} times"
    words += f"; {count(told.again, 'block')} read again" if told.again else ""
    if told.waited_seconds >= 1:
        words += f"; {told.waited_seconds:,.0f} s waited for records"
    return words
