"""Access to the VMs: the client of Compute Engine (and Cloud Storage), and SSH to a VM.

A cluster with a project uses Google's Compute Engine. It connects to its VMs directly, or through
Identity-Aware Proxy if they have no external address. A cluster without a project uses this user's
emulator, which is started here if necessary, and connects through the emulator's relay. A
controller that runs on a VM of the cluster connects to the others by their internal addresses.
Modules above this one do not see the difference.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, Self

from ...catalog import region
from ...cloud import BoundedToken, CloudStorage, ComputeEngine, Reach, Vm, bounded_token, preload
from ...errors import CloudError, ConnectionLostError, RemoteError, UnreachableError
from ...journal import Clock, VmState, events
from ...protocol.checks import at_least, built, within
from ...remote import Connection, Dialler, Direct, ProxyCommand, Relay, connect
from ...spec import EMULATED_PROJECT, ClusterSpec, cluster_store, own_bucket
from ..host import controller_vm
from .machines import PROXY_LABEL, ROLE_LABEL, account, firewall_rules, instance_name

_ANEW_SECONDS = 2.0
_CONNECT_SECONDS = 120.0
# Seconds of retries before Google, or an emulator, counts as unreachable.
_PATIENCE = 60.0
_EMULATED_PATIENCE = 3.0
# The next attempt follows soon.
_TOKEN_PATIENCE = 15.0
# With all of these options, gcloud queries neither its configuration nor Compute Engine first.
_IAP = (
    "gcloud",
    "compute",
    "start-iap-tunnel",
    "{address}",
    "{port}",
    "--listen-on-stdin",
    "--quiet",
)
# Google's clients also reach the emulator without a proxy.
_WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ALLOW_OPEN_PORTS = "TRANSIENT_MAGICS_ALLOW_OPEN_PORTS"


def to_project(project: str | None) -> Access:
    """Return the access to a project (None: the emulator) for work without a cluster."""
    spec = ClusterSpec(name="none", groups=(), zones=("us-central1-a",), prices={}, project=project)
    return Access(spec)


@dataclass(frozen=True)
class WantedBack:
    """Number of VMs that the provider reclaims by a time, of those with these ids.

    `until` is in seconds since 1970. Any `number` of the VMs will do.
    """

    number: Annotated[int, at_least(1)]
    vms: tuple[str, ...]
    until: float


@dataclass(frozen=True)
class _Weather:
    """Part of the emulator's weather for one cluster: its clock, network, and reclaimed VMs."""

    anchors: events.Anchors
    link_bits_per_second: Annotated[float, within(1.0, 1e15)] | None = None
    wanted_back: WantedBack | None = None


class Access:
    """Access to Compute Engine and to the VMs of a cluster.

    It is a context manager. `reopen` opens it, initially and after an outage.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._holds_emulator = False
        self._stack = AsyncExitStack()
        self.engine: ComputeEngine
        self.storage: CloudStorage | None = None
        # Connects to internal addresses, if possible.
        self._dialler: Dialler | None = None
        self.isolated = True
        self.link: float | None = None
        """Network rate of an emulated VM each way, in bytes per second, as last reported.

        None means no limit.
        """
        self._opening = asyncio.Lock()
        self._opened_at = -_ANEW_SECONDS

    async def __aenter__(self) -> Self:
        preload()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def reopen(self) -> None:
        """Find Compute Engine, also an emulator that restarted elsewhere. Raises CloudError."""
        async with self._opening:
            if time.monotonic() - self._opened_at < _ANEW_SECONDS:
                # Several calls failed simultaneously, and one of them opened it again.
                return
            await self._open()
            self._opened_at = time.monotonic()

    async def renew(self) -> None:
        """Find credentials again, for example after a login. Raises CloudError."""
        await self.engine.renew()
        if self.storage:
            await self.storage.renew()

    async def weather(self) -> tuple[Clock, WantedBack | None]:
        """Return the clock of the cloud, and the VMs that it reclaims.

        On the emulator its weather sets the speed of time; on Google time passes normally. VMs are
        reclaimed only where the provider leaves the choice to the controller, which Google does
        not. Raises UnreachableError.
        """
        if not self._spec.emulated:
            return Clock(), None
        where = f"{self.engine.endpoint}/emulator/v1/weather"
        answer = await asyncio.to_thread(_ask, where)
        try:
            weather = built(_Weather, answer)
        except ValueError as error:
            raise UnreachableError(
                f"The emulator sent an invalid weather: {error}", where=where
            ) from error
        rate = weather.link_bits_per_second
        if rate is None:
            self.link = None
        else:
            self.link = rate / 8
        return Clock(weather.anchors), weather.wanted_back

    async def protect(self, whose: Mapping[str, str]) -> None:
        """Close the cluster's VMs to all but each other, before there are any.

        `whose` has the labels of their owner. Raises CloudError.
        """
        if self._spec.firewall:
            await self.engine.firewall.ensure(firewall_rules(self._spec, whose))

    async def unprotect(self) -> None:
        """Delete the firewall rules, after the last VM."""
        if self._opened_at > 0:
            await self.engine.firewall.remove(firewall_rules(self._spec))

    async def ensure_bucket(self) -> str:
        """Ensure that the cluster's bucket exists and that VMs can be admitted to it.

        It is made in the cluster's region if necessary. Returns what is wrong with it, in one
        sentence, or "". Raises CloudError.
        """
        spec = self._spec
        warning = ""
        if spec.bucket and self.storage:
            name = spec.bucket.partition("/")[0]
            location = region(spec.home_zone)
            own = spec.project is not None and name == own_bucket(spec.project, location)
            warning = await self.storage.ensure_bucket(name, location, own=own)
        await self.try_token()
        return warning

    async def try_token(self) -> None:
        """Check that VMs can get tokens for the cluster's place in its bucket, if it has one.

        Raises CloudError.
        """
        if store := cluster_store(self._spec):
            await self.bounded_token([Reach(f"{store}/", "objectUser")])

    async def bounded_token(self, reaches: Sequence[Reach]) -> BoundedToken:
        """Return a token for these places in buckets, for a VM that runs user code.

        Raises CloudError.
        """
        endpoint = self.engine.endpoint
        patience = _EMULATED_PATIENCE if endpoint else _TOKEN_PATIENCE
        return await bounded_token(reaches, self.engine.project, endpoint, patience=patience)

    async def connect(
        self, vm: VmState, key: Path, *, timeout: float = _CONNECT_SECONDS
    ) -> Connection:
        """Return a connection to the VM, verified by the host keys that Compute Engine reports.

        Raises RemoteError.
        """
        spec = self._spec
        outside = "" if spec.through_proxy else vm.external_address
        try:
            return await self._enter(
                vm.zone,
                instance_name(spec, vm.name),
                vm.name,
                vm.role,
                (vm.address, outside),
                key,
                timeout,
            )
        except ConnectionLostError as error:
            if self._dialler or spec.through_proxy or not (spec.firewall and spec.ssh_from):
                raise
            fix = (
                f"SSH may come from {', '.join(spec.ssh_from)} alone (--ssh-from): if this "
                "machine's address is new, declare the next cluster with that, or with none, to "
                "be reached through Identity-Aware Proxy."
            )
            raise ConnectionLostError(error.what, where=error.where, fix=fix) from error

    async def enter(self, vm: Vm, key: Path) -> Connection:
        """Return a connection to a VM as `connect` does, from its data at Compute Engine alone."""
        role = vm.labels.get(ROLE_LABEL, "")
        outside = vm.external_address
        addresses = vm.address, "" if PROXY_LABEL.items() <= vm.labels.items() else outside
        return await self._enter(vm.zone, vm.name, vm.name, role, addresses, key, _CONNECT_SECONDS)

    async def _enter(
        self,
        zone: str,
        instance: str,
        name: str,
        role: str,
        addresses: tuple[str, str],
        key: Path,
        timeout: float,
    ) -> Connection:
        inside, outside = addresses
        try:
            keys = await self.engine.host_keys(zone, instance)
        except CloudError as error:
            raise RemoteError(f"The host key of {instance} cannot be read yet: {error}") from error
        dialler = self._dialler
        address = inside
        if dialler is None and outside:
            dialler = Direct()
            address = outside
        elif dialler is None:
            where = f"--zone={zone}", f"--project={self._spec.project}"
            dialler = ProxyCommand((*_IAP, *where))
            address = instance
        return await connect(
            dialler,
            address,
            user=account(role),
            key=key,
            host_keys=keys,
            name=name,
            timeout=timeout,
        )

    @property
    def training_refused(self) -> str:
        """Reason why no training may run on these VMs; empty if it may."""
        if self.isolated or os.environ.get(ALLOW_OPEN_PORTS) == "1":
            return ""
        return (
            "The emulated VMs have no network of their own here, so TensorFlow would listen on "
            f"every interface of this machine; set {ALLOW_OPEN_PORTS}=1 before the cluster is "
            "declared to allow it"
        )

    async def _open(self) -> None:
        endpoint = None
        if controller_vm():
            # Google's client finds the VM's own credentials, and the emulator by the VM's
            # environment.
            self._dialler = Direct()
            if self._spec.emulated:
                endpoint = f"http://{os.environ['GCE_METADATA_HOST']}"
            else:
                endpoint = None
        elif self._spec.emulated:
            from ... import emulator

            if not self._holds_emulator:
                self._stack.enter_context(await asyncio.to_thread(emulator.hold))
                self._holds_emulator = True
            endpoint = await asyncio.to_thread(emulator.ensure)
            about = await asyncio.to_thread(_ask, f"{endpoint}/emulator/v1")
            self._dialler = Relay(Path(about["relay"]))
            self.isolated = bool(about["isolated"])
        if self._opened_at > 0 and endpoint == self.engine.endpoint:
            return
        # The previous client stays open: its calls in flight fail or finish on their own.
        project = self._spec.project or EMULATED_PROJECT
        self.engine = await self._stack.enter_async_context(
            ComputeEngine(project, endpoint, patience=_EMULATED_PATIENCE if endpoint else _PATIENCE)
        )
        if self._spec.bucket:
            self.storage = await self._stack.enter_async_context(CloudStorage(project, endpoint))


def _ask(url: str) -> dict[str, Any]:
    try:
        with _WITHOUT_PROXY.open(url, timeout=10) as answer:
            return json.load(answer)
    except (OSError, ValueError, HTTPException) as error:
        # HTTPException: the emulator ended in the middle of its answer.
        raise UnreachableError(f"The emulator does not answer: {error}", where=url) from error
