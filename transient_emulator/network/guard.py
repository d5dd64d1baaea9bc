"""Access to the emulator: only this user's programs may use it, and no web page.

A request can give a VM any SSH key, and the VM's programs run as the user. A request from another
account, or one that a web page forged in the user's browser, could therefore get a shell. The
kernel knows which user owns the other end of a loopback connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from aiohttp import web

from .ownership import belongs

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FROM_A_VM = "from a VM"
"""The key that marks a request which a VM's metadata server has admitted."""
_LOCAL_NAMES = ("127.0.0.1", "localhost")
_METADATA_NAME = "metadata.google.internal"
# Values of the header Sec-Fetch-Site that no foreign page causes. Programs do not send the header
# at all.
_OWN_SITE = (None, "none", "same-origin")


class Guard:
    """The check whether a request may be served.

    Parameters ----------
    sources
        Descriptors that report the kernel's connections, opened outside of any namespace (see
        `ownership`).
    owner
        The user's id outside of any namespace.
    """

    def __init__(self, sources: list[int], owner: int) -> None:
        self._sources = sources
        self._owner = owner
        # One answer per connection: its owner does not change, and each lookup asks the kernel.
        self._allowed: WeakKeyDictionary[object, bool] = WeakKeyDictionary()

    def allows(self, request: web.BaseRequest) -> bool:
        """Return whether the other end of the request's connection belongs to the owner."""
        transport = request.transport
        if transport is None:
            return False
        if transport not in self._allowed:
            server = transport.get_extra_info("sockname")
            client = transport.get_extra_info("peername")
            allowed = bool(server and client) and self._belongs(client[:2], server[:2])
            self._allowed[transport] = allowed
        return self._allowed[transport]

    def _belongs(self, client: tuple[str, int], server: tuple[str, int]) -> bool:
        if not self._sources:
            # Not Linux: the kernel does not report owners, and VMs have no address of their own.
            return True
        return belongs(self._sources, self._owner, client, server)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse foreign requests with 403.

        Requests from VMs were checked by their metadata server.
        """
        if request.get(FROM_A_VM):
            return await handler(request)
        if from_a_page(request, _LOCAL_NAMES):
            raise web.HTTPForbidden(
                text="The emulator answers to programs on this machine only, not to web pages.\n"
            )
        if not self.allows(request):
            raise web.HTTPForbidden(text="This emulator belongs to another user of this machine.\n")
        return await handler(request)


def from_a_page(request: web.BaseRequest, names: tuple[str, ...] = ()) -> bool:
    """Return whether a web page may have caused a request.

    A browser reveals itself by its headers. A page that had its own host name resolved to this
    machine reveals itself by that name.

    Parameters ----------
    request
        The request.
    names
        Host names that the request may use. Without them, it may use a numeric address or the name
        of Google's metadata server.
    """
    name, colon, _port = request.host.rpartition(":")
    host = name if colon else request.host
    if names:
        expected = host in names
    else:
        expected = host.replace(".", "").isdigit() or host == _METADATA_NAME
    if not expected or "Origin" in request.headers:
        return True
    return request.headers.get("Sec-Fetch-Site") not in _OWN_SITE
