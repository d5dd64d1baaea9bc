"""`python -m transient_magics.controller.fetch < request`: bring a run's checkpoints (and results) from its bucket.

The request is one JSON object: `store` (gs://bucket/path), `project` (null: the emulator's), `folder`, and `results`
(false: checkpoints alone). Prints one: `{"steps": [N, ...], "refused": [sentence, ...]}` or `{"error": sentence}`. A
checkpoint whose files are not what the manifest says is left out.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..cloud import CloudStorage
from ..errors import GoneError, TrainingError
from ..runtime import manifest
from ..runtime.checkpoints import Checkpoints
from ..spec import EMULATED_PROJECT
from .answer import answer


async def fetch(storage: CloudStorage, store: str, folder: Path, *, results: bool = True) -> dict[str, Any]:
    """Bring what is at `store` into `folder`. Raises CloudError, or TrainingError where no checkpoint is good."""
    bucket, path = manifest.split(store)
    values, _ = await storage.read_json(bucket, path + manifest.NAME)
    known = manifest.Manifest.from_dict(values) if values is not None else manifest.Manifest()
    target = folder / "checkpoints"
    target.mkdir(parents=True, exist_ok=True)
    steps, refused = [], []
    for checkpoint in known.checkpoints:
        try:
            await _fetch_one(storage, bucket, path, checkpoint, target)
        except (GoneError, TrainingError) as error:  # dropped for newer ones just now, or damaged
            refused.append(f"step {checkpoint.step}: {error}")
        else:
            steps.append(checkpoint.step)
    if refused and not steps:
        raise TrainingError("no checkpoint of the run is as its manifest says", where="; ".join(refused))
    if here := Checkpoints(target).steps():
        (target / "checkpoint").write_text(manifest.state_file(reversed(here)))
    if results:
        for each in await storage.list(bucket, path):
            name = each.name.removeprefix(path)
            if "/" not in name and name:
                await storage.download(bucket, each.name, folder / name)
    return {"steps": steps, "refused": refused}


async def _fetch_one(
    storage: CloudStorage, bucket: str, path: str, checkpoint: manifest.Checkpoint, target: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetching-") as temporary:
        for file in checkpoint.files:
            place = Path(temporary) / file.name
            await storage.download(bucket, f"{path}{checkpoint.folder}/{file.name}", place)
            if manifest.described(place) != file:
                raise TrainingError(f"{file.name} is not what the manifest says")
        for file in sorted(checkpoint.files, key=lambda file: file.name.endswith(".index")):
            shutil.move(Path(temporary) / file.name, target / file.name)


async def _fetch(request: dict[str, Any]) -> dict[str, Any]:
    endpoint = None
    if request["project"] is None:
        from .. import emulator

        endpoint = await asyncio.to_thread(emulator.ensure)
    async with CloudStorage(request["project"] or EMULATED_PROJECT, endpoint) as storage:
        return await fetch(storage, request["store"], Path(request["folder"]), results=request["results"])


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    return answer(_fetch(json.load(sys.stdin)))


if __name__ == "__main__":
    sys.exit(main())
