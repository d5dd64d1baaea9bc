"""Which worker reads which block of the records: every block once per epoch, none lost with a worker.

A worker holds blocks under lease until every example of them has been in a step. Those of a worker that goes come back
and are leased anew, so what is read twice is at most what it held. Whoever is fast takes more blocks. An epoch does not
wait for the last block of the one before, but blocks that came back go first. Pure.

Caches never evict (CoorDL's MinIO): whoever asks gets blocks that it has, then those that nobody has, then others.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

MOST_HELD = 512
"""Blocks that one worker may hold, whatever it asks for."""


class Leases:
    """The leases of `blocks` blocks; their order is drawn from `seed`."""

    def __init__(self, blocks: int, seed: int = 0, kept: Mapping[str, Any] | None = None) -> None:
        """`kept`: what `to_dict` gave, of the same data; what was held then is to be read again, or still is."""
        self.blocks, self._seed = blocks, seed
        self._cached: dict[int, set[int]] = {}
        self._serials: dict[int, int] = {}
        self.returned = 0
        self.rewind(kept)

    def rewind(self, kept: Mapping[str, Any] | None) -> None:
        """Go back to `kept`, or to the begin: what was read since is to be read again. Caches have what they had."""
        self._pending: dict[int, list[int]] = {}
        self._held: dict[int, dict[int, int]] = {}
        self._left: dict[int, int] = {}
        self._begun = self.complete = 0
        if kept and kept.get("blocks") == self.blocks:
            self._begun, self.complete = int(kept["begun"]), int(kept["complete"])
            self._pending = {int(epoch): [int(each) for each in those] for epoch, those in kept["pending"].items()}
            self._left = {epoch: len(those) for epoch, those in self._pending.items()}

    def to_dict(self) -> dict[str, Any]:
        """What is to be read yet, as after the loss of every worker."""
        pending = {epoch: list(those) for epoch, those in self._pending.items()}
        for held in self._held.values():
            for block, epoch in held.items():
                pending.setdefault(epoch, []).append(block)
        told = {str(epoch): those for epoch, those in sorted(pending.items()) if those}
        return {"blocks": self.blocks, "begun": self._begun, "complete": self.complete, "pending": told}

    def held(self, worker: int) -> frozenset[int]:
        """The blocks that a worker holds."""
        return frozenset(self._held.get(worker, ()))

    def heard(
        self, worker: int, held: Iterable[int], done: Iterable[int], cached: Iterable[int] = (), serial: int = 0
    ) -> None:
        """What a worker says: what it holds, what has been in its steps, and what its cache has taken.

        What it was given and does not know of (an answer that was lost) comes back; what it holds by an older lease, as
        of a chief before this one, it keeps where nobody else has it. The same `serial` (not 0) once more: it was not
        answered, and what is done is known.
        """
        mine = self._held.setdefault(worker, {})
        if not serial or self._serials.get(worker) != serial:
            self._serials[worker] = serial
            for block in done:
                if (epoch := mine.pop(block, None)) is not None:
                    self._finished(epoch)
        for block in held:
            if block not in mine and 0 <= block < self.blocks and (epoch := self._withdraw(block)) is not None:
                mine[block] = epoch
        known = frozenset(held)
        self._give_back({block: epoch for block, epoch in mine.items() if block not in known})
        for block in [block for block in mine if block not in known]:
            del mine[block]
        self._cached.setdefault(worker, set()).update(block for block in cached if 0 <= block < self.blocks)

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
        """Blocks with their epochs, of the oldest epoch that has any for this worker; they are pending no more."""
        mine, own = self._held[worker], self._cached.get(worker, set[int]())
        others = {block for number, blocks in self._cached.items() if number != worker for block in blocks}
        for epoch in sorted(self._pending):
            there = [block for block in self._pending[epoch] if block not in mine]
            if not there:
                continue
            there.sort(key=lambda block: 0 if block in own else 2 if block in others else 1)  # stable: as drawn
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
