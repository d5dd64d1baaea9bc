"""The names of VMs, as Compute Engine's DNS resolves them within a network: in the hosts file of each VM.

A VM resolves its own name and those of the VMs of its network that run: NAME.ZONE.c.PROJECT.internal, and NAME alone
within its own zone, as the search path of Compute Engine's VMs does. Where VMs have no mounts of their own (isolation
`network` or `off`) they have the names of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..instances import Record

METADATA = "169.254.169.254 metadata.google.internal metadata"


def full_name(record: Record) -> str:
    """The name by which all VMs of its network find a VM."""
    return f"{record.name}.{record.zone}.c.{record.project}.internal"


def hosts_files(running: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """The content of the hosts file of each VM, while these run.

    VMs of one zone and network have the same lines, made once: there may be hundreds. A VM's own name comes first:
    a long file is read in parts.
    """
    records = sorted(running, key=lambda record: record.key)
    shared: dict[tuple[str, ...], str] = {}
    for own in records:
        place = (own.zone, *_network(own))
        if place not in shared:
            shared[place] = "".join(_line(each, own.zone) for each in records if _network(each) == _network(own))
        line = _line(own, own.zone)
        yield own, f"127.0.0.1 localhost\n{line}{METADATA}\n{shared[place].replace(line, '', 1)}"


def replace_content(path: Path, content: str) -> None:
    """Replace the content of a file that is mounted elsewhere, so must stay the same file.

    It is written at once and never gets shorter: a reader sees no half of it.
    """
    old = path.stat().st_size if path.exists() else 0
    data = content.encode()
    with path.open("r+b" if old else "wb", buffering=0) as file:
        file.write(data + b"\n" * (old - len(data)))


def _line(record: Record, zone: str) -> str:
    """The names of a VM for the VMs in a zone."""
    short = f" {record.name}" if record.zone == zone else ""
    return f"{record.address} {full_name(record)}{short}\n"


def _network(record: Record) -> tuple[str, str]:
    interfaces = record.resource.get("networkInterfaces") or [{}]
    return record.project, str(interfaces[0].get("network", ""))
