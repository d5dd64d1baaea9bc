"""One emulator, from its first answer to its end: HTTP, relay, fleet, and when to exit.

It runs inside its namespaces (where it has any) and gets descriptors that were opened outside of
them. While it serves, `emulator.json` in its state directory describes it. A killed emulator leaves
that file for its successor.
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
from .project.permissions import AccessCheck, charge
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
"""The name of the project that clients use by default."""
# Seconds between two checks whether a process holds this emulator.
_HELD_SECONDS = 1.0
# Seconds between two checks whether the state directory exists.
_STATE_SECONDS = 2.0
_LOG = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Serve until a signal ends the emulator, or until no process needs it any more."""
    asyncio.run(_Emulator(settings).run())


class _Emulator:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state = Path(settings.state)
        self._isolation = Isolation(settings.isolation)
        self._own_network = self._isolation is not Isolation.NONE
        self._stop = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        # When the last request ended, the requests in progress, and all requests to Compute Engine.
        self._active = time.monotonic()
        self._serving = 0
        self._requests = 0
        # The lock that keeps clients from holding this emulator while it exits.
        self._leaving: int | None = None
        guard = Guard(settings.sources, settings.owner)
        self._project = Project(self._state, fresh=settings.fresh)
        self._storage = Endpoint(self._state / "storage", self._project)
        self._operations = Operations(Store(self._state / "operations"))
        weather = Weather(self._state, settings.boot, settings.notice, self._own_network)
        self._fleet = Fleet(
            self._state,
            Path(settings.homes),
            self._isolation,
            guard.allows,
            self._operations,
            weather,
            on_change=self._on_change,
            on_gone=lambda address: self._relay.drop(address),
            beside=lambda record: FromVm(record, self._storage, self._runner),
        )
        self._relay = Relay(Path(settings.relay), self._fleet.reach)
        faults = Faults(lambda: weather.settings)
        # The order matters. Foreign requests are refused first. Storage is served before `faults`
        # and the checks of Compute Engine's permissions, which are not about it. API errors of the
        # weather also hit requests that would lack a permission.
        self._application = web.Application(
            middlewares=[
                errors,
                guard.middleware,
                self._note_activity,
                self._storage_first,
                faults.middleware,
                AccessCheck(self._project).middleware,
            ],
            client_max_size=LARGEST_BODY,
        )
        self._application.router.add_get("/emulator/v1", self._about)
        self._application.router.add_post(tokens.PATH, self._storage.exchange)
        self._api = Api(
            self._state, self._fleet, self._operations, self._project, self._own_network
        )
        self._api.add_to(self._application)
        WeatherApi(weather, self._fleet.records).add_to(self._application)
        SharesApi(self._fleet).add_to(self._application)
        ProjectApi(self._project).add_to(self._application)
        self._runner = web.AppRunner(self._application, access_log=None, shutdown_timeout=1.0)
        self._listening = socket.socket(fileno=settings.listening)
        self._listening.setblocking(False)
        self._url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nohup has SIGHUP ignored, which must stay so.
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            loop.add_signal_handler(number, self._stop.set)
        holder = self._create_network()
        # The description is written before anything starts, so that a successor finds the
        # namespaces in any case.
        self._announce(holder)
        await self._runner.setup()
        await self._fleet.recover(self._settings.same_network)
        self._api.resume()
        firewall = asyncio.create_task(self._api.firewall.run())
        await self._relay.start()
        await web.SockSite(self._runner, self._listening).start()
        # The process that started the emulator waits for this line.
        print(f"ready {self._url}", flush=True)
        self._schedule_exit()
        self._exit_without_state()
        try:
            await self._stop.wait()
        finally:
            # Deleted first: clients that look for an emulator now start another.
            (self._state / "emulator.json").unlink(missing_ok=True)
            await self._runner.cleanup()
            self._relay.stop()
            firewall.cancel()
            await self._fleet.close(self._settings.keep)
            if self._settings.keep:
                self._announce(holder)
            elif holder:
                isolation.end_holder(holder[0])

    def _create_network(self) -> list[Any] | None:
        """Create the bridge of all VMs and the process that keeps its namespace alive.

        Returns the id and the start stamp of that process; None without a network.
        """
        if not self._own_network or self._settings.same_network:
            return self._settings.holder
        netlink.set_up("lo")
        netlink.add_bridge(BRIDGE, hardware_address(BRIDGE_ADDRESS))
        netlink.add_address(BRIDGE, BRIDGE_ADDRESS, PREFIX)
        netlink.set_up(BRIDGE)
        process = isolation.start_holder()
        return [process, isolation.start_stamp(process)]

    def _announce(self, holder: list[Any] | None) -> None:
        """Write the description that clients and successors read."""
        settings = self._settings
        about = {
            "url": self._url,
            "pid": os.getpid(),
            "relay": settings.relay,
            "isolation": self._isolation.value,
            "holder": holder,
            "version": VERSION,
            "linger": settings.linger,
            "boot": settings.boot,
            "notice": settings.notice,
        }
        write_atomically(self._state / "emulator.json", json.dumps(about), durable=False)

    async def _about(self, request: web.Request) -> web.Response:
        about = {
            "relay": self._settings.relay,
            "state": self._settings.state,
            "version": VERSION,
            "project": PROJECT,
            "isolated": self._own_network,
            "isolation": self._isolation.value,
            "pid": os.getpid(),
            "vms": len(self._fleet),
            "requests": self._requests,
            "storage": self._url,
            "storage_of_vms": f"http://{METADATA_ADDRESS}" if self._own_network else None,
        }
        return web.json_response(about)

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
        refusal = charge(self._project, request, STORAGE, "")
        if refusal:
            return refusal
        if self._project.lacks(BUCKETS):
            return await self._storage.answer(request, rights.REFUSED)
        return await self._storage.answer(request, rights.Rights(role=self._project.permissions))

    def _on_change(self) -> None:
        """React to a VM that was added, removed or changed."""
        self._api.follow()
        self._schedule_exit()

    def _schedule_exit(self) -> None:
        """Exit after the linger time if there are no VMs then, no requests and no holders."""
        self._active = time.monotonic()
        if self._settings.linger and not self._timer:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._settings.linger, self._exit_if_idle)

    def _exit_without_state(self) -> None:
        """Exit once the state directory is removed.

        Clients cannot find such an emulator, and it cannot find its VMs' folders.
        """
        if self._state.exists():
            loop = asyncio.get_running_loop()
            loop.call_later(_STATE_SECONDS, self._exit_without_state)
        else:
            _LOG.warning(
                "the state directory %s was removed: this emulator and its VMs end", self._state
            )
            self._stop.set()

    def _exit_if_idle(self) -> None:
        self._timer = None
        if len(self._fleet):
            # The end of a VM schedules the next check.
            return
        remaining = self._active + self._settings.linger - time.monotonic()
        if self._serving:
            remaining = self._settings.linger
        elif remaining <= 0.01:
            # Locked until this process ends: a client that needs an emulator waits for that, and
            # starts another.
            self._leaving = lock(self._state / places.EMULATOR_HOLDERS)
            remaining = _HELD_SECONDS
        if self._leaving is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(remaining, self._exit_if_idle)
        else:
            self._stop.set()
