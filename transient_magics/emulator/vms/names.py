"""The names of VMs, as Compute Engine's DNS resolves them within a network: in the hosts file of each VM.

A VM resolves its own name and those of the VMs of its network that run: NAME.ZONE.c.PROJECT.internal, and NAME alone
within its own zone, as the search path of Compute Engine's VMs does. Where VMs have no mounts of their own (isolation
`network` or `off`) they have the names of this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..instances import Record

METADATA = "169.254.169.254 metadata.google.internal metadata"


def full_name(record: Record) -> str:
    """The name by which all VMs of its network find a VM."""
    return f"{record.name}.{record.zone}.c.{record.project}.internal"


def hosts_file(own: Record, running: Iterable[Record]) -> str:
    """The content of the hosts file of `own` while these VMs run. Its own name comes first: a long file is read in
    parts."""
    lines = ["127.0.0.1 localhost", _line(own, own), METADATA]
    beside = [each for each in running if each.key != own.key and _network(each) == _network(own)]
    lines += sorted(_line(each, own) for each in beside)
    return "".join(f"{line}\n" for line in lines)


def replace_content(path: Path, content: str) -> None:
    """Replace the content of a file that is mounted elsewhere, so must stay the same file.

    It is written at once and never gets shorter: a reader sees no half of it.
    """
    old = path.stat().st_size if path.exists() else 0
    data = content.encode()
    with path.open("r+b" if old else "wb", buffering=0) as file:
        file.write(data + b"\n" * (old - len(data)))


def _line(record: Record, reader: Record) -> str:
    short = f" {record.name}" if record.zone == reader.zone else ""
    return f"{record.address} {full_name(record)}{short}"


def _network(record: Record) -> tuple[str, str]:
    interfaces = record.resource.get("networkInterfaces") or [{}]
    return record.project, str(interfaces[0].get("network", ""))
