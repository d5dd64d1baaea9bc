"""What a program in a VM reaches of Google's services: Cloud Storage, and Compute Engine if the VM's scopes allow it.

VMs have a network of their own, from which nothing of this machine can be reached, so both are served at the address of
their metadata server. Requests to Compute Engine are answered by the very application that answers this machine's. In
Cloud Storage a request has the rights of the token that it brings, or of the VM's service account.
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
    """The services as the VM of `record` meets them."""

    def __init__(self, record: Record, storage: Endpoint, application: web.AppRunner) -> None:
        self._record, self._storage, self._application = record, storage, application

    @property
    def requests(self) -> RequestFactory | None:
        """The application answers requests that know it."""
        return self._server.request_factory

    def serves(self, request: web.BaseRequest) -> bool:
        """Whether a request is meant for one of them."""
        asks_weather = (request.method, request.path) == ("GET", weather.PATH)
        if request.path == tokens.PATH:
            return True
        return self._storage.serves(request) or request.path.startswith(_COMPUTE) or asks_weather

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Serve it."""
        if self._storage.serves(request):
            return await self._storage.answer(request, rights.ALL if self._has(*_STORAGE) else rights.NONE)
        if request.path == tokens.PATH:
            return await self._storage.exchange(request, rights.ALL if self._has(_ALL) else rights.NONE)
        if not self._has(_ALL, "compute"):
            why = "Request had insufficient authentication scopes."
            refusal = wire.ApiError(403, "insufficientPermissions", why)
            return web.json_response(refusal.body(), status=refusal.status)
        request[FROM_A_VM] = True
        return await self._server.request_handler(request)

    def _has(self, *scopes: str) -> bool:
        """Whether the VM's service account has one of these scopes."""
        wanted = {f"https://www.googleapis.com/auth/{scope}" for scope in scopes}
        accounts = self._record.resource["serviceAccounts"]
        return any(wanted.intersection(account["scopes"]) for account in accounts)

    @property
    def _server(self) -> web.Server:
        server = self._application.server
        assert server is not None, "the application is set up before the first VM"
        return server
