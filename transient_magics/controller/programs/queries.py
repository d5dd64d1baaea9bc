"""Answer one question about a project: `python -m ...programs.queries QUESTION`.

=============================== =====================================================
question                        the JSON object that is printed
=============================== =====================================================
`attach NAME [PROJECT]`         `{"folder": path}`: the folder made to follow a cluster
                                that another machine declared
`prices PROJECT`                `{"rows": number}`: today's prices, kept on this machine
`images [PROJECT]`              `{"images": [...]}`: the images that were baked
`delete-image NAME [PROJECT]`   `{"deleted": bool, "names": [...]}`
=============================== =====================================================

An error prints its parts and its class instead. Without a project the question is about the
emulator.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...cloud import BASE_LABEL, Image
from ...spec.image import FAMILIES
from ..remote_controller.attach import attach
from ..vms.access import to_project
from ..vms.lookup import refresh_prices
from ..vms.startup import lock_hash
from . import print_answer


async def attach_cluster(name: str, project: str | None) -> dict[str, Any]:
    """Make the folder of a cluster that another machine declared, and return its path."""
    return {"folder": str(await attach(name, project))}


async def ask_prices(project: str) -> dict[str, Any]:
    """Read today's prices with the project's credentials, and return how many there are."""
    async with to_project(project) as access:
        await access.reopen()
        return {"rows": await refresh_prices(access.engine, older_than=0.0)}


async def list_images(project: str | None) -> dict[str, Any]:
    """Return all images of our families, the oldest first."""
    async with to_project(project) as access:
        await access.reopen()
        return {"images": [_described(image) for image in await access.engine.images.list()]}


async def delete_image(name: str, project: str | None) -> dict[str, Any]:
    """Delete an image if it was baked by this program.

    Returns whether an image of that name existed, and the names of all images before.
    """
    async with to_project(project) as access:
        await access.reopen()
        names = [image.name for image in await access.engine.images.list()]
        if name in names:
            await access.engine.images.delete(name)
        return {"deleted": name in names, "names": names}


def _described(image: Image) -> dict[str, Any]:
    """Return the fields of an image that clients show."""
    current = image.purpose in FAMILIES and image.lock == lock_hash(
        with_gpu=image.with_gpu, purpose=image.purpose
    )
    return {
        "name": image.name,
        "created": image.created.timestamp() if image.created else 0.0,
        "ready": image.ready,
        "disk_gb": image.disk_gb,
        "stored_gb": image.stored_gb,
        "base": image.labels.get(BASE_LABEL, ""),
        "gpu": image.with_gpu,
        "lock": image.lock,
        "for": image.purpose,
        "current": current,
    }


def main() -> int:
    """Print the answer to the question of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    questions = parser.add_subparsers(dest="question", required=True)
    questions.add_parser("prices").add_argument("project")
    questions.add_parser("images").add_argument("project", nargs="?")
    for question in ("attach", "delete-image"):
        about_name = questions.add_parser(question)
        about_name.add_argument("name")
        about_name.add_argument("project", nargs="?")
    values = parser.parse_args()
    match values.question:
        case "attach":
            return print_answer(attach_cluster(values.name, values.project))
        case "prices":
            return print_answer(ask_prices(values.project))
        case "images":
            return print_answer(list_images(values.project))
        case _:
            return print_answer(delete_image(values.name, values.project))


if __name__ == "__main__":
    sys.exit(main())
