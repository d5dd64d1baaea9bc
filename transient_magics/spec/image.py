"""ImageSpec: everything that was declared about one image that is to be baked, frozen, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal, Self

from ..protocol import checks
from .cluster import JOBS, TRAINING

FAMILIES: Mapping[str, str] = MappingProxyType({TRAINING: "transient-magics", JOBS: "transient-magics-jobs"})
"""The families of all images that are baked here, by what they are for."""
DEBIAN = "projects/debian-cloud/global/images/family/debian-12"


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """An image and the VM that it is made with. `declared_at` in seconds since 1970 (UTC), the disk in GB.

    `base`: a full or partial URL of an image or a family; `gpu`: with an NVIDIA driver; `purpose`: what clusters
    that boot from it are for. Without a `project` all happens on the emulator.
    """

    name: str
    zone: str
    declared_at: float
    project: str | None = None
    base: str = DEBIAN
    gpu: bool = True
    machine_type: str = "n1-standard-4"
    disk_gb: int = 50
    network: str = ""
    subnet: str = ""
    external_ip: bool = True
    purpose: Literal["training", "jobs"] = TRAINING
    id: str = ""
    """Eight hexadecimal digits, drawn when it was declared: what tells its VM from every other."""

    @property
    def vm(self) -> str:
        """The name of the VM that the image is made with."""
        return "-".join(filter(None, ["image", self.name, self.id]))

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; `from_dict` reads them back as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote; fields of newer versions are ignored. Raises ValueError."""
        return checks.built(cls, values)
