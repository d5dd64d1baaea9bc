"""The names of VMs, as Compute Engine's DNS resolves them within a network: in hosts files.

A VM resolves its own name and those of the running VMs of its network:
NAME.ZONE.c.PROJECT.internal, and NAME alone within its own zone, as the search path of Compute
Engine's VMs does. Where VMs have no mounts of their own (isolation `network` or `off`), they have
the names of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..instances import Record

METADATA = "169.254.169.254 metadata.google.internal metadata"


def full_name(record: Record) -> str:
    """Return the name by which all VMs of its network find a VM."""
    return f"{record.name}.{record.zone}.c.{record.project}.internal"


def hosts_files(running: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """Yield the content of the hosts file of each VM.

    Parameters
    ----------
    running
        The VMs that run.
    """
    records = sorted(running, key=lambda record: record.key)
    # VMs of one zone and network have the same lines. They are made once, for there may be
    # hundreds.
    shared: dict[tuple[str, ...], str] = {}
    for record in records:
        network = _network(record)
        place = (record.zone, *network)
        if place not in shared:
            others = [other for other in records if _network(other) == network]
            shared[place] = "".join(_line(other, record.zone) for other in others)
        own = _line(record, record.zone)
        # A VM's own name comes first, since programs read a long file in parts.
        rest = shared[place].replace(own, "", 1)
        yield record, f"127.0.0.1 localhost\n{own}{METADATA}\n{rest}"


def replace_content(path: Path, content: str) -> None:
    """Replace the content of a file that is mounted elsewhere, and so must stay the same file."""
    old_size = path.stat().st_size if path.exists() else 0
    data = content.encode()
    # One write, and the file never gets shorter: a reader sees either content, not a part of it.
    padding = b"\n" * (old_size - len(data))
    with path.open("r+b" if old_size else "wb", buffering=0) as file:
        file.write(data + padding)


def _line(record: Record, zone: str) -> str:
    """Return the line of a VM for the VMs in a zone."""
    names = full_name(record)
    if record.zone == zone:
        names += f" {record.name}"
    return f"{record.address} {names}\n"


def _network(record: Record) -> tuple[str, str]:
    interfaces = record.resource.get("networkInterfaces") or [{}]
    return record.project, str(interfaces[0].get("network", ""))
