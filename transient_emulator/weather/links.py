"""Whether the VMs' links can be shaped here (vms/links.py does it)."""

from __future__ import annotations

import os

from transient_magics.errors import DeclarationError

from ..network import delay_line, netlink
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
    if link.round_trip is not None:
        try:
            os.close(delay_line.open_tap("try0"))
        except OSError as error:
            what = f"A latency needs a TAP, and this machine gives none: {error.strerror}"
            raise DeclarationError(what, where="--link", fix="Write far=100mbit, for the rate alone.") from None
