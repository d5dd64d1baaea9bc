"""Options of the doctor and of images."""

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
    """Return the options of `doctor`."""
    return (
        word(
            "spec",
            "[SPEC]",
            "the workers to check, such as t4x4",
            many="*",
            completes="gpu",
            default="cpu+t4: a worker without a GPU, and one with a cheap GPU",
        ),
        *group(
            "Checks",
            PROJECT,
            replace(ZONE, help="zones to check, in order, with commas between them"),
        ),
        *group(
            NETWORK,
            *NETWORK_OPTIONS,
            IMAGE,
        ),
    )


def images() -> dict[str, tuple[Option, ...]]:
    """Return the options of `image`, by sub-command."""
    return {
        "image": (
            word(
                "verb",
                "|".join(IMAGE_VERBS),
                "the sub-command; -h after it lists its options",
                many="?",
            ),
        ),
        "image build": _build(),
        "image list": (PROJECT,),
        "image delete": (word("name", "NAME", "the image", completes="image"), PROJECT),
    }


def _build() -> tuple[Option, ...]:
    return (
        word("name", "NAME", "the image's name", many="?", default="transient-TIME"),
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
                "the purpose of clusters that boot from it: training, or jobs without TensorFlow",
                default="training",
                name="purpose",
                **one_of("--for", PURPOSES),
            ),
            flag("--no-gpu", "install no NVIDIA driver"),
            flag(
                "--disk-gb",
                "disk size of the build VM and of VMs that boot from the image",
                whole("--disk-gb", 10),
                default="50",
                metavar="GB",
            ),
            wait_until("the image is ready"),
        ),
        *group(
            "Build VM",
            flag(
                "--zone",
                "zone of the build VM",
                one_zone("--zone"),
                default="the best of the catalog",
                completes="zone",
            ),
            flag("--machine-type", "machine type of the build VM", str, default="n1-standard-4"),
            VM_NETWORK,
            SUBNET,
            replace(
                NO_EXTERNAL_IP,
                help="use no external address: packages are downloaded through Cloud NAT",
            ),
        ),
    )


def check_doctor(values: dict[str, Any], called: str) -> None:
    """Check the groups of workers against the catalog."""
    if values.get("spec"):
        check_declare(values, called)
