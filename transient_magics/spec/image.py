"""What VMs boot from and install: images, boot times and the packages of `--pip`.

A VM whose image has all that it needs answers within two minutes; one that installs it takes
longer, with a GPU most. Without TensorFlow there is a twelfth to install: 27 packages of 0.2 GB on
disk, where 102 have 2.7 GB.

`--pip` takes requirements, wheels by file or URL, and sources where builds are allowed. The journal
and the bucket keep the URLs, so a URL with a secret is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Literal, Self
from urllib.parse import quote, urlsplit

from ..catalog import accelerator
from ..errors import DeclarationError
from ..protocol import checks
from .cluster import JOBS, TRAINING, ClusterSpec

FAMILIES: Mapping[str, str] = MappingProxyType(
    {TRAINING: "transient-magics", JOBS: "transient-magics-jobs"}
)
"""The families of all images that are baked here, by what they are for."""
DEBIAN = "projects/debian-cloud/global/images/family/debian-12"


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """An image and the VM that it is made with. `declared_at` in seconds since 1970 (UTC), the disk
    in GB.

    `base`: a full or partial URL of an image or a family; `gpu`: with an NVIDIA driver; `purpose`:
    what clusters that boot from it are for. Without a `project` all happens on the emulator.
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


_BAKED_PATIENCE = 600.0
_INSTALL_PATIENCE = 900.0
_GPU_PATIENCE = 1800.0
# the least; those that install by estimate
_BAKED_BOOT = 120.0
_INSTALL_BOOT = 300.0
_GPU_BOOT = 600.0
# the same where no TensorFlow is installed, and none of its CUDA libraries
_LIGHT_BOOT = 180.0
_LIGHT_GPU_BOOT = 420.0


def image_of(spec: ClusterSpec, gpu: str) -> str:
    """The image that VMs with this GPU boot from; empty: plain Debian."""
    if spec.image_for_gpus or not has_gpu(gpu):
        return spec.image or ""
    return ""


def has_gpu(name: str) -> bool:
    """Whether what the catalog calls so is a GPU; nothing and `cpu` are none."""
    return bool(name and accelerator(name).compute_engine_name)


def boot_patience(spec: ClusterSpec, gpu: str) -> float:
    """Seconds without a word of the start-up script, or an answer, after which a VM is taken for
    failed.

    They follow from the longest step: some 0.7 GB of packages for TensorFlow, with a GPU 2.5 GB
    more and a driver that is built there.
    """
    return _by_image(spec, gpu, _BAKED_PATIENCE, _INSTALL_PATIENCE, _GPU_PATIENCE)


def least_boot_seconds(spec: ClusterSpec, gpu: str) -> float:
    """Seconds that such a VM needs at least before it is of any use; 0 on the emulator, where that
    is up to it.
    """
    if spec.emulated:
        return 0.0
    return usual_boot_seconds(spec, gpu)


def usual_boot_seconds(spec: ClusterSpec, gpu: str) -> float:
    """The same on Compute Engine, of an emulated cluster too."""
    if spec.purpose == JOBS:
        return _by_image(spec, gpu, _BAKED_BOOT, _LIGHT_BOOT, _LIGHT_GPU_BOOT)
    return _by_image(spec, gpu, _BAKED_BOOT, _INSTALL_BOOT, _GPU_BOOT)


def _by_image(
    spec: ClusterSpec, gpu: str, baked: float, installing: float, with_driver: float
) -> float:
    if image_of(spec, gpu):
        return baked
    return with_driver if has_gpu(gpu) else installing


WHERE = "--pip"
_NAMED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?")
_RANGES = re.compile(r"\s*(?:\(?\s*(?:===|==|~=|!=|<=|>=|<|>)[^@/\\]*)?")
_ARCHIVE = re.compile(
    r".*\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.(?:gz|bz2|xz|lz|lzma))", re.IGNORECASE
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")
_NAME = "Name packages, or files of packages."
_BUILD = "Name a wheel, or add --pip-build, which builds it where the controller runs: its own code runs there then."


def check_package(word: str, *, build: bool = False) -> str:
    """The place of a wheel or an archive (a path or a URL), empty for what an index has. Raises
    DeclarationError.
    """
    if not word.isprintable():
        raise DeclarationError(f"Invalid package name {word!r}", where=WHERE, fix=_NAME)
    named = _NAMED.match(word)
    if named:
        rest = word[named.end() :]
    else:
        rest = ""
    if named and rest.lstrip().startswith("@"):
        return _place(word, rest.lstrip()[1:].split(";")[0].strip(), build)
    if _URL.match(word) or word.startswith("/") or _ARCHIVE.fullmatch(word):
        return _place(word, word, build)
    if not named or not _RANGES.fullmatch(rest.split(";")[0]):
        raise DeclarationError(
            f"Invalid package name '{without_secrets(word)}'", where=WHERE, fix=_NAME
        )
    return ""


def without_secrets(text: str) -> str:
    """The text without what may stand in URLs before their host or behind a question mark."""
    return re.sub(r"(://)[^\s/@]*@|\?[^\s#'\")]+", r"\1", text)


def _place(word: str, place: str, build: bool) -> str:
    url = urlsplit(quote(place) if place.startswith("/") else place)
    if "@" in url.netloc or url.query:
        raise DeclarationError(
            f"A URL with a user, a password or a token would be written down: {without_secrets(word)}",
            where=WHERE,
            fix="Download the file here (`pip download`), and name the file.",
        )
    if url.scheme not in ("", "file", "http", "https"):
        fix = "Build a wheel of it here (`pip wheel`), and name the file."
        raise DeclarationError(f"'{word}' is no file of a package", where=WHERE, fix=fix)
    if not url.path.lower().endswith(".whl") and not build:
        raise DeclarationError(
            f"'{word}' is no wheel and would have to be built", where=WHERE, fix=_BUILD
        )
    return place
