"""Google's clients for the services we use, built once and shared by all threads.

Their imports take seconds, so a `Clients` imports them when it is built, in a thread.

The client of Compute Engine is imported without the clients of a hundred other services, in less
than half of the time: `import google.cloud.compute_v1` would import them all. Its `__init__` only
names what its modules define, so a stand-in takes the package's name and finds each name when it is
used.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import time
import types
from collections.abc import Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ...clock import counted, now
from ...imports import uncollected
from .login import found_credentials

BILLING_SCOPE = "https://www.googleapis.com/auth/cloud-billing.readonly"
_COMPUTE_SCOPE = "https://www.googleapis.com/auth/compute"
_WHOLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"

_SERVICES = (
    "instances",
    "zone_operations",
    "global_operations",
    "projects",
    "regions",
    "zones",
    "machine_types",
    "accelerator_types",
    "images",
    "networks",
    "subnetworks",
    "routers",
    "firewalls",
)

GOOGLE = "https://compute.googleapis.com/"
_ANSWERS = 4


# The offset of this machine's clock to a server's, as closely as an HTTP answer shows it.


class ServerClock:
    """The offset of this machine's clock to a server's, from the dates of its answers."""

    def __init__(self) -> None:
        self._answers: tuple[tuple[float, float], ...] = ()
        """Least and greatest offset of the steady clock in seconds, by answer.

        Replaced as a whole: one thread reads it while others add answers.
        """

    def listen(self, session: Any) -> Any:
        """Observe the answers of a session of `requests`, and return the session."""
        session.hooks["response"].append(self._observe)
        return session

    @property
    def ahead(self) -> float:
        """Seconds by which this machine's clock is at least ahead (negative: behind); 0 if equal.

        Of the latest answers the one with the smallest offset counts: this machine may have slept
        while it waited for another.
        """
        shown = now() - counted()
        answers = tuple(self._answers)  # in one step: other threads add answers
        offsets = [max(0.0, least + shown) + min(0.0, most + shown) for least, most in answers]
        return min(offsets, key=abs, default=0.0)

    def _observe(self, response: Any, *_: Any, **__: Any) -> None:
        after = counted()
        try:
            written = _moment(response.headers.get("Date", ""))
        except ValueError:
            return
        ahead = after - response.elapsed.total_seconds() - (written + 1.0), after - written
        self._answers = (*self._answers, ahead)[-_ANSWERS:]


def clock_offset(
    url: str = GOOGLE, *, direct: bool = False, timeout: float = 10.0
) -> tuple[float, float]:
    """Return the least and greatest seconds by which this machine's clock is ahead of a server's.

    The server's `Date` has whole seconds, and was written between the request and its answer.

    Parameters
    ----------
    url
        The server.
    direct
        Whether to bypass proxies.
    timeout
        Seconds until `requests` gives up.

    Raises
    ------
    requests.RequestException
        Without an answer.
    ValueError
        For an answer without a date.
    """
    from requests import Session

    with Session() as session:
        session.trust_env = not direct
        before = time.time()
        answer = session.get(url, timeout=timeout, allow_redirects=False, stream=True)
        after = time.time()
    written = _moment(answer.headers.get("Date", ""))
    return before - (written + 1.0), after - written


def _moment(text: str) -> float:
    try:
        found: datetime = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        raise ValueError(f"the answer has no date: {text!r}") from None
    return found.timestamp()


def preload() -> None:
    """Import what `Clients` needs."""
    importlib.import_module("google.auth")
    prepare(_SERVICES)


class Clients:
    """One client per service. With an `endpoint` there are neither credentials nor proxies."""

    def __init__(self, endpoint: str | None, *, connections: int) -> None:
        preload()
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import compute_v1
        from requests import Session
        from requests.adapters import HTTPAdapter

        self.clock = ServerClock()
        # Sessions for services without a client: the price list; rights, policies, and methods
        # that version 1 lacks.
        self.billing: Session
        self.asking: Session
        self.quota_project = ""
        """The quota project of the login; '' for none. No client sends it automatically."""
        given: dict[str, Any] = {}
        if endpoint:
            # The universe is fixed, too: otherwise an environment variable could make the
            # credentials look foreign.
            given["client_options"] = {
                "api_endpoint": endpoint,
                "universe_domain": "googleapis.com",
            }
            given["credentials"] = AnonymousCredentials()
            self.billing = Session()
            self.asking = Session()
        else:
            from google.auth.transport.requests import AuthorizedSession

            given["credentials"], self.quota_project = found_credentials([_COMPUTE_SCOPE])
            reading, _ = found_credentials([BILLING_SCOPE])
            self.billing = AuthorizedSession(reading, max_refresh_attempts=1)
            whole, _ = found_credentials([_WHOLE_SCOPE])
            self.asking = AuthorizedSession(whole, max_refresh_attempts=1)
        self.instances = compute_v1.InstancesClient(**given)
        self.operations = compute_v1.ZoneOperationsClient(**given)
        self.global_operations = compute_v1.GlobalOperationsClient(**given)
        self.projects = compute_v1.ProjectsClient(**given)
        self.regions = compute_v1.RegionsClient(**given)
        self.zones = compute_v1.ZonesClient(**given)
        self.machine_types = compute_v1.MachineTypesClient(**given)
        self.accelerator_types = compute_v1.AcceleratorTypesClient(**given)
        self.images = compute_v1.ImagesClient(**given)
        self.networks = compute_v1.NetworksClient(**given)
        self.subnetworks = compute_v1.SubnetworksClient(**given)
        self.routers = compute_v1.RoutersClient(**given)
        self.firewalls = compute_v1.FirewallsClient(**given)
        for client in self._all():
            # A private attribute, but the only way to as many connections as threads: by default
            # a pool keeps ten.
            session = self.clock.listen(client.transport._session)
            pool = HTTPAdapter(pool_connections=4, pool_maxsize=connections, pool_block=True)
            session.mount("http://", pool)
            session.mount("https://", pool)
            if endpoint:
                session.trust_env = False
        for session in (self.billing, self.asking):
            session.trust_env = not endpoint

    def close(self) -> None:
        """Release the connections."""
        for client in self._all():
            client.transport.close()
        self.billing.close()
        self.asking.close()

    def _all(self) -> tuple[Any, ...]:
        others = self.billing, self.asking, self.clock, self.quota_project
        return tuple(client for client in vars(self).values() if client not in others)


_PACKAGE = "google.cloud.compute_v1"

_MESSAGES = f"{_PACKAGE}.types.compute"


class _StandIn(types.ModuleType):
    """A replacement of the package: its messages, and the clients of its services."""

    def __getattr__(self, name: str) -> Any:
        # Private names are looked up by tools that inspect any module.
        if name.startswith("_"):
            raise AttributeError(name)
        place: types.ModuleType | None = importlib.import_module(_MESSAGES)
        if not hasattr(place, name):
            place = _service(name)
        if place is None:
            raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
        found = getattr(place, name)
        setattr(self, name, found)
        return found


def prepare(services: Sequence[str] = ()) -> None:
    """Import `services`, and make `from google.cloud import compute_v1` import only used names.

    Changes nothing if the whole package is imported already.
    """
    if _PACKAGE not in sys.modules and (found := importlib.util.find_spec(_PACKAGE)):
        stand_in = _StandIn(_PACKAGE)
        stand_in.__path__ = list(found.submodule_search_locations or ())
        stand_in.__spec__ = found
        stand_in.__file__ = found.origin
        sys.modules[_PACKAGE] = stand_in
    with uncollected():
        for service in services:
            importlib.import_module(f"{_PACKAGE}.services.{service}")


def _service(name: str) -> types.ModuleType | None:
    """Return the module of a client (InstancesClient: services.instances); None if unknown."""
    words = re.findall("[A-Z][a-z0-9]*", name.removesuffix("Client"))
    module = f"{_PACKAGE}.services.{'_'.join(words).lower()}"
    if not name.endswith("Client") or importlib.util.find_spec(module) is None:
        return None
    return importlib.import_module(module)
