"""`python -m ...programs.images list|delete [--name NAME] [PROJECT]`: the images of a project.

Prints one JSON object: `{"images": [...]}`, `{"deleted": true, "names": [...]}` or `{"error":
sentence}`. Without a project it is about the emulator.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...cloud import BASE_LABEL, Image
from ...spec.image import FAMILIES
from ..answer import answer
from ..vms.access import to_project
from ..vms.startup import lock_hash


async def listed(project: str | None) -> dict[str, Any]:
    """All images of our families, the oldest first."""
    async with to_project(project) as access:
        await access.reopen()
        return {"images": [_shown(image) for image in await access.engine.images.list()]}


async def deleted(project: str | None, name: str) -> dict[str, Any]:
    """Delete one, only one that was baked here; whether there was one of that name, and the names
    that there were.
    """
    async with to_project(project) as access:
        await access.reopen()
        names = [image.name for image in await access.engine.images.list()]
        if name in names:
            await access.engine.images.delete(name)
        return {"deleted": name in names, "names": names}


def _shown(image: Image) -> dict[str, Any]:
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
        "current": image.purpose in FAMILIES
        and image.lock == lock_hash(with_gpu=image.with_gpu, purpose=image.purpose),
    }


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("list", "delete"))
    parser.add_argument("--name", default="")
    parser.add_argument("project", nargs="?")
    asked = parser.parse_args()
    return answer(
        listed(asked.project) if asked.verb == "list" else deleted(asked.project, asked.name)
    )


if __name__ == "__main__":
    sys.exit(main())
