"""The one thread that follows journals in this process, and revives a controller that died.

A daemon thread with its own event loop; the notebook's own loop and main thread are never used.
Whoever subscribes to a cluster is called in that thread with the folded state and the new events,
first with what is there already. While a cluster is followed its controller is watched too: the
connection to its socket breaks the moment it dies, and another one is started, with a limit and
growing pauses. Over that connection it also says what no journal can hold, such as that the disk
under the journal is full.

When the program ends, the thread ends first: it leaves its waiting and closes its watchers itself.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ... import places
from ...errors import ControllerError, HomeError
from ...journal import ClusterState, Event, follow, metrics, read, replay
from ...protocol import layout
from ...protocol.cluster_commands import Ping
from .. import commands
from ..folders import Identity

log = logging.getLogger(__name__)

Callback = Callable[[ClusterState, list[Event]], None]

_CHECK_SECONDS = 1.0
_ASK_SECONDS = 5.0
_PING = Ping().encoded
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_CALM_SECONDS = 60.0
_END_SECONDS = 2.0  # for the thread to end; Jupyter kills a kernel that takes longer than five


class Follower:
    """Follows clusters for this process. Get it from `follower()`; all methods may be called from
    any thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._watched: dict[Identity, _Watched] = {}
        self._last: list[Callable[[], Any]] = []
        self._thread = threading.Thread(target=self._run, name="transient-follower", daemon=True)
        self._thread.start()
        # Watchers of files are closed by finalizers. At exit all of these run where the first of
        # them was made, counted from the end; there is one now, so that the thread ends before any
        # watcher is closed under it.
        weakref.finalize(self, self._loop.stop).detach()
        atexit.register(self._end)

    def subscribe(self, cluster: Identity | str, callback: Callback) -> Callable[[], None]:
        """Call `callback(state, new events)` in the follower's thread from now on; returns what
        ends that.

        `cluster`: one cluster, or the name of the one that has it now.
        """
        if isinstance(cluster, str):
            identity = Identity.of(cluster)
        else:
            identity = cluster
        self.call(self._subscribe, identity, callback)
        return lambda: self.call(self._unsubscribe, identity, callback)

    def rows(
        self, path: Path, callback: Callable[[list[dict[str, Any]]], None]
    ) -> Callable[[], None]:
        """Call `callback(rows)` in the follower's thread with the metrics in the file at `path` as
        it grows.

        The file's folder must be there. Returns what ends that.
        """
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            async for rows in metrics.follow(path):
                if not _shielded(callback, rows):
                    return

        self.call(lambda: tasks.append(self._loop.create_task(run())))
        return lambda: self.call(lambda: [task.cancel() for task in tasks])

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Have the follower's thread call `function` soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def every(self, seconds: float, function: Callable[[], Any]) -> Callable[[], None]:
        """Have the follower's thread call `function` every so many seconds; returns what ends that."""
        ended = threading.Event()

        def again() -> None:
            if not ended.is_set():
                _shielded(function)
                self._loop.call_later(seconds, again)

        self.call(lambda: self._loop.call_later(seconds, again))
        return ended.set

    def at_end(self, function: Callable[[], Any]) -> Callable[[], None]:
        """Have the follower's thread call `function` when the program ends; returns what ends that."""
        self.call(self._last.append, function)
        return lambda: self.call(self._last.remove, function)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for function in self._last:
            _shielded(function)
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _end(self) -> None:
        self.call(self._loop.stop)
        self._thread.join(_END_SECONDS)

    def _subscribe(self, cluster: Identity, callback: Callback) -> None:
        if cluster not in self._watched:
            self._watched[cluster] = _Watched(cluster)
            self._watched[cluster].start(self._loop)
        self._watched[cluster].add(callback)

    def _unsubscribe(self, cluster: Identity, callback: Callback) -> None:
        watched = self._watched.get(cluster)
        if watched and watched.remove(callback):
            del self._watched[cluster]


@lru_cache(maxsize=1)
def follower() -> Follower:
    """The follower of this process, started at the first call."""
    return Follower()


class _NameReusedError(Exception):
    """Another cluster has the name of the one that is followed."""


class _Watched:
    """One cluster that is followed, for any number of callbacks."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._directory = identity.directory
        self._state = ClusterState()
        self._trouble = ""  # as the controller itself says it now
        self._lost = ""  # why it is followed no more
        self._caught_up = False
        self._callbacks: list[Callback] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = [loop.create_task(self._follow()), loop.create_task(self._keep_controller())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def add(self, callback: Callback) -> None:
        self._callbacks.append(callback)
        if self._caught_up or self._lost:
            self._tell(callback, [])

    def remove(self, callback: Callback) -> bool:
        if callback in self._callbacks:
            self._callbacks.remove(callback)
        if not self._callbacks:
            for task in self._tasks:
                task.cancel()
        return not self._callbacks

    async def _follow(self) -> None:
        latest = 0
        again = False

        def anew() -> None:
            nonlocal again
            self._check_name()
            again = True
            self._state = ClusterState()

        try:
            async for batch in follow(self._directory / layout.JOURNAL, anew):
                # After the read: a batch that was read before another cluster took the name is of
                # this one.
                self._check_name()
                self._state = replay(batch, self._state)
                self._caught_up = True
                self._tell_all(
                    [event for event in batch if event.time > latest] if again else batch
                )
                latest = max([latest, *(event.time for event in batch)])
                again = False
        except _NameReusedError:
            self._end()

    def _check_name(self) -> None:
        if self._identity.directory != self._directory:
            raise _NameReusedError

    def _end(self) -> None:
        """Report what the journal held last, which lies elsewhere now: another cluster has the
        name.
        """
        self._directory = self._identity.directory
        events = read(self._directory / layout.JOURNAL)
        new = [event for event in events if event.seq > self._state.seq]
        self._state = replay(new, self._state)
        self._caught_up = True
        self._tell_all(new)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Say why nothing more is heard, where that is not because nobody listens or the cluster is
        over.
        """
        if not task.cancelled() and (error := task.exception()):
            log.error("%s is no longer followed", self._directory.name, exc_info=error)
            self._lost = f"it is not followed here any more ({type(error).__name__}: {error}); restart the kernel"
            self._tell_all([])

    def _hear(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell_all([])

    def _tell_all(self, batch: list[Event]) -> None:
        for callback in list(self._callbacks):
            self._tell(callback, batch)

    def _tell(self, callback: Callback, batch: list[Event]) -> None:
        state = replace(self._state, trouble=self._lost or self._trouble or self._state.trouble)
        if not _shielded(callback, state, batch) and callback in self._callbacks:
            self._callbacks.remove(callback)

    async def _keep_controller(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            await self._until_controller_ends()
            if self._state.over or not self._directory.exists() or not self._identity.is_current:
                return
            if not commands.in_charge(self._directory):
                if time.monotonic() - began > _CALM_SECONDS:
                    pause = _FIRST_PAUSE
                else:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    process = commands.start_controller(self._directory)
                except (ControllerError, HomeError) as error:
                    log.error("%s", error)
                else:
                    # Leaves no zombie behind, and keeps no program from ending, as a thread of an
                    # executor would.
                    threading.Thread(
                        target=process.wait, name="transient-controller", daemon=True
                    ).start()
            await asyncio.sleep(pause)

    async def _until_controller_ends(self) -> None:
        """Hold a connection to the controller's socket: it breaks when the controller dies."""
        try:
            reader, writer = await asyncio.open_unix_connection(
                places.command_socket(self._directory.name)
            )
        except OSError:
            await asyncio.sleep(_CHECK_SECONDS)
            return
        try:
            while True:
                writer.write(_PING)
                if not (answer := await reader.readline()):
                    return
                self._hear(json.loads(answer).get("trouble", ""))
                try:
                    async with asyncio.timeout(_ASK_SECONDS):
                        await reader.read()  # returns when the controller is gone, and only then
                    return
                except TimeoutError:
                    continue
        except ConnectionError:
            return  # killed with our connection still waiting in its queue
        finally:
            self._hear("")
            writer.close()


def _shielded(function: Callable[..., Any], *arguments: Any) -> bool:
    """Call what somebody gave us. A mistake in it must not end the following for everybody else."""
    try:
        function(*arguments)
    except Exception:  # whatever a callback raises is its own affair
        log.exception("a follower's callback failed and is not called again")
        return False
    return True
