"""The chief's messenger to the run's bucket: has checkpoints shipped beside the training, and restored before it.

What is done is done by processes of `shipping.py`, one at a time. Checkpoints that come while one is under way are not
queued: the next to be shipped is the newest. What became of each is told as an event, `train.shipped` or
`train.unshipped`. The VM's token for the bucket ends where nobody renews it: what could not be shipped is tried again
with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

from ....errors import TrainingError
from ....protocol import jsonl
from ....protocol.events import Event
from ....protocol.measures.objective import Objective
from ....protocol.vm_events import TrainBest, TrainShipped, TrainUnshipped
from ...files.checkpoints import Checkpoints, path_of
from ...folder import RunFolder
from ...programs.running import answer

_TRIES, _FIRST_PAUSE = 5, 2.0
_MOST_SECONDS = 3600.0
_LAST_SECONDS = 180.0
_BRIEFLY_SECONDS = 60.0
_LOOK_SECONDS = 5.0


class Shipper:
    """Ships the checkpoints of the run in `folder`; `report` takes events."""

    def __init__(self, run: str, folder: RunFolder, report: Callable[[Event], None]) -> None:
        self._run, self._folder, self._report = run, folder, report
        self._due, self._settled = asyncio.Event(), asyncio.Event()
        self._settled.set()
        self._shipped, self._best = "", ""
        self.ending = False
        """The run is being stopped: what is shipped now takes no other one's place, which its result may name."""

    def due(self) -> None:
        """There is a new checkpoint."""
        self._settled.clear()
        self._due.set()

    async def keep_shipping(self) -> None:
        """Ship whatever is due, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            token = self._token()
            if not await self._ship():
                await self._due_or_other_token(token)
            if not self._due.is_set():
                self._settled.set()

    async def settled(self) -> None:
        """Wait until the newest checkpoint is in the bucket, or was refused, or three minutes have passed."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._settled.wait()
        except TimeoutError:
            print(f"the last checkpoint was not shipped within {_LAST_SECONDS:.0f} s", file=sys.stderr, flush=True)

    async def restore(self) -> None:
        """Have the bucket's newest good checkpoint in the run's folder, if none as new is there.

        Where the bucket does not answer the run goes on from what is here, and that after a minute where nothing newer
        is known to have been shipped. Raises TrainingError if nothing is here.
        """
        here = Checkpoints(self._folder.checkpoints).steps()
        if not here or here[0] < _shipped(self._folder):
            return await self._restore()
        try:
            async with asyncio.timeout(_BRIEFLY_SECONDS):
                return await self._restore()
        except TimeoutError:
            said = f"the bucket has not answered within {_BRIEFLY_SECONDS:.0f} s: the run goes on from step {here[0]}"
            print(said, file=sys.stderr, flush=True)

    async def _restore(self) -> None:
        restored: dict[str, Any] = {}
        for attempt in range(_TRIES):
            restored = await self._program("restore")
            for refused in restored.get("refused", ()):
                print(f"not restored: {refused}", file=sys.stderr, flush=True)
            if "error" not in restored:
                return
            print(f"not restored: {restored['error']}", file=sys.stderr, flush=True)
            if attempt < _TRIES - 1:
                await asyncio.sleep(_FIRST_PAUSE * 2**attempt * random.uniform(0.8, 1.2))
        if not Checkpoints(self._folder.checkpoints).steps():
            raise TrainingError(restored["error"])

    async def _due_or_other_token(self, before: object) -> None:
        while not self._due.is_set():
            if self._token() != before:
                self._due.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._due.wait()

    def _token(self) -> object:
        """What changes with every token that is brought."""
        try:
            found = self._folder.bucket_token.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    async def _ship(self) -> bool:
        for attempt in range(_TRIES):
            shipped = await self._program("ship", *(["--beside"] if self.ending else []))
            if "error" not in shipped:
                best = shipped.pop("best", None)
                if shipped.get("step") is not None and shipped["path"] != self._shipped:
                    self._shipped = shipped["path"]
                    self._report(TrainShipped(run=self._run, **shipped))
                if best and best["path"] != self._best:
                    self._best, metric = best["path"], Objective.parse(best["objective"]).metric
                    where = {"path": path_of(best["step"]), "shipped": best["path"]}
                    self._report(
                        TrainBest(run=self._run, step=best["step"], metric=metric, value=best["value"], **where)
                    )
                return True
            print(f"not shipped: {shipped['error']}", file=sys.stderr, flush=True)
            if attempt == 0:
                self._report(TrainUnshipped(run=self._run, reason=str(shipped["error"])))
                if not self._due.is_set():
                    self._settled.set()  # nobody waits for the other attempts: the controller brings it home meanwhile
            await asyncio.sleep(_FIRST_PAUSE * 2**attempt * random.uniform(0.8, 1.2))
        return False

    async def _program(self, do: str, *more: str) -> dict[str, Any]:
        self._folder.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = self._folder.logs / "shipping.log"
        return await answer("shipping", do, "--run", str(self._folder.path), *more, log=log, limit=_MOST_SECONDS)


def _shipped(folder: RunFolder) -> int:
    """The newest step that is known to have been shipped; -1 if there is none."""
    steps = [-1]
    with contextlib.suppress(OSError):
        for event in jsonl.read(folder.events):
            if event.get("kind") == TrainShipped.kind and isinstance(step := event.get("step"), int):
                steps.append(step)
    return max(steps)
