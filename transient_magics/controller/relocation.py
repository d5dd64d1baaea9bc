"""A move of the cluster, carried out: what it costs, its begin, and the runs handed over to the VMs that have come.

What is next `decisions/moving` says, from the journal alone. Handing over may be begun again by another controller:
until `cluster.relocated` is written the VMs that were there have the runs, ended processes are started again on them,
and whatever was saved is the newest that there is.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from ..catalog import DISK_GB, INTERNET, transfer_price
from ..errors import RemoteError, TrainingError
from ..journal import ClusterState, RunState, events, now
from ..journal.declared import agree, agree_to_move, run_folder
from ..protocol import layout
from ..runtime.files.checkpoints import Checkpoints
from ..spec import PARAMETER_SERVER, ClusterSpec
from .decisions.moving import Arrive, Stay, meant
from .record import Recorder
from .runs.conduct import Runs
from .tasks import Tasks
from .vms.fleet import Fleet

log = logging.getLogger(__name__)

_GIB = 2**30
_PAUSE_SECONDS = 2.0
_ASK_SECONDS = 5.0


class Mover:
    """Moves the cluster in `directory`."""

    def __init__(self, directory: Path, recorder: Recorder, runs: Runs) -> None:
        self._directory, self._recorder, self._runs = directory, recorder, runs

    @property
    def _state(self) -> ClusterState:
        return self._recorder.state

    async def offer(self, wanted: ClusterSpec, fleet: Fleet | None) -> dict[str, object]:
        """What a move would cost: bytes and dollars for what follows, the rates before and after, both ends.

        Raises ClusterError where there can be none.
        """
        followed, dollars = await self._followed(wanted, fleet)
        known, new = self._recorder.spec, meant(self._state, wanted, now(), dollars)
        return {
            "bytes": followed, "dollars": dollars, "hourly_before": known.hourly, "hourly": new.hourly,
            "ends_at_before": known.ends_at, "ends_at": new.ends_at,
        }  # fmt: skip

    async def begin(self, wanted: ClusterSpec, fleet: Fleet | None) -> None:
        """Begin to move. The same again while it moves there is the same move. Raises ClusterError."""
        if (going := self._state.relocation) and (going.spec.groups, going.spec.zones) == (wanted.groups, wanted.zones):
            return
        _, dollars = await self._followed(wanted, fleet)
        new = meant(self._state, wanted, now(), dollars)
        agree_to_move(self._directory, new)
        self._recorder.record(events.ClusterRelocating(spec=new.to_dict()))

    def carry_out(self, decision: Arrive | Stay, fleet: Fleet, tasks: Tasks) -> None:
        """Do what is next."""
        match decision:
            case Stay(why):
                tasks.cancel("move")
                self._stay(why)
            case Arrive():
                tasks.do("move", lambda: self._arrive(decision, fleet))

    def _stay(self, why: str) -> None:
        self._recorder.record(events.ClusterStayed(reason=why))
        agree_to_move(self._directory, None)

    async def _arrive(self, decision: Arrive, fleet: Fleet) -> None:
        relocation = self._state.relocation
        assert relocation
        try:
            followed, dollars = 0, 0.0
            if decision.save:
                followed, dollars = await self._followed(relocation.spec, fleet)
            await self._runs.hand_over(decision.leaves, save=decision.save)
        except TrainingError as error:
            fleet.recall(decision.leaves)
            self._stay(f"no checkpoint could be saved: {error}")
        except (RemoteError, OSError) as error:  # it is decided upon again, until that has taken too long
            log.warning("the runs are not handed over yet: %s", error)
            fleet.recall(decision.leaves)
            await asyncio.sleep(_PAUSE_SECONDS)
        except asyncio.CancelledError:  # the move is given up
            fleet.recall(decision.leaves)
            raise
        else:
            agree(self._directory, relocation.spec)
            agree_to_move(self._directory, None)
            self._recorder.record(
                events.ClusterRelocated(leaves=decision.leaves, transferred=followed, dollars=dollars)
            )

    async def _followed(self, wanted: ClusterSpec, fleet: Fleet | None) -> tuple[int, float]:
        """How many bytes of the runs that go on follow the cluster, and what they cost.

        A checkpoint comes through the bucket, or through this machine; data come from the bucket where records are
        shared there, else from the parameter server. Nothing follows where the parameter servers stay in their zone.
        """
        known = self._recorder.spec
        between = transfer_price(known.home_zone, wanted.home_zone).dollars_per_gib
        if wanted.home_zone == known.home_zone:
            return 0, 0.0
        checkpoints = INTERNET.dollars_per_gib if known.bucket is None else between
        bytes_, dollars = 0, 0.0
        for run in [each for each in self._state.turns if self._state.has_begun(each)]:
            saved, data = self._checkpoint_bytes(run), await self._data_bytes(run, fleet)
            bytes_ += saved + data
            dollars += (saved * checkpoints + data * between) / _GIB
        return bytes_, dollars

    def _checkpoint_bytes(self, run: RunState) -> int:
        """Of the newest one that is here, or what was counted of the model."""
        folder = run_folder(self._directory, run.name) / layout.CHECKPOINTS
        steps = Checkpoints(folder).steps()
        files = folder.glob(f"model.ckpt-{steps[0]}.*") if steps else ()
        return sum(path.stat().st_size for path in files) or run.variable_bytes

    async def _data_bytes(self, run: RunState, fleet: Fleet | None) -> int:
        """Of its data, as its parameter server says, which has no room for more."""
        first = next((vm for vm in self._state.serving if (vm.role, vm.slot) == (PARAMETER_SERVER, 0)), None)
        link = fleet.link(first.name) if fleet and first else None
        if link is None:
            return 0
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                connection = await link.connection(run.name)
                told = await connection.run(f"du -sb {layout.run_on_vm(run.name)}/data | cut -f1")
            return min(max(0, int(told)), DISK_GB * _GIB)
        except (RemoteError, OSError, ValueError) as error:
            log.warning("%s: nobody says how large its data are: %s", run.name, error)
            return 0
