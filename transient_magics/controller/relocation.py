"""Move a cluster: the costs, the beginning, and the handover of runs to the new VMs.

`decisions.relocation` decides the next step from the journal alone. Another controller may repeat
the handover: until `cluster.relocated` is written, the old VMs have the runs, ended processes are
started again on them, and the saved state is the newest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..catalog import INTERNET, transfer_price
from ..errors import RemoteError, TrainingError
from ..journal import ClusterState, events, now
from ..journal.declared import agree, agree_to_move
from ..spec import ClusterSpec
from .decisions.relocation import CancelMove, FinishMove, meant
from .record import Recorder
from .tasks import Tasks
from .vms.fleet import Fleet
from .works import Works

log = logging.getLogger(__name__)

_GIB = 2**30
_PAUSE_SECONDS = 2.0


class Mover:
    """Mover of the cluster in `directory`, with all of its work."""

    def __init__(self, directory: Path, recorder: Recorder, works: Collection[Works[Any]]) -> None:
        self._directory = directory
        self._recorder = recorder
        self._works = works

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    async def offer(self, target: ClusterSpec) -> dict[str, object]:
        """Return the costs of a move: bytes and dollars for what follows, and rates and ends.

        Rates and ends are those before and after. Raises ClusterError if the cluster cannot move.
        """
        followed, dollars = await self._followed(target)
        present = self._recorder.spec
        new = meant(self._state, target, now(), dollars)
        return {
            "bytes": followed,
            "dollars": dollars,
            "hourly_before": present.hourly,
            "hourly": new.hourly,
            "ends_at_before": present.ends_at,
            "ends_at": new.ends_at,
        }

    async def begin(self, target: ClusterSpec) -> None:
        """Begin to move, unless the cluster moves there already. Raises ClusterError."""
        if (going := self._state.relocation) and (going.spec.groups, going.spec.zones) == (
            target.groups,
            target.zones,
        ):
            return
        _, dollars = await self._followed(target)
        new = meant(self._state, target, now(), dollars)
        agree_to_move(self._directory, new)
        self._recorder.record(events.ClusterRelocating(spec=new.to_dict()))

    def carry_out(self, decision: FinishMove | CancelMove, fleet: Fleet, tasks: Tasks) -> None:
        """Carry out the decision."""
        match decision:
            case CancelMove(why):
                tasks.cancel("move")
                self._stay(why)
            case FinishMove():
                tasks.do("move", lambda: self._arrive(decision, fleet))

    def _stay(self, why: str) -> None:
        self._recorder.record(events.ClusterStayed(reason=why))
        agree_to_move(self._directory, None)

    async def _arrive(self, decision: FinishMove, fleet: Fleet) -> None:
        relocation = self._state.relocation
        assert relocation
        try:
            followed = 0
            dollars = 0.0
            if decision.save:
                followed, dollars = await self._followed(relocation.spec)
            for works in self._works:
                await works.hand_over(decision.leaves, save=decision.save)
        except TrainingError as error:
            fleet.allow_work(decision.leaves)
            self._stay(f"no checkpoint could be saved: {error}")
        except (
            RemoteError,
            OSError,
        ) as error:
            # The step is decided again, until the move has taken too long.
            log.warning("the runs are not handed over yet: %s", error)
            fleet.allow_work(decision.leaves)
            await asyncio.sleep(_PAUSE_SECONDS)
        except asyncio.CancelledError:
            # The move is cancelled.
            fleet.allow_work(decision.leaves)
            raise
        else:
            agree(self._directory, relocation.spec)
            agree_to_move(self._directory, None)
            self._recorder.record(
                events.ClusterRelocated(
                    leaves=decision.leaves, transferred=followed, dollars=dollars
                )
            )

    async def _followed(self, target: ClusterSpec) -> tuple[int, float]:
        """Return the bytes of active work that follow the cluster, and their cost in US dollars.

        A checkpoint is copied through the bucket, or through this machine. Data come from the
        bucket if records are shared there, otherwise from the parameter server. Nothing follows if
        the parameter servers stay in their zone.
        """
        present = self._recorder.spec
        if target.home_zone == present.home_zone:
            return 0, 0.0
        between = transfer_price(present.home_zone, target.home_zone).dollars_per_gib
        if present.bucket is None:
            checkpoints = INTERNET.dollars_per_gib
        else:
            checkpoints = between
        size = 0
        dollars = 0.0
        for works in self._works:
            saved, data = await works.moving_bytes()
            size += saved + data
            dollars += (saved * checkpoints + data * between) / _GIB
        return size, dollars
