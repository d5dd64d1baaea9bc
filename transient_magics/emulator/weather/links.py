"""Whether the VMs' links can be shaped here (vms/links.py does it)."""

from __future__ import annotations

from ...errors import DeclarationError
from ..network import netlink
from .settings import Link


def check_links(link: Link, own_network: bool) -> None:
    """Raises DeclarationError where links cannot be shaped, found out by trying it on the emulator's own loopback."""
    if not own_network:
        raise DeclarationError("The emulated VMs have no network of their own here, so their links cannot be shaped")
    try:
        if link.far is None:
            netlink.shape("lo", link.rate)
        else:
            netlink.shape_by_place("lo", link.rate, link.far, ["10.128.0.2"])
        netlink.unshape("lo")
    except OSError as error:
        raise DeclarationError(f"This machine's kernel cannot shape links: {error.strerror}") from None
