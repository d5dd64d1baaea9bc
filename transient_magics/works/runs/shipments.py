"""What the chief saved, on its way: into the run's place in a bucket by the chief itself, or
brought home from here.
"""

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
"""The source of what is told to be in their way."""
_LAST_SAVE_SECONDS = 120.0
"""A checkpoint of gigabytes, on a disk that is busy with another one."""
_TRY_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.5


class Shipments:
    """The checkpoints of the run in `folder`, whose `chief` ships them itself where it has a place
    in a bucket.

    `note` takes what is in the way: its source and a sentence, or nothing any more.
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

    def told(self, event: Event) -> None:
        """The chief says what it saved or shipped, or could not."""
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
        """Have the chief save now, and ship. Raises RemoteError, TrainingError or OSError."""
        self._saved.clear()
        self._unsaved = ""
        asked = self._chief.link()
        try:
            await self._chief.ask(Save(run=self._name))
        except (
            TrainingError
        ) as refused:  # no chief runs there yet, or any more: that says nothing of saving
            raise RemoteError(refused.what, where=refused.where) from refused
        try:
            async with asyncio.timeout(_LAST_SAVE_SECONDS):
                while not self._saved.is_set():
                    if self._chief.link() is not asked:
                        raise ConnectionLostError(
                            "The parameter server's VM was lost while it saved"
                        )
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await self._saved.wait()
        except TimeoutError:
            raise TrainingError(f"none was written within {_LAST_SAVE_SECONDS:.0f} s") from None
        if self._unsaved:
            raise TrainingError(self._unsaved)
        if not await self._in_bucket(self._asked_step):
            await self._ship()

    def wait_no_more(self) -> None:
        """Nobody saves any more."""
        self._saved.set()

    async def keep_shipping(self) -> None:
        """Bring home what only this side can, as it is written. Lives until cancelled."""
        while True:
            await self._to_ship.wait()
            self._to_ship.clear()
            if not self._by_hand:
                continue
            try:
                await self._ship()
                self._note(CHECKPOINTS, "")
            except (RemoteError, OSError) as error:
                log.warning("%s: a checkpoint is not home yet: %s", self._name, error)
                if isinstance(
                    error, ForeignError | RoomError
                ):  # not for want of a connection, which comes back
                    self._note(
                        CHECKPOINTS, f"Checkpoints of {self._name} do not come home: {error}"
                    )
                await asyncio.sleep(_TRY_AGAIN_SECONDS)
                self._to_ship.set()

    async def ship_the_last(self, *, saved: bool) -> None:
        """Bring the last checkpoint home, where it is not in the bucket. Raises RemoteError or
        OSError.

        With `saved` what the run ends with is there, and stays: where few are kept, one that is
        written while its workers end would take its place.
        """
        if not saved and (self._by_hand or self._shipped_step < self._saved_step):
            await self._ship()

    async def _in_bucket(self, step: int) -> bool:
        """Whether the checkpoint of this step, or a later one, is in the bucket; waits while it is
        on its way there.
        """
        try:
            async with asyncio.timeout(INTO_BUCKET_SECONDS):
                while not self._by_hand and self._shipped_step < step:
                    self._shipped.clear()
                    await self._shipped.wait()
        except TimeoutError:
            return False
        return not self._by_hand

    async def _ship(self) -> None:
        """Raises RemoteError or OSError, also when no VM holds the run within two minutes."""
        async with asyncio.timeout(SHIP_SECONDS):
            connection = await self._chief.connection()
        async with self._shipping:
            there = f"{layout.run_on_vm(self._name)}/{layout.CHECKPOINTS}"
            await copy_checkpoints(connection, there, self._folder / layout.CHECKPOINTS)
