"""Which worker reads which block of the records: every block once per epoch, none lost with a
worker.

A worker holds blocks under lease until every example of them has been in a step. Those of a worker
that goes come back and are leased anew, so what is read twice is at most what it held. Whoever is
fast takes more blocks. An epoch does not wait for the last block of the one before, but blocks that
came back go first. Pure.

Caches never evict (CoorDL's MinIO): whoever asks gets blocks that it has, then those that nobody
has, then others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from ....protocol.chief_messages import Lease, Leased, LeasedBlock
from ....protocol.vm_events import TrainData, TrainDetour, TrainReread
from ...files.blocks import Index

MOST_HELD = 512
"""Blocks that one worker may hold, whatever it asks for."""

EVERY = 30.0
EVERY_EPOCH = 5.0
"""Seconds between two events about the data, and after which the end of an epoch is told."""


class Leases:
    """The leases of `blocks` blocks; their order is drawn from `seed`."""

    def __init__(self, blocks: int, seed: int = 0, kept: Mapping[str, Any] | None = None) -> None:
        """`kept`: what `to_dict` gave, of the same data; what was held then is to be read again, or
        still is.
        """
        self.blocks = blocks
        self._seed = seed
        self._cached: dict[int, set[int]] = {}
        self._serials: dict[int, int] = {}
        self.returned = 0
        self.rewind(kept)

    def rewind(self, kept: Mapping[str, Any] | None) -> None:
        """Go back to `kept`, or to the begin: what was read since is to be read again. Caches have
        what they had.
        """
        self._pending: dict[int, list[int]] = {}
        self._held: dict[int, dict[int, int]] = {}
        self._left: dict[int, int] = {}
        self._begun = self.complete = 0
        if kept and kept.get("blocks") == self.blocks:
            self._begun = int(kept["begun"])
            self.complete = int(kept["complete"])
            self._pending = {
                int(epoch): [int(each) for each in those]
                for epoch, those in kept["pending"].items()
            }
            self._left = {epoch: len(those) for epoch, those in self._pending.items()}

    def to_dict(self) -> dict[str, Any]:
        """What is to be read yet, as after the loss of every worker."""
        pending = {epoch: list(those) for epoch, those in self._pending.items()}
        for held in self._held.values():
            for block, epoch in held.items():
                pending.setdefault(epoch, []).append(block)
        told = {str(epoch): those for epoch, those in sorted(pending.items()) if those}
        return {
            "blocks": self.blocks,
            "begun": self._begun,
            "complete": self.complete,
            "pending": told,
        }

    def held(self, worker: int) -> frozenset[int]:
        """The blocks that a worker holds."""
        return frozenset(self._held.get(worker, ()))

    def heard(
        self,
        worker: int,
        held: Iterable[int],
        done: Iterable[int],
        cached: Iterable[int] = (),
        serial: int = 0,
    ) -> None:
        """What a worker says: what it holds, what has been in its steps, and what its cache has
        taken.

        What it was given and does not know of (an answer that was lost) comes back; what it holds
        by an older lease, as of a chief before this one, it keeps where nobody else has it. The
        same `serial` (not 0) once more: it was not answered, and what is done is known.
        """
        mine = self._held.setdefault(worker, {})
        if not serial or self._serials.get(worker) != serial:
            self._serials[worker] = serial
            for block in done:
                if (epoch := mine.pop(block, None)) is not None:
                    self._finished(epoch)
        for block in held:
            if (
                block not in mine
                and 0 <= block < self.blocks
                and (epoch := self._withdraw(block)) is not None
            ):
                mine[block] = epoch
        known = frozenset(held)
        self._give_back({block: epoch for block, epoch in mine.items() if block not in known})
        for block in [block for block in mine if block not in known]:
            del mine[block]
        self._cached.setdefault(worker, set()).update(
            block for block in cached if 0 <= block < self.blocks
        )

    def take(self, worker: int, wanted: int) -> tuple[int, ...]:
        """Lease up to `wanted` more blocks to a worker; none where it holds all that there is."""
        mine = self._held.setdefault(worker, {})
        wanted = min(wanted, MOST_HELD - len(mine), self.blocks - len(mine))
        taken: list[int] = []
        while len(taken) < wanted:
            found = self._choose(worker, wanted - len(taken))
            if not found:
                self._begin()
                found = self._choose(worker, wanted - len(taken))
            for block, epoch in found:
                mine[block] = epoch
                taken.append(block)
            if not found:
                break
        return tuple(taken)

    def lost(self, worker: int) -> int:
        """A worker is gone: how many blocks came back."""
        held = self._held.pop(worker, {})
        self._cached.pop(worker, None)
        self._serials.pop(worker, None)
        self.returned += len(held)
        self._give_back(held)
        return len(held)

    def _choose(self, worker: int, wanted: int) -> list[tuple[int, int]]:
        """Blocks with their epochs, of the oldest epoch that has any for this worker; they are
        pending no more.
        """
        mine = self._held[worker]
        own = self._cached.get(worker, set[int]())
        others = {
            block for number, blocks in self._cached.items() if number != worker for block in blocks
        }
        for epoch in sorted(self._pending):
            there = [block for block in self._pending[epoch] if block not in mine]
            if not there:
                continue
            there.sort(
                key=lambda block: 0 if block in own else 2 if block in others else 1
            )  # stable: as drawn
            chosen = frozenset(there[:wanted])
            self._pending[epoch] = [block for block in self._pending[epoch] if block not in chosen]
            return [(block, epoch) for block in there[:wanted]]
        return []

    def _begin(self) -> None:
        """One more epoch, in an order that is drawn."""
        order = list(range(self.blocks))
        random.Random(f"{self._seed} {self._begun}").shuffle(order)
        self._pending[self._begun], self._left[self._begun] = order, self.blocks
        self._begun += 1

    def _withdraw(self, block: int) -> int | None:
        for epoch in sorted(self._pending):
            if block in self._pending[epoch]:
                self._pending[epoch].remove(block)
                return epoch
        return None

    def _give_back(self, blocks: Mapping[int, int]) -> None:
        for block, epoch in blocks.items():
            self._pending[epoch].insert(0, block)

    def _finished(self, epoch: int) -> None:
        self._left[epoch] -= 1
        if not self._left[epoch]:
            del self._left[epoch], self._pending[epoch]
            self.complete += 1


# The blocks of one run: what a worker that asks is given, and what the run tells of its data. Pure.
#
# A lost parameter server takes the run back to its last checkpoint, and the leases with it: what
# was read since is read again. So what is kept for a restarted chief is how things stood at the
# last save.


class Lending:
    """The leases of a run's blocks with the counters of those who read them."""

    def __init__(
        self, run: str, index: Index, seed: int, kept: Mapping[str, Any] | None, now: float
    ) -> None:
        """`kept`: what `saved` gave to the chief before this one."""
        self._run = run
        self._index = index
        self._leases = Leases(len(index.blocks), seed, kept)
        self._said: dict[int, Lease] = {}
        self._told = self.told
        self._told_at = now
        self._detour = False

    @property
    def told(self) -> TrainData:
        """How it stands."""
        index = self._index
        leases = self._leases
        said = self._said.values()
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
        self._told = told
        self._told_at = now
        return told

    def rewind(self, kept: Mapping[str, Any] | None) -> None:
        """The run is back at the checkpoint with which `saved` gave `kept`; None: at its begin."""
        self._leases.rewind(kept)

    def saved(self) -> Mapping[str, Any]:
        """What a chief needs that goes on from the checkpoint that was written now."""
        return self._leases.to_dict()

    def _leased(self, number: int) -> LeasedBlock:
        block = self._index.blocks[number]
        file = block.file
        offset = block.offset
        return LeasedBlock(
            number=number,
            size=block.size,
            records=block.records,
            crc32c=block.crc32c,
            file=file,
            offset=offset,
        )
