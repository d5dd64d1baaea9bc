"""Images that VMs boot from, their boot times, and the packages of `--pip`.

A VM whose image has all the software answers within two minutes. One that installs it takes longer,
most of all with a GPU. Without TensorFlow a twelfth remains to install: 27 packages with 0.2 GB on
disk instead of 102 with 2.7 GB.

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
"""The image families that this program builds, by the purpose of their clusters."""
DEBIAN = "projects/debian-cloud/global/images/family/debian-12"


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """An image, and the VM that builds it.

    Attributes
    ----------
    declared_at
        Seconds since 1970 (UTC).
    project
        None: everything happens on the emulator.
    base
        A full or partial URL of an image or a family.
    gpu
        Whether the image gets an NVIDIA driver.
    disk_gb
        Size of the disk in GB.
    purpose
        What clusters that boot from the image are for.
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
    """Eight random hexadecimal digits, which distinguish its VM from every other."""

    @property
    def vm(self) -> str:
        """The name of the VM that builds the image."""
        return "-".join(filter(None, ["image", self.name, self.id]))

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values; `from_dict` reads them as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote; fields of newer versions are ignored. Raises ValueError."""
        return checks.built(cls, values)


_BAKED_PATIENCE = 600.0
_INSTALL_PATIENCE = 900.0
_GPU_PATIENCE = 1800.0
# shortest boot times; for VMs that install software they are estimates
_BAKED_BOOT = 120.0
_INSTALL_BOOT = 300.0
_GPU_BOOT = 600.0
# the same without TensorFlow and its CUDA libraries
_LIGHT_BOOT = 180.0
_LIGHT_GPU_BOOT = 420.0


def image_of(spec: ClusterSpec, gpu: str) -> str:
    """Return the image that VMs with this GPU boot from; '' for plain Debian."""
    if spec.image_for_gpus or not has_gpu(gpu):
        return spec.image or ""
    return ""


def has_gpu(name: str) -> bool:
    """Return whether the catalog's `name` is a GPU; '' and `cpu` are not."""
    return bool(name and accelerator(name).compute_engine_name)


def boot_patience(spec: ClusterSpec, gpu: str) -> float:
    """Return the seconds without output or answer after which a booting VM counts as failed.

    The longest step determines them: some 0.7 GB of packages for TensorFlow; with a GPU 2.5 GB more
    and a driver that the VM builds.
    """
    return _by_image(spec, gpu, _BAKED_PATIENCE, _INSTALL_PATIENCE, _GPU_PATIENCE)


def least_boot_seconds(spec: ClusterSpec, gpu: str) -> float:
    """Return the shortest boot time of such a VM in seconds; 0 on the emulator, which sets its own."""
    if spec.emulated:
        return 0.0
    return usual_boot_seconds(spec, gpu)


def usual_boot_seconds(spec: ClusterSpec, gpu: str) -> float:
    """Return the shortest boot time on Compute Engine in seconds, for emulated clusters too."""
    if spec.purpose == JOBS:
        return _by_image(spec, gpu, _BAKED_BOOT, _LIGHT_BOOT, _LIGHT_GPU_BOOT)
    return _by_image(spec, gpu, _BAKED_BOOT, _INSTALL_BOOT, _GPU_BOOT)


def _by_image(
    spec: ClusterSpec, gpu: str, baked: float, installing: float, with_driver: float
) -> float:
    if image_of(spec, gpu):
        return baked
    if has_gpu(gpu):
        return with_driver
    return installing


WHERE = "--pip"
_NAMED = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[A-Za-z0-9._,\s-]*\])?")
_RANGES = re.compile(r"\s*(?:\(?\s*(?:===|==|~=|!=|<=|>=|<|>)[^@/\\]*)?")
_ARCHIVE = re.compile(
    r".*\.(?:whl|zip|tar|tgz|tbz|txz|tlz|tar\.(?:gz|bz2|xz|lz|lzma))", re.IGNORECASE
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")
_NAME = "Write names of packages, or paths or URLs of package files."
_BUILD = (
    "Name a wheel, or add --pip-build. It builds the package on the controller's machine and "
    "runs its code there."
)


def check_package(word: str, *, build: bool = False) -> str:
    """Return the place of a wheel or archive (a path or URL); '' for a package of an index.

    Raises DeclarationError for an invalid requirement.
    """
    if not word.isprintable():
        raise DeclarationError(f"Invalid package name {word!r}", where=WHERE, fix=_NAME)
    named = _NAMED.match(word)
    rest = ""
    if named:
        rest = word[named.end() :]
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
    """Return the text without user names and queries of its URLs, which may contain secrets."""
    return re.sub(r"(://)[^\s/@]*@|\?[^\s#'\")]+", r"\1", text)


def _place(word: str, place: str, build: bool) -> str:
    url = urlsplit(quote(place) if place.startswith("/") else place)
    if "@" in url.netloc or url.query:
        raise DeclarationError(
            "A URL must not contain a user, a password or a token, because it is stored: "
            f"{without_secrets(word)}",
            where=WHERE,
            fix="Download the file here (`pip download`), and name the file.",
        )
    if url.scheme not in ("", "file", "http", "https"):
        fix = "Build a wheel of it here (`pip wheel`), and name the file."
        raise DeclarationError(f"'{word}' is not a package file", where=WHERE, fix=fix)
    if not url.path.lower().endswith(".whl") and not build:
        raise DeclarationError(
            f"'{word}' is not a wheel, so it would have to be built", where=WHERE, fix=_BUILD
        )
    return place
