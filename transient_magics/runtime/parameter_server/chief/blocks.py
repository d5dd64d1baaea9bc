"""Leases of record blocks: each block is read once per epoch, and none is lost with a worker. Pure.

A worker leases blocks until all of their examples have been in steps. Blocks of a worker that
leaves are leased again, so at most its leased blocks are read twice. Fast workers lease more
blocks. An epoch does not wait for the last block of the epoch before, but returned blocks go first.

Caches never evict (MinIO in CoorDL). A worker gets blocks that its cache has, then blocks that no
cache has, then others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from ....protocol.chief_messages import Lease, Leased, LeasedBlock
from ....protocol.vm_events import TrainData, TrainDetour, TrainReread
from ...files.blocks import Index

MAX_LEASED = 512
"""Most blocks that one worker may lease, whatever it requests."""

EVERY = 30.0
"""Seconds between two events about the data."""
EVERY_EPOCH = 5.0
"""Least seconds before an event that reports the end of an epoch."""


class Leases:
    """The leases of `blocks` blocks, in an order that is drawn from `seed`.

    `kept` is what `to_dict` returned for the same data. Blocks that were leased then are read
    again, unless their workers still have them.
    """

    def __init__(self, blocks: int, seed: int = 0, kept: Mapping[str, Any] | None = None) -> None:
        self.blocks = blocks
        self._seed = seed
        self._cached: dict[int, set[int]] = {}
        """Blocks in each worker's cache."""
        self._serials: dict[int, int] = {}
        """Serial number of each worker's last report."""
        self.returned = 0
        """Blocks that were returned by workers that left."""
        self.complete = 0
        """Epochs of which all blocks were read."""
        self._begun = 0
        """Epochs of which blocks were leased."""
        self._pending: dict[int, list[int]] = {}
        """Blocks that are not leased, in order, by epoch."""
        self._leased: dict[int, dict[int, int]] = {}
        """Leased blocks and their epochs, by worker."""
        self._left: dict[int, int] = {}
        """Number of blocks that are not read, by epoch."""
        self.rewind(kept)

    def rewind(self, kept: Mapping[str, Any] | None) -> None:
        """Go back to `kept`, or to the beginning.

        What was read since is read again. Caches keep their blocks.
        """
        self._pending = {}
        self._leased = {}
        self._left = {}
        self._begun = 0
        self.complete = 0
        if kept and kept.get("blocks") == self.blocks:
            self._begun = int(kept["begun"])
            self.complete = int(kept["complete"])
            self._pending = {
                int(epoch): [int(block) for block in blocks]
                for epoch, blocks in kept["pending"].items()
            }
            self._left = {epoch: len(blocks) for epoch, blocks in self._pending.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return which blocks are not read yet, as if every worker had left."""
        pending = {epoch: list(blocks) for epoch, blocks in self._pending.items()}
        for leased in self._leased.values():
            for block, epoch in leased.items():
                pending.setdefault(epoch, []).append(block)
        return {
            "blocks": self.blocks,
            "begun": self._begun,
            "complete": self.complete,
            "pending": {str(epoch): blocks for epoch, blocks in sorted(pending.items()) if blocks},
        }

    def leased_to(self, worker: int) -> frozenset[int]:
        """Return the blocks that a worker leases."""
        return frozenset(self._leased.get(worker, ()))

    def update(
        self,
        worker: int,
        leased: Iterable[int],
        done: Iterable[int],
        cached: Iterable[int] = (),
        serial: int = 0,
    ) -> None:
        """Update the leases of a worker from its report.

        Parameters
        ----------
        worker
            Number of the worker.
        leased
            Blocks that it has. Others that were leased to it are returned: the answer was lost.
            Blocks of an older lease, by a previous chief, stay its own unless others have them.
        done
            Blocks that have been in its steps.
        cached
            Blocks that its cache has, since its last report.
        serial
            Number of the report. A report that is sent again has the same number, and its `done`
            counts once. 0: every report counts.
        """
        own = self._leased.setdefault(worker, {})
        if not serial or self._serials.get(worker) != serial:
            self._serials[worker] = serial
            for block in done:
                if (epoch := own.pop(block, None)) is not None:
                    self._finish_block(epoch)
        present = frozenset(leased)
        for block in leased:
            if block in own or not 0 <= block < self.blocks:
                continue
            epoch = self._withdraw(block)
            if epoch is not None:
                own[block] = epoch
        missing = {block: epoch for block, epoch in own.items() if block not in present}
        self._return(missing)
        for block in missing:
            del own[block]
        valid = (block for block in cached if 0 <= block < self.blocks)
        self._cached.setdefault(worker, set()).update(valid)

    def take(self, worker: int, count: int) -> tuple[int, ...]:
        """Lease up to `count` more blocks to a worker; none if it already has all blocks."""
        own = self._leased.setdefault(worker, {})
        count = min(count, MAX_LEASED - len(own), self.blocks - len(own))
        leased: list[int] = []
        while len(leased) < count:
            chosen = self._choose(worker, count - len(leased))
            if not chosen:
                self._begin_epoch()
                chosen = self._choose(worker, count - len(leased))
            for block, epoch in chosen:
                own[block] = epoch
                leased.append(block)
            if not chosen:
                break
        return tuple(leased)

    def lost(self, worker: int) -> int:
        """Take the blocks of a worker that left; return their number."""
        leased = self._leased.pop(worker, {})
        self._cached.pop(worker, None)
        self._serials.pop(worker, None)
        self.returned += len(leased)
        self._return(leased)
        return len(leased)

    def _choose(self, worker: int, count: int) -> list[tuple[int, int]]:
        """Withdraw up to `count` pending blocks with their epoch, the oldest that has any."""
        own = self._leased[worker]
        cached = self._cached.get(worker, set[int]())
        cached_elsewhere = {
            block for number, blocks in self._cached.items() if number != worker for block in blocks
        }

        def preference(block: int) -> int:
            if block in cached:
                return 0
            return 2 if block in cached_elsewhere else 1

        for epoch in sorted(self._pending):
            available = [block for block in self._pending[epoch] if block not in own]
            if not available:
                continue
            available.sort(key=preference)  # stable: otherwise in the order that was drawn
            chosen = available[:count]
            taken_out = frozenset(chosen)
            self._pending[epoch] = [
                block for block in self._pending[epoch] if block not in taken_out
            ]
            return [(block, epoch) for block in chosen]
        return []

    def _begin_epoch(self) -> None:
        """Add one more epoch, in an order that is drawn."""
        order = list(range(self.blocks))
        random.Random(f"{self._seed} {self._begun}").shuffle(order)
        self._pending[self._begun] = order
        self._left[self._begun] = self.blocks
        self._begun += 1

    def _withdraw(self, block: int) -> int | None:
        """Take a block out of the oldest epoch in which it is pending; return the epoch."""
        for epoch in sorted(self._pending):
            if block in self._pending[epoch]:
                self._pending[epoch].remove(block)
                return epoch
        return None

    def _return(self, blocks: Mapping[int, int]) -> None:
        for block, epoch in blocks.items():
            self._pending[epoch].insert(0, block)

    def _finish_block(self, epoch: int) -> None:
        self._left[epoch] -= 1
        if not self._left[epoch]:
            del self._left[epoch]
            del self._pending[epoch]
            self.complete += 1


class Lending:
    """The leases of a run's blocks, with the counters of its workers. Pure.

    A lost parameter server takes the run back to its last checkpoint, and the leases with it: what
    was read since is read again. So `kept`, from which a restarted chief continues, is what
    `to_dict` returned at the last checkpoint.
    """

    def __init__(
        self, run: str, index: Index, seed: int, kept: Mapping[str, Any] | None, now: float
    ) -> None:
        self._run = run
        self._index = index
        self._leases = Leases(len(index.blocks), seed, kept)
        self._reports: dict[int, Lease] = {}
        """Last report of each worker."""
        self._reported = self.summary
        self._reported_at = now
        self._detour = False

    @property
    def summary(self) -> TrainData:
        """Event with the current counters."""
        index = self._index
        leases = self._leases
        reports = self._reports.values()
        return TrainData(
            run=self._run,
            blocks=len(index.blocks),
            records=index.records,
            bytes=index.bytes,
            epochs=leases.complete,
            again=leases.returned,
            bound=max((report.bound for report in reports), default=0),
            hits=sum(report.hits for report in reports),
            misses=sum(report.misses for report in reports),
            saved_bytes=sum(report.saved for report in reports),
            fetched_bytes=sum(report.fetched for report in reports),
            straight_bytes=sum(report.straight for report in reports),
            waited_seconds=round(sum(report.waited for report in reports), 3),
        )

    def grant(self, worker: int, lease: Lease) -> Leased:
        """Update the leases from a worker's report, and return the blocks that it gets."""
        self._reports[worker] = lease
        self._leases.update(worker, lease.held, lease.done, lease.cached, lease.serial)
        leased = self._leases.take(worker, lease.wanted)
        return Leased(blocks=tuple(self._leased_block(number) for number in leased))

    def detour(self, worker: str, lease: Lease) -> TrainDetour | None:
        """Return the event about the first worker that reads through the chief, not the bucket."""
        if not lease.detour or self._detour:
            return None
        self._detour = True
        return TrainDetour(run=self._run, worker=worker, reason=lease.detour)

    def release(self, worker: int, name: str) -> TrainReread | None:
        """Take the blocks of a worker that left; return the event about them, if there were any."""
        blocks = self._leases.lost(worker)
        if not blocks:
            return None
        return TrainReread(run=self._run, worker=name, blocks=blocks, bound=self.summary.bound)

    def due(self, now: float) -> TrainData | None:
        """Return the event with the counters if it is due."""
        summary = self.summary
        pause = EVERY_EPOCH if summary.epochs > self._reported.epochs else EVERY
        if now - self._reported_at < pause and self._reported.bound:
            return None
        if not summary.bound or summary == self._reported:
            return None
        self._reported = summary
        self._reported_at = now
        return summary

    def rewind(self, kept: Mapping[str, Any] | None) -> None:
        """Go back to the checkpoint at which `to_dict` returned `kept`; None: to the beginning."""
        self._leases.rewind(kept)

    def to_dict(self) -> Mapping[str, Any]:
        """Return what a chief needs that continues from the checkpoint that was written now."""
        return self._leases.to_dict()

    def _leased_block(self, number: int) -> LeasedBlock:
        block = self._index.blocks[number]
        return LeasedBlock(
            number=number,
            size=block.size,
            records=block.records,
            crc32c=block.crc32c,
            file=block.file,
            offset=block.offset,
        )
