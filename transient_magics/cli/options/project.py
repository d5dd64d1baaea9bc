"""What may be said of a project: whether all is there, and its images."""

from __future__ import annotations

from typing import Any

from ...errors import DeclarationError
from ...spec import PURPOSES
from ..option import (
    Option,
    address_ranges,
    bucket,
    flag,
    one_of,
    one_zone,
    positive,
    whole,
    word,
    zones,
)
from .clusters import check_declare
from .shared import PROJECT, WAIT
from .words import IMAGE_VERBS


def doctor() -> tuple[Option, ...]:
    """Of the doctor."""
    return (
        word("spec", "[SPEC]", "what to look for, as t4x4 (cpu+t4: a worker without a GPU and a cheap one)", many="*",
             completes="gpu"),
        PROJECT,
        flag("--spend", "also go through the hour's course, which costs so many US dollars at most: a VM, an image, a "
              "GPU, a step of training, a notice, a checkpoint in the bucket, and nothing left", positive("--spend"),
              metavar="DOLLARS"),
        flag("--yes", "agree to what the course costs"),
        flag("--anyway", "go through the course also where something is not good"),
        flag("--report", "the file of the report, which has no names of yours in it (doctor-report.json in the user's "
              "data directory)", str, name="report_to", completes="path", metavar="FILE"),
        flag("--zone", "several with commas: tried in that order", zones, completes="zone"),
        flag("--bucket", "as of a cluster", bucket),
        flag("--image", "as of a cluster", str, completes="image"),
        flag("--service-account", "as of a cluster", str),
        flag("--network", "as of a cluster", str),
        flag("--subnet", "as of a cluster", str),
        flag("--firewall", "as of a cluster (on)", negated=True),
        flag("--ssh-from", "as of a cluster", address_ranges, metavar="RANGE,..."),
        flag("--no-external-ip", "as of a cluster"),
    )  # fmt: skip


def images() -> dict[str, tuple[Option, ...]]:
    """Of images, by sub-command."""
    return {
        "image": (word("verb", "|".join(IMAGE_VERBS), "what to do; each has -h", many="?"),),
        "image build": _build(),
        "image list": (PROJECT,),
        "image delete": (word("name", "NAME", "the image", completes="image"), PROJECT),
    }  # fmt: skip


def _build() -> tuple[Option, ...]:
    return (
        word("name", "NAME", "the image's name (transient- and the time)", many="?"),
        PROJECT,
        flag("--zone", "where the VM is that it is made with (the catalog's best)", one_zone("--zone"),
              completes="zone"),
        flag("--base", "what it is made from: NAME or family/NAME of the project, or a URL (Debian 12)", str,
              metavar="IMAGE"),
        flag("--no-gpu", "without an NVIDIA driver"),
        flag("--for", "what clusters that boot from it are for: training, or jobs alone, without TensorFlow (training)",
              name="purpose", **one_of("--for", PURPOSES)),
        flag("--machine-type", "of that VM (n1-standard-4)", str),
        flag("--disk-gb", "of its disk, and of VMs that boot from the image (50)",
              whole("--disk-gb", 10), metavar="GB"),
        flag("--network", "that VM's network", str),
        flag("--subnet", "that VM's subnet", str),
        flag("--no-external-ip", "no external address: packages come through Cloud NAT"),
        flag("--wait", WAIT.format("the image is there")),
    )  # fmt: skip


def check_doctor(values: dict[str, Any], called: str) -> None:
    """Options of the hour's course, with `--spend`."""
    if values.get("spec"):
        check_declare(values, called)
    for option in ("yes", "anyway"):
        if values.get(option) and "spend" not in values:
            raise DeclarationError(f"--{option} is about what --spend pays for", fix=f"For example: {called} --spend 1")
