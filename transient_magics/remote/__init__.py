"""SSH to VMs: connect to the right one, run commands, copy and follow files, use sockets.

`connect` takes a `Dialler` (the transport), an address, our key and the host keys from Compute
Engine, and returns a `Connection`. Every failure is a typed error of `transient_magics.errors`; a
dead or frozen peer is detected within about four seconds. Nothing reconnects automatically except
`follow_across`.
"""

from .bundle import bundle, push_bundle
from .connecting import Dialler, Direct, ProxyCommand, Relay, connect, generate_key
from .connection import Connection, Reader, Writer
from .following import Allowance, follow_across, follow_blocks_across
from .transfer import MOST_FILES, room

__all__ = [
    "MOST_FILES",
    "Allowance",
    "Connection",
    "Dialler",
    "Direct",
    "ProxyCommand",
    "Reader",
    "Relay",
    "Writer",
    "bundle",
    "connect",
    "follow_across",
    "follow_blocks_across",
    "generate_key",
    "push_bundle",
    "room",
]
