"""The way of a checkpoint: the chief uploads it to a bucket, or it is copied to this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...errors import ConnectionLostError, ForeignError, RemoteError, RoomError, TrainingError
from ...journal import Event
from ...protocol import layout
from ...protocol.agent_commands import Save
from ...protocol.vm_events import (
    TrainBest,
    TrainCheckpoint,
    TrainShipped,
    TrainUnsaved,
    TrainUnshipped,
)
from .checkpoint_copy import copy_checkpoints
from .chief_line import ChiefLine

log = logging.getLogger(__name__)

SHIP_SECONDS = 120.0
INTO_BUCKET_SECONDS = 60.0
CHECKPOINTS = "checkpoints"
"""The source of problems with checkpoints."""
_LAST_SAVE_SECONDS = 120.0
"""A checkpoint has gigabytes, and the disk may be busy with another one."""
_RETRY_SECONDS = 2.0
_POLL_SECONDS = 0.5


class Shipments:
    """The checkpoints of one run. Its chief uploads them if the run has a place in a bucket.

    Parameters
    ----------
    folder
        The run's folder on this machine.
    chief
        The connection to its chief.
    note
        Takes a problem: its source and a sentence, empty once it is solved.
    to_bucket
        Whether the run has a place in a bucket.
    """

    def __init__(
        self, folder: Path, chief: ChiefLine, note: Callable[[str, str], None], *, to_bucket: bool
    ) -> None:
        self._name = folder.name
        self._folder = folder
        self._chief = chief
        self._note = note
        self._by_hand = not to_bucket
        self._saved_step = -1
        self._asked_step = -1
        self._shipped_step = -1
        self._to_ship = asyncio.Event()
        self._shipping = asyncio.Lock()
        self._saved = asyncio.Event()
        self._unsaved = ""
        self._shipped = asyncio.Event()

    def note(self, event: Event) -> None:
        """Note that the chief saved or uploaded a checkpoint, or could not."""
        match event:
            case TrainCheckpoint():
                self._saved_step = event.step
                self._unsaved = ""
                if event.asked:
                    self._asked_step = event.step
                    self._saved.set()
                self._to_ship.set()
            case TrainBest():
                self._to_ship.set()
            case TrainUnsaved():
                self._unsaved = event.reason
                self._saved.set()
            case TrainShipped():
                self._shipped_step = event.step
                self._by_hand = False
                self._shipped.set()
            case TrainUnshipped():
                self._by_hand = True
                self._shipped.set()
                self._to_ship.set()
            case _:
                pass

    async def save(self) -> None:
        """Save now and upload or copy. Raises RemoteError, TrainingError or OSError."""
        self._saved.clear()
        self._unsaved = ""
        asked = self._chief.link()
        try:
            await self._chief.ask(Save(run=self._name))
        except TrainingError as refused:
            # No chief runs there now, which does not mean that saving failed.
            raise RemoteError(refused.what, where=refused.where) from refused
        try:
            async with asyncio.timeout(_LAST_SAVE_SECONDS):
                while not self._saved.is_set():
                    if self._chief.link() is not asked:
                        raise ConnectionLostError(
                            "The parameter server's VM was lost while it saved"
                        )
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_POLL_SECONDS):
                            await self._saved.wait()
        except TimeoutError:
            raise TrainingError(
                f"no checkpoint was written within {_LAST_SAVE_SECONDS:.0f} s"
            ) from None
        if self._unsaved:
            raise TrainingError(self._unsaved)
        if not await self._in_bucket(self._asked_step):
            await self._ship()

    def wait_no_more(self) -> None:
        """Stop waiting for a checkpoint: the run is over."""
        self._saved.set()

    async def keep_shipping(self) -> None:
        """Copy checkpoints that the chief does not upload, as they are written, until cancelled."""
        while True:
            await self._to_ship.wait()
            self._to_ship.clear()
            if not self._by_hand:
                continue
            try:
                await self._ship()
                self._note(CHECKPOINTS, "")
            except (RemoteError, OSError) as error:
                log.warning("%s: a checkpoint is not here yet: %s", self._name, error)
                # A lost connection comes back, so it is not noted.
                if isinstance(error, ForeignError | RoomError):
                    what = f"Checkpoints of {self._name} are not copied here: {error}"
                    self._note(CHECKPOINTS, what)
                await asyncio.sleep(_RETRY_SECONDS)
                self._to_ship.set()

    async def ship_the_last(self, *, saved: bool) -> None:
        """Copy the last checkpoint if it is not in the bucket. Raises RemoteError or OSError.

        With `saved` the last checkpoint is here already and stays: if few are kept, one that is
        written while the workers end would replace it.
        """
        if not saved and (self._by_hand or self._shipped_step < self._saved_step):
            await self._ship()

    async def _in_bucket(self, step: int) -> bool:
        """Return whether this or a later checkpoint is in the bucket; wait while it is uploaded."""
        try:
            async with asyncio.timeout(INTO_BUCKET_SECONDS):
                while not self._by_hand and self._shipped_step < step:
                    self._shipped.clear()
                    await self._shipped.wait()
        except TimeoutError:
            return False
        return not self._by_hand

    async def _ship(self) -> None:
        """Copy checkpoints. Raises RemoteError or OSError, also without a VM within two minutes."""
        async with asyncio.timeout(SHIP_SECONDS):
            connection = await self._chief.connection()
        async with self._shipping:
            there = f"{layout.run_on_vm(self._name)}/{layout.CHECKPOINTS}"
            await copy_checkpoints(connection, there, self._folder / layout.CHECKPOINTS)
