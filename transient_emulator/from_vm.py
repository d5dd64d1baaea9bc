"""Google's services as programs in a VM reach them.

These are Cloud Storage and, if the VM's scopes allow it, Compute Engine.

VMs have a network of their own, from which they reach nothing else on this machine. Both services
are therefore served at the address of their metadata server. The same application answers requests
to Compute Engine from VMs and from this machine. In Cloud Storage a request has the rights of its
token, or of the VM's service account.
"""

from __future__ import annotations

from aiohttp import web

from .instances import Record
from .network.guard import FROM_A_VM
from .rest import wire
from .storage import Endpoint, rights, tokens
from .vms.metadata_server import RequestFactory
from .weather import api as weather

_COMPUTE = "/compute/"
_ALL = "cloud-platform"
_STORAGE = (_ALL, "devstorage.full_control", "devstorage.read_write")


class FromVm:
    """The services as one VM reaches them.

    Parameters
    ----------
    record
        The VM.
    storage
        Cloud Storage.
    application
        Compute Engine and the emulator's own routes.
    """

    def __init__(self, record: Record, storage: Endpoint, application: web.AppRunner) -> None:
        self._record = record
        self._storage = storage
        self._application = application

    @property
    def requests(self) -> RequestFactory | None:
        """The factory of requests that the application can answer."""
        return self._server.request_factory

    def serves(self, request: web.BaseRequest) -> bool:
        """Return whether a request is for one of the services."""
        if request.path == tokens.PATH:
            return True
        # A VM may read the weather, not change it.
        reads_weather = request.method == "GET" and request.path == weather.PATH
        is_compute = request.path.startswith(_COMPUTE)
        return self._storage.serves(request) or is_compute or reads_weather

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request for one of the services."""
        if self._storage.serves(request):
            access = rights.ALL if self._has_scope(*_STORAGE) else rights.NONE
            return await self._storage.answer(request, access)
        if request.path == tokens.PATH:
            access = rights.ALL if self._has_scope(_ALL) else rights.NONE
            return await self._storage.exchange(request, access)
        if not self._has_scope(_ALL, "compute"):
            why = "Request had insufficient authentication scopes."
            refusal = wire.ApiError(403, "insufficientPermissions", why)
            return web.json_response(refusal.body(), status=refusal.status)
        # The application checks the rights of VMs differently from those of users.
        request[FROM_A_VM] = True
        return await self._server.request_handler(request)

    def _has_scope(self, *scopes: str) -> bool:
        """Return whether the VM's service account has one of these scopes."""
        urls = {f"https://www.googleapis.com/auth/{scope}" for scope in scopes}
        accounts = self._record.resource["serviceAccounts"]
        return any(urls.intersection(account["scopes"]) for account in accounts)

    @property
    def _server(self) -> web.Server:
        server = self._application.server
        assert server is not None, "the application is set up before the first VM"
        return server
