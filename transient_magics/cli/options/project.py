"""The options of the doctor and of images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...spec import PURPOSES
from ..option import (
    Option,
    flag,
    group,
    one_of,
    one_zone,
    whole,
    word,
)
from .clusters import check_declare
from .shared import (
    IMAGE,
    NETWORK,
    NETWORK_OPTIONS,
    NO_EXTERNAL_IP,
    PROJECT,
    SUBNET,
    VM_NETWORK,
    ZONE,
    wait_until,
)
from .words import IMAGE_VERBS


def doctor() -> tuple[Option, ...]:
    """Return the options of the doctor."""
    return (
        word(
            "spec",
            "[SPEC]",
            "the workers to check, such as t4x4",
            many="*",
            completes="gpu",
            default="cpu+t4: a worker without a GPU and a cheap one",
        ),
        *group(
            "Checks",
            PROJECT,
            replace(ZONE, help="the zones to check; several with commas are tried in that order"),
        ),
        *group(
            NETWORK,
            *NETWORK_OPTIONS,
            IMAGE,
        ),
    )


def images() -> dict[str, tuple[Option, ...]]:
    """Return the options of images, by sub-command."""
    return {
        "image": (word("verb", "|".join(IMAGE_VERBS), "what to do; each has -h", many="?"),),
        "image build": _build(),
        "image list": (PROJECT,),
        "image delete": (word("name", "NAME", "the image", completes="image"), PROJECT),
    }


def _build() -> tuple[Option, ...]:
    return (
        word("name", "NAME", "the image's name", many="?", default="transient- and the time"),
        *group(
            "Image",
            PROJECT,
            flag(
                "--base",
                "the image to start from: NAME or family/NAME of the project, or a URL",
                str,
                default="Debian 12",
                metavar="IMAGE",
            ),
            flag(
                "--for",
                "what clusters that boot from it are for: training, or jobs without TensorFlow",
                default="training",
                name="purpose",
                **one_of("--for", PURPOSES),
            ),
            flag("--no-gpu", "install no NVIDIA driver"),
            flag(
                "--disk-gb",
                "the disk of the build VM and of VMs that boot from the image",
                whole("--disk-gb", 10),
                default="50",
                metavar="GB",
            ),
            wait_until("the image is there"),
        ),
        *group(
            "Build VM",
            flag(
                "--zone",
                "its zone",
                one_zone("--zone"),
                default="the catalog's best",
                completes="zone",
            ),
            flag("--machine-type", "its machine type", str, default="n1-standard-4"),
            VM_NETWORK,
            SUBNET,
            replace(
                NO_EXTERNAL_IP, help="use no external address: packages come through Cloud NAT"
            ),
        ),
    )


def check_doctor(values: dict[str, Any], called: str) -> None:
    """Groups of workers that the catalog has."""
    if values.get("spec"):
        check_declare(values, called)
