"""Who may talk to the emulator: this user alone, and no web page.

A VM can be given any SSH key, and its programs run as the user; so a request from another account, or one that a page
in a browser has forged, would be a way to a shell. The kernel tells whose the other end of a loopback connection is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from aiohttp import web

from .ownership import belongs

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
FROM_A_VM = "from a VM"
"""Marks a request that a VM's metadata server has let in."""
_LOCAL_NAMES = ("127.0.0.1", "localhost")
_OWN_SITE = (None, "none", "same-origin")


class Guard:
    """Answers whether a request may be served. `owner` is the user's number outside of any namespace,
    `sources` what tells of the kernel's connections, opened there (`ownership`)."""

    def __init__(self, sources: list[int], owner: int) -> None:
        self._sources, self._owner = sources, owner
        self._known: WeakKeyDictionary[object, bool] = WeakKeyDictionary()

    def allows(self, request: web.BaseRequest) -> bool:
        """Whether the other end of the request's connection belongs to the owner."""
        transport = request.transport
        if transport is None:
            return False
        if transport not in self._known:
            here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
            self._known[transport] = bool(here and there) and self._belongs(there[:2], here[:2])
        return self._known[transport]

    def _belongs(self, client: tuple[str, int], server: tuple[str, int]) -> bool:
        if not self._sources:
            return True  # Not Linux: the kernel does not tell, and VMs have no address of their own.
        return belongs(self._sources, self._owner, client, server)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For aiohttp: refuses with 403. What comes from a VM has been looked at there."""
        if request.get(FROM_A_VM):
            return await handler(request)
        if from_a_page(request, _LOCAL_NAMES):
            raise web.HTTPForbidden(text="The emulator answers to programs on this machine only, not to web pages.\n")
        if not self.allows(request):
            raise web.HTTPForbidden(text="This emulator belongs to another user of this machine.\n")
        return await handler(request)


def from_a_page(request: web.BaseRequest, names: tuple[str, ...] = ()) -> bool:
    """Whether a web page may be behind a request: it says so, or it takes us for a host other than `names`.

    Without `names`, for any but a numeric address or Google's name of the metadata server.
    """
    name, mark, _port = request.host.rpartition(":")
    host = name if mark else request.host
    known = host in names if names else host.replace(".", "").isdigit() or host == "metadata.google.internal"
    return not known or "Origin" in request.headers or request.headers.get("Sec-Fetch-Site") not in _OWN_SITE
