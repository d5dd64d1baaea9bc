"""The process that evaluates at the end of each epoch and calls the cell's callbacks, for the chief.

`programs/callbacks.py` lives as long as the run, because callbacks have memory. It connects to the
run's port. If it ends, another one begins with the epochs in the run's events.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from ....protocol import chief_messages as messages
from ...folder import RunFolder
from ...role import log
from . import events
from .programs import PASSES, ended, evaluation_done, part_before

_BEGIN_SECONDS = 300.0
"""Time limit until the callbacks were called at the beginning: TensorFlow and the cell come first."""
_CALL_SECONDS = 900.0
"""Time limit of an epoch's callbacks, besides its evaluation."""
_LONGEST_RUN = 3e8
_ATTEMPTS = 2
_GONE = (
    "the process that calls the callbacks of model.fit ended without an answer: the parameter "
    "server's VM may be short of memory"
)


class Callbacks:
    """The callbacks of one run.

    Parameters
    ----------
    folder
        Folder of the run.
    chief
        Address of the chief ("host:port").
    required
        Whether the run fails if the callbacks cannot be called. Without callbacks it does not.
    """

    def __init__(self, folder: RunFolder, chief: str, *, required: bool) -> None:
        self._required = required
        self._asking = asyncio.Lock()
        self._folder = folder
        self._chief = chief
        self._process: asyncio.Task[Any] | None = None
        self._connection: asyncio.Future[Any] | None = None
        self._closed = asyncio.Event()
        self._first = messages.Called()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use a connection of the program until it is closed."""
        if self._connection is None or self._connection.done():
            return
        self._closed.clear()
        self._connection.set_result((reader, writer))
        await self._closed.wait()

    async def begin(self) -> messages.Called:
        """Start the program, and return what the callbacks did before the first epoch."""
        return await self._ask(None, 0.0)

    async def end_epoch(
        self, request: events.Evaluate, seconds: float, *, awaited: bool
    ) -> events.EvaluationDone:
        """Evaluate a checkpoint and call the callbacks.

        Parameters
        ----------
        request
            The step, and the epoch that ends with it.
        seconds
            Time that the whole dev split may take.
        awaited
            Whether training waits for it. Otherwise training has precedence on the VM's cores.
        """
        message = messages.EpochEnded(
            step=request.step,
            last=request.last,
            seconds=seconds,
            awaited=awaited,
            before=part_before(self._folder),
        )
        if request.ended:
            message = replace(message, epoch=request.ended.number, sums=request.ended.sums)
        called = await self._ask(message, PASSES * seconds)
        if called.error and not self._required:
            return events.EvaluationDone(request.step, reason=called.error)
        done = evaluation_done(request.step, called.evaluation)
        return events.EvaluationDone(**{**vars(done), "called": called})

    async def _ask(self, request: messages.EpochEnded | None, seconds: float) -> messages.Called:
        """Send a request, and return the answer; any error is in it."""
        async with self._asking:
            return await self._answered(request, seconds)

    async def _answered(
        self, request: messages.EpochEnded | None, seconds: float
    ) -> messages.Called:
        for _ in range(_ATTEMPTS):
            try:
                reader, writer = await self._connected()
                if request is None or self._first.error:
                    return self._first
                writer.write(request.encoded)
                async with asyncio.timeout(_CALL_SECONDS + seconds):
                    return await self._answer(reader)
            except TimeoutError:
                self._end()
                return messages.Called(error="the callbacks of model.fit took too long")
            except (OSError, ValueError) as error:
                log(f"the callbacks: {error}")
                self._end()
        return messages.Called(error=_GONE)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection of the program, which is started if it does not run."""
        if self._connection is not None and not self._closed.is_set():
            return self._connection.result()
        self._connection = asyncio.get_running_loop().create_future()
        run = self._folder
        run.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._process = asyncio.create_task(
            ended(
                "callbacks",
                "--run",
                str(run.path),
                "--chief",
                self._chief,
                log=run.logs / "callbacks.log",
                limit=_LONGEST_RUN,
                beside=run,
            )
        )
        async with asyncio.timeout(_BEGIN_SECONDS):
            await asyncio.wait(
                [self._process, self._connection], return_when=asyncio.FIRST_COMPLETED
            )
            if not self._connection.done():
                raise ConnectionError("the program ended before it connected")
            reader, writer = self._connection.result()
            self._first = await self._answer(reader)
        return reader, writer

    async def _answer(self, reader: asyncio.StreamReader) -> messages.Called:
        answer = messages.read_callbacks(await reader.readline())
        if not isinstance(answer, messages.Called):
            raise ValueError("the program of the callbacks did not answer")
        return answer

    def _end(self) -> None:
        self._closed.set()
        if self._process:
            self._process.cancel()
        self._process = None
