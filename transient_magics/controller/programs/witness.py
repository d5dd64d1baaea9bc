"""`python -m ...programs.witness < question.json`: what Compute Engine itself says of clusters.

The question: `{"project", "clusters": [spec.json of each], "images": [spec.json of builds], "zones": [where their VMs
were], "clear": bool}`. The answer, one JSON object: `{"vms": [...], "operations": [...], "disks": [...], "rules":
[names], "images": [names], "objects": [gs://...], "cleared": number of objects}`. With `clear` what these clusters keep
in their bucket is deleted and counted; it is never anything else's, for a cluster's place there has its id in its name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.files.manifest import split
from ...spec import ClusterSpec, ImageSpec, cluster_store
from ..answer import answer
from ..vms.access import Access, to_project
from ..vms.machines import ID_LABEL, instance_name, ruled_by


async def testimony(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a question as above. Raises CloudError."""
    clusters = [ClusterSpec.from_dict(each) for each in question["clusters"]]
    builds = [ImageSpec.from_dict(each) for each in question["images"]]
    identities = [each.id for each in (*clusters, *builds)]
    # An emulator without VMs ends after seconds, and on a busy machine the questions take longer: it is to wait.
    async with to_project(question["project"]) as access:
        await access.reopen()
        witness, engine = access.engine.witness, access.engine
        vms = [vm for each in identities for vm in await witness.instances({ID_LABEL: each})]
        disks = [disk for each in identities for disk in await witness.disks({ID_LABEL: each})]
        rules = await engine.firewall.find(lambda said: ruled_by(said).get(ID_LABEL) in identities)
        names = [instance_name(spec, name) for spec in clusters for name in ("ps-0", "worker-0")]
        done = [each for zone in question["zones"] for each in await witness.operations(zone, names)]
        images = [each.name for each in builds if await engine.images.exists(each.name)]
    objects, cleared = await _objects(clusters, clear=bool(question.get("clear")))
    return {
        "vms": vms, "operations": done, "disks": disks, "rules": [each["name"] for each in rules],
        "images": images, "objects": objects, "cleared": cleared,
    }  # fmt: skip


async def _objects(clusters: Sequence[ClusterSpec], *, clear: bool) -> tuple[list[str], int]:
    """What the clusters have left in their buckets, and how many objects were deleted."""
    left: list[str] = []
    cleared = 0
    for spec in clusters:
        if not (store := cluster_store(spec)):
            continue
        async with Access(spec) as access:
            await access.reopen()
            if not access.storage or await access.storage.look(spec.bucket.partition("/")[0]) is None:  # type: ignore[union-attr]
                continue
            bucket, path = split(store)
            if clear:
                cleared += len(await access.storage.list(bucket, path))
                await access.storage.delete_prefix(bucket, path)
            left += [f"gs://{bucket}/{each.name}" for each in await access.storage.list(bucket, path)]
    return left, cleared


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    return answer(testimony(json.load(sys.stdin)))


if __name__ == "__main__":
    sys.exit(main())
