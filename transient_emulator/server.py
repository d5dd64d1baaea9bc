"""One emulator, from its first answer to its end: HTTP, relay, fleet, and when to leave.

It runs inside its namespaces (where there are any) and is handed what was opened outside of them. While it serves,
`emulator.json` in its state directory says where; an emulator that was killed leaves that file, its successor reads it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from transient_magics import places
from transient_magics.files import lock, write_atomically
from transient_magics.version import VERSION

from .compute.api import Api, errors
from .from_vm import FromVm
from .network import isolation, netlink
from .network.guard import Guard
from .network.isolation import Isolation
from .network.relay import Relay
from .project.api import ProjectApi
from .project.permissions import Door, charge
from .project.state import BUCKETS, STORAGE, Project
from .rest.calls import LARGEST_BODY
from .rest.operations import Operations
from .rest.store import Store
from .settings import Settings
from .storage import Endpoint, rights, tokens
from .vms.fleet import Fleet
from .vms.machine import BRIDGE, BRIDGE_ADDRESS, METADATA_ADDRESS, PREFIX, hardware_address
from .vms.shares_api import SharesApi
from .weather.api import WeatherApi
from .weather.faults import Faults
from .weather.weather import Weather

PROJECT = "emulated-project"
_HELD_SECONDS = 1.0
_STATE_SECONDS = 2.0
_LOG = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until told to end, or until nobody needs it any more."""
    asyncio.run(_Emulator(settings).run())


class _Emulator:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = Path(settings.state)
        self._isolation = Isolation(settings.isolation)
        self._stop = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._active, self._serving, self._requests = time.monotonic(), 0, 0
        self._leaving: int | None = None
        guard = Guard(settings.sources, settings.owner)
        self._project = Project(self._state, fresh=settings.fresh)
        self._storage = Endpoint(self._state / "storage", self._project)
        self._operations = Operations(Store(self._state / "operations"))
        weather = Weather(self._state, settings.boot, settings.notice, self._isolation is not Isolation.NONE)
        self._fleet = Fleet(
            self._state, Path(settings.homes), self._isolation, guard.allows, self._operations, weather,
            on_change=self._changed, on_gone=lambda address: self._relay.drop(address),
            beside=lambda record: FromVm(record, self._storage, self._runner),
        )  # fmt: skip
        self._relay = Relay(Path(settings.relay), self._fleet.reach)
        faults = Faults(lambda: weather.settings)
        self._application = web.Application(
            middlewares=[
                errors,
                guard.middleware,
                self._note_activity,
                self._storage_first,
                faults.middleware,
                Door(self._project).middleware,
            ],
            client_max_size=LARGEST_BODY,
        )
        self._application.router.add_get("/emulator/v1", self._about)
        self._application.router.add_post(tokens.PATH, self._storage.exchange)
        own_network = self._isolation is not Isolation.NONE
        self._api = Api(self._state, self._fleet, self._operations, self._project, own_network)
        self._api.add_to(self._application)
        WeatherApi(weather, self._fleet.records).add_to(self._application)
        SharesApi(self._fleet).add_to(self._application)
        ProjectApi(self._project).add_to(self._application)
        self._runner = web.AppRunner(self._application, access_log=None, shutdown_timeout=1.0)
        listening = socket.socket(fileno=settings.listening)
        listening.setblocking(False)
        self._listening = listening
        self._url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # by nohup
                loop.add_signal_handler(number, self._stop.set)
        holder = self._lay_network()
        # Where we are is written before anything is begun, so that a successor finds the namespaces whatever happens.
        self._announce(holder)
        await self._runner.setup()
        await self._fleet.recover(self._settings.same_network)
        self._api.resume()
        firewall = asyncio.create_task(self._api.firewall.run())
        await self._relay.start()
        await web.SockSite(self._runner, self._listening).start()
        print(f"ready {self._url}", flush=True)
        self._reconsider()
        self._leave_without_state()
        try:
            await self._stop.wait()
        finally:
            (self._state / "emulator.json").unlink(missing_ok=True)
            await self._runner.cleanup()
            self._relay.stop()
            firewall.cancel()
            await self._fleet.close(self._settings.keep)
            if self._settings.keep:
                self._announce(holder)
            elif holder:
                isolation.end_holder(holder[0])

    def _lay_network(self) -> list[Any] | None:
        """The bridge that all VMs are plugged into, and the process that keeps it there."""
        if self._isolation is Isolation.NONE or self._settings.same_network:
            return self._settings.holder
        netlink.set_up("lo")
        netlink.add_bridge(BRIDGE, hardware_address(BRIDGE_ADDRESS))
        netlink.add_address(BRIDGE, BRIDGE_ADDRESS, PREFIX)
        netlink.set_up(BRIDGE)
        process = isolation.start_holder()
        return [process, isolation.start_stamp(process)]

    def _announce(self, holder: list[Any] | None) -> None:
        settings = self._settings
        about = {
            "url": self._url, "pid": os.getpid(), "relay": settings.relay, "isolation": self._isolation.value,
            "holder": holder, "version": VERSION,
            "linger": settings.linger, "boot": settings.boot, "notice": settings.notice,
        }  # fmt: skip
        write_atomically(self._state / "emulator.json", json.dumps(about), durable=False)

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response({
            "relay": self._settings.relay, "state": self._settings.state, "version": VERSION, "project": PROJECT,
            "isolated": self._isolation is not Isolation.NONE, "isolation": self._isolation.value,
            "pid": os.getpid(), "vms": len(self._fleet), "requests": self._requests, "storage": self._url,
            "storage_of_vms": f"http://{METADATA_ADDRESS}" if self._isolation is not Isolation.NONE else None,
        })  # fmt: skip

    @web.middleware
    async def _note_activity(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self._serving += 1
        self._requests += request.path.startswith("/compute/")
        try:
            return await handler(request)
        finally:
            self._serving -= 1
            self._active = time.monotonic()

    @web.middleware
    async def _storage_first(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not self._storage.serves(request):
            return await handler(request)
        if refusal := charge(self._project, request, STORAGE, ""):
            return refusal
        if self._project.lacks(BUCKETS):
            return await self._storage.answer(request, rights.REFUSED)
        return await self._storage.answer(request, rights.Rights(role=self._project.permissions))

    def _changed(self) -> None:
        """A VM has come, gone or changed."""
        self._api.follow()
        self._reconsider()

    def _reconsider(self) -> None:
        """Leave some time after the last VM is gone, unless a process holds this emulator or still talks to it."""
        self._active = time.monotonic()
        if self._settings.linger and not self._timer:
            self._timer = asyncio.get_running_loop().call_later(self._settings.linger, self._leave_if_idle)

    def _leave_without_state(self) -> None:
        """Nobody finds an emulator whose state was removed, nor does it find its VMs' folders: all of it ends."""
        if self._state.exists():
            asyncio.get_running_loop().call_later(_STATE_SECONDS, self._leave_without_state)
        else:
            _LOG.warning("the state folder %s was removed: this emulator and its VMs end", self._state)
            self._stop.set()

    def _leave_if_idle(self) -> None:
        self._timer = None
        if len(self._fleet):
            return
        left = self._active + self._settings.linger - time.monotonic()
        if self._serving:
            left = self._settings.linger
        elif left <= 0.01:
            # Locked until the end of this process: a process that needs an emulator waits for that, and starts another.
            self._leaving = lock(self._state / places.EMULATOR_HOLDERS)
            left = _HELD_SECONDS
        if self._leaving is None:
            self._timer = asyncio.get_running_loop().call_later(left, self._leave_if_idle)
        else:
            self._stop.set()
