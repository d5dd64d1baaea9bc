"""VMs over SSH: reach one, know that it is the right one, run and leave running, copy, follow
files, talk to sockets.

`connect` takes a `Dialler` (how bytes get there), an address, our key and the host keys that
Compute Engine told, and gives a `Connection`. Everything that goes wrong is a typed error of
`transient_magics.errors`; a peer that is dead or frozen is noticed within about four seconds.
Nothing reconnects by itself except `follow_across`, which is asked to.
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
