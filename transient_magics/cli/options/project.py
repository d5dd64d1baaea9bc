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
            default="cpu+t4: one worker without a GPU, and one with a T4",
        ),
        *group(
            "Checks",
            PROJECT,
            replace(ZONE, help="zones to check, in this order, separated by commas"),
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
                "the sub-command; add -h to list its options",
                many="?",
            ),
        ),
        "image build": _build(),
        "image list": (PROJECT,),
        "image delete": (word("name", "NAME", "the image", completes="image"), PROJECT),
    }


def _build() -> tuple[Option, ...]:
    return (
        word("name", "NAME", "the name of the new image", many="?", default="transient-TIME"),
        *group(
            "Image",
            PROJECT,
            flag(
                "--base",
                "the image from which to start: NAME or family/NAME of the project, or a URL",
                str,
                default="Debian 12",
                metavar="IMAGE",
            ),
            flag(
                "--for",
                "purpose of the clusters that use the image. training: everything; jobs: without "
                "TensorFlow",
                default="training",
                name="purpose",
                **one_of("--for", PURPOSES),
            ),
            flag("--no-gpu", "do not install the NVIDIA driver"),
            flag(
                "--disk-gb",
                "disk size of the build VM, and of VMs that boot from the image",
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
                default="the best zone in the catalog",
                completes="zone",
            ),
            flag("--machine-type", "machine type of the build VM", str, default="n1-standard-4"),
            VM_NETWORK,
            SUBNET,
            replace(
                NO_EXTERNAL_IP,
                help="create the build VM without an external address; it then downloads packages "
                "through Cloud NAT",
            ),
        ),
    )


def check_doctor(values: dict[str, Any], called: str) -> None:
    """Check the groups of workers against the catalog."""
    if values.get("spec"):
        check_declare(values, called)
