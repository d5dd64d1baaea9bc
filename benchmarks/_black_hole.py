"""A VM's network link as a black hole: what is sent either way vanishes, and nobody is told.

Where emulated VMs have networks of their own, a VM hangs on the emulator's bridge by a virtual cable, whose end there
is switched off and on again.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator

from _common import process

from transient_magics import emulator
from transient_magics.client import Cluster


@contextlib.contextmanager
def black_hole(cluster: Cluster, vm: str, role: str) -> Iterator[None]:
    """As long as it lasts, nothing passes between the others and `vm`, on which `role` runs.

    Raises OSError or CalledProcessError where this machine has no means for that.
    """
    home = int(emulator.about(emulator.running())["pid"])
    # "2: eth0@if7: <...": the number of the cable's other end; then "7: vm3@if2: <..." at the emulator's.
    (other,) = re.findall(r"eth0@if(\d+):", _ip(process(cluster, vm, role), "-o", "link", "show", "eth0"))
    (cable,) = re.findall(rf"^{other}: (\w+)@", _ip(home, "-o", "link"), re.MULTILINE)
    _ip(home, "link", "set", cable, "down")
    try:
        yield
    finally:
        _ip(home, "link", "set", cable, "up")


def _ip(inside: int, *arguments: str) -> str:
    """What `ip` says in the network namespace of a process."""
    enter = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", str(inside), "--"]
    return subprocess.run(
        [*enter, "ip", *arguments], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout
