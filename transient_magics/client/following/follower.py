"""The thread that follows journals in this process, and restarts dead controllers.

It is a daemon thread with its own event loop; the loop and the main thread of a notebook are not
used. Subscribers to a cluster are called in that thread with the folded state and the new events,
and first with those that exist already. While a cluster is followed, so is its controller: the
connection to its socket breaks when it dies, and another controller is started, after growing
pauses. Over that connection, the controller also reports trouble that the journal cannot hold, such
as a full disk.

When the program ends, the thread ends first, and closes its watchers itself.
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
from functools import lru_cache, partial
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
    """Follows clusters for this process. Use `follower()`. All methods are thread-safe."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._watched: dict[Identity, _Watched] = {}
        self._last: list[Callable[[], Any]] = []
        self._thread = threading.Thread(target=self._run, name="transient-follower", daemon=True)
        self._thread.start()
        # Finalizers close the watchers of files. At exit, Python runs all finalizers together, in
        # the turn of the first one among the exit handlers. Creating one here, before the handler
        # below is registered, lets the thread end before any watcher is closed.
        weakref.finalize(self, self._loop.stop).detach()
        atexit.register(self._end)

    def subscribe(self, cluster: Identity | str, callback: Callback) -> Callable[[], None]:
        """Call a function in the follower's thread for each change of a cluster.

        Parameters
        ----------
        cluster
            The cluster, or the name that it has at present.
        callback
            Called with the state and the new events.

        Returns
        -------
        callable
            A function that ends the subscription.
        """
        if isinstance(cluster, str):
            cluster = Identity.of(cluster)
        self.call(self._subscribe, cluster, callback)
        return partial(self.call, self._unsubscribe, cluster, callback)

    def rows(
        self, path: Path, callback: Callable[[list[dict[str, Any]]], None]
    ) -> Callable[[], None]:
        """Call a function in the follower's thread with the rows of a growing file of metrics.

        Parameters
        ----------
        path
            The file. Its folder must exist.
        callback
            Called with new rows.

        Returns
        -------
        callable
            A function that ends the calls.
        """
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            async for rows in metrics.follow(path):
                if not _shielded(callback, rows):
                    return

        self.call(lambda: tasks.append(self._loop.create_task(run())))
        return lambda: self.call(lambda: [task.cancel() for task in tasks])

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Schedule a function on the follower's thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def every(self, seconds: float, function: Callable[[], Any]) -> Callable[[], None]:
        """Call a function periodically in the follower's thread; return one that ends that."""
        ended = threading.Event()

        def again() -> None:
            if not ended.is_set():
                _shielded(function)
                self._loop.call_later(seconds, again)

        self.call(lambda: self._loop.call_later(seconds, again))
        return ended.set

    def at_end(self, function: Callable[[], Any]) -> Callable[[], None]:
        """Call a function in the follower's thread at exit; return a function that cancels it."""
        self.call(self._last.append, function)
        return partial(self.call, self._last.remove, function)

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
    """Return the follower of this process, which the first call starts."""
    return Follower()


class _NameReusedError(Exception):
    """Another cluster has the name of the followed one."""


class _Watched:
    """A followed cluster and its callbacks."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._directory = identity.directory
        self._state = ClusterState()
        self._trouble = ""  # the last report of the controller
        self._lost = ""  # why it is no longer followed
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
            self._notify(callback, [])

    def remove(self, callback: Callback) -> bool:
        if callback in self._callbacks:
            self._callbacks.remove(callback)
        if not self._callbacks:
            for task in self._tasks:
                task.cancel()
        return not self._callbacks

    async def _follow(self) -> None:
        latest = 0
        restarted = False

        def restart() -> None:
            nonlocal restarted
            self._check_name()
            restarted = True
            self._state = ClusterState()

        try:
            async for batch in follow(self._directory / layout.JOURNAL, restart):
                # Checked after the read: if the cluster still has the name, the batch is its own.
                self._check_name()
                self._state = replay(batch, self._state)
                self._caught_up = True
                new = batch
                if restarted:
                    new = [event for event in batch if event.time > latest]
                self._notify_all(new)
                latest = max([latest, *(event.time for event in batch)])
                restarted = False
        except _NameReusedError:
            self._end()

    def _check_name(self) -> None:
        if self._identity.directory != self._directory:
            raise _NameReusedError

    def _end(self) -> None:
        """Report the last events of the journal, which was moved because its name was reused."""
        self._directory = self._identity.directory
        events = read(self._directory / layout.JOURNAL)
        new = [event for event in events if event.seq > self._state.seq]
        self._state = replay(new, self._state)
        self._caught_up = True
        self._notify_all(new)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report the error that ended a task."""
        if not task.cancelled() and (error := task.exception()):
            log.error("%s is no longer followed", self._directory.name, exc_info=error)
            reason = f"{type(error).__name__}: {error}"
            self._lost = f"this process no longer follows it ({reason}); restart the kernel"
            self._notify_all([])

    def _set_trouble(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._notify_all([])

    def _notify_all(self, batch: list[Event]) -> None:
        for callback in list(self._callbacks):
            self._notify(callback, batch)

    def _notify(self, callback: Callback, batch: list[Event]) -> None:
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
                    # Avoids a zombie. A thread of an executor would keep the program from exiting.
                    threading.Thread(
                        target=process.wait, name="transient-controller", daemon=True
                    ).start()
            await asyncio.sleep(pause)

    async def _until_controller_ends(self) -> None:
        """Block until the controller dies, which breaks the connection to its socket."""
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
                self._set_trouble(json.loads(answer).get("trouble", ""))
                try:
                    async with asyncio.timeout(_ASK_SECONDS):
                        await reader.read()  # returns only when the controller is gone
                    return
                except TimeoutError:
                    continue
        except ConnectionError:
            return  # killed before it accepted the connection
        finally:
            self._set_trouble("")
            writer.close()


def _shielded(function: Callable[..., Any], *arguments: Any) -> bool:
    """Call a subscriber; its exceptions must not stop the others. Return whether it succeeded."""
    try:
        function(*arguments)
    except Exception:  # a callback may raise anything
        log.exception("a follower's callback failed and is not called again")
        return False
    return True
