"""The blocks of one run: what a worker that asks is given, and what the run tells of its data. Pure.

A lost parameter server takes the run back to its last checkpoint, and the leases with it: what was read since is read
again. So what is kept for a restarted chief is how things stood at the last save.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....protocol.chief_messages import Lease, Leased, LeasedBlock
from ....protocol.vm_events import TrainData, TrainDetour, TrainReread
from ...files.blocks import Index
from .leases import Leases

EVERY, EVERY_EPOCH = 30.0, 5.0
"""Seconds between two events about the data, and after which the end of an epoch is told."""


class Lending:
    """The leases of a run's blocks with the counters of those who read them."""

    def __init__(self, run: str, index: Index, seed: int, kept: Mapping[str, Any] | None, now: float) -> None:
        """`kept`: what `saved` gave to the chief before this one."""
        self._run, self._index = run, index
        self._leases = Leases(len(index.blocks), seed, kept)
        self._said: dict[int, Lease] = {}
        self._told, self._told_at = self.told, now
        self._detour = False

    @property
    def told(self) -> TrainData:
        """How it stands."""
        index, leases, said = self._index, self._leases, self._said.values()
        return TrainData(
            run=self._run,
            blocks=len(index.blocks),
            records=index.records,
            bytes=index.bytes,
            epochs=leases.complete,
            again=leases.returned,
            bound=max((each.bound for each in said), default=0),
            hits=sum(each.hits for each in said),
            misses=sum(each.misses for each in said),
            saved_bytes=sum(each.saved for each in said),
            fetched_bytes=sum(each.fetched for each in said),
            straight_bytes=sum(each.straight for each in said),
            waited_seconds=round(sum(each.waited for each in said), 3),
        )

    def asked(self, worker: int, lease: Lease) -> Leased:
        """What the worker with this number is given."""
        self._said[worker] = lease
        self._leases.heard(worker, lease.held, lease.done, lease.cached, lease.serial)
        taken = self._leases.take(worker, lease.wanted)
        return Leased(blocks=tuple(self._leased(number) for number in taken))

    def detour(self, worker: str, lease: Lease) -> TrainDetour | None:
        """What is to be told of a worker's way around the bucket: of the first one, once."""
        if not lease.detour or self._detour:
            return None
        self._detour = True
        return TrainDetour(run=self._run, worker=worker, reason=lease.detour)

    def lost(self, worker: int, name: str) -> TrainReread | None:
        """A worker is gone; what is to be told of the blocks that it held, if there were any."""
        if not (blocks := self._leases.lost(worker)):
            return None
        return TrainReread(run=self._run, worker=name, blocks=blocks, bound=self.told.bound)

    def due(self, now: float) -> TrainData | None:
        """What is to be told now, if something is."""
        told = self.told
        pause = EVERY_EPOCH if told.epochs > self._told.epochs else EVERY
        if now - self._told_at < pause and self._told.bound:
            return None
        if not told.bound or told == self._told:
            return None
        self._told, self._told_at = told, now
        return told

    def rewind(self, kept: Mapping[str, Any] | None) -> None:
        """The run is back at the checkpoint with which `saved` gave `kept`; None: at its begin."""
        self._leases.rewind(kept)

    def saved(self) -> Mapping[str, Any]:
        """What a chief needs that goes on from the checkpoint that was written now."""
        return self._leases.to_dict()

    def _leased(self, number: int) -> LeasedBlock:
        block = self._index.blocks[number]
        file, offset = block.file, block.offset
        return LeasedBlock(
            number=number, size=block.size, records=block.records, crc32c=block.crc32c, file=file, offset=offset
        )
