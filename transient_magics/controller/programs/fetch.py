"""Copy a run's checkpoints (and results) from its bucket: `python -m ...programs.fetch < request`.

The request is one JSON object: `store` (gs://bucket/path), `project` (null: the emulator's),
`folder`, and `results` (false: checkpoints alone). Prints one: `{"steps": [N, ...], "refused":
[sentence, ...]}` or `{"error": sentence}`. A checkpoint whose files differ from the manifest is
left out.

Others may write to the bucket, including the VMs of the run. A file is downloaded only if its name
and size are those expected of a run's file.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...cloud import CloudStorage, Stored
from ...errors import ChangedError, GoneError, TrainingError
from ...kinds import load
from ...protocol import layout
from ...runtime.files import manifest
from ...runtime.files.checkpoints import Checkpoints
from ...spec import EMULATED_PROJECT
from . import print_answer

_MOST_OBJECTS = 100_000
# Of one file beside the checkpoints.
_MOST_BYTES = 1 << 30


async def fetch(
    storage: CloudStorage, store: str, folder: Path, *, results: bool = True
) -> dict[str, Any]:
    """Copy the files at `store` to `folder`.

    Raises CloudError, or TrainingError if no checkpoint is good.
    """
    bucket, path = manifest.split(store)
    there = {
        stored.name: stored
        for stored in await storage.list(bucket, f"{path}checkpoints/", most=_MOST_OBJECTS)
    }
    target = folder / layout.CHECKPOINTS
    target.mkdir(parents=True, exist_ok=True)
    listing = await _manifest(storage, bucket, path, there, target)
    steps: list[int] = []
    refused: list[str] = []
    for checkpoint in listing.checkpoints:
        try:
            await _fetch_one(storage, bucket, path, checkpoint, there, target)
        except (
            GoneError,
            ChangedError,
            TrainingError,
        ) as error:
            # It was just dropped for newer ones, or is damaged.
            refused.append(f"step {checkpoint.step}: {error}")
        else:
            steps.append(checkpoint.step)
    if refused and not steps:
        raise TrainingError(
            "all checkpoints of the run differ from their manifest", where="; ".join(refused)
        )
    if here := Checkpoints(target).steps():
        (target / "checkpoint").write_text(manifest.state_file(reversed(here)), encoding="utf-8")
    if listing.best and listing.best.step in steps:
        Checkpoints(target).keep_best(listing.best)
    if results:
        for name in sorted(load("run", "artifacts").NAMES):
            for stored in await storage.list(bucket, path + name, most=1):
                if stored.name == path + name and stored.size <= _MOST_BYTES:
                    await storage.download(
                        bucket, stored.name, folder / name, generation=stored.generation
                    )
    return {"steps": steps, "refused": refused}


async def _manifest(
    storage: CloudStorage, bucket: str, path: str, there: dict[str, Stored], target: Path
) -> manifest.Manifest:
    """Return the manifest; if it is lost or damaged, one of the complete checkpoints."""
    name = path + manifest.NAME
    damage = None
    if found := there.get(name):
        with tempfile.TemporaryDirectory(dir=target, prefix=".fetching-") as temporary:
            try:
                if found.size > manifest.MOST_BYTES:
                    raise TrainingError("the manifest of the checkpoints is too large")
                await storage.download(bucket, name, copy := Path(temporary) / "manifest.json")
                return manifest.Manifest.read(copy.read_bytes())
            except TrainingError as error:
                damage = TrainingError(error.what, where=f"gs://{bucket}/{name}")
    oldest_first = sorted(there.values(), key=lambda stored: stored.generation)
    whole = manifest.Manifest.from_objects(
        (stored.name.removeprefix(path), stored.size, stored.crc32c) for stored in oldest_first
    )
    if damage and not whole.newest:
        raise damage
    return whole


async def _fetch_one(
    storage: CloudStorage,
    bucket: str,
    path: str,
    checkpoint: manifest.Checkpoint,
    there: dict[str, Stored],
    target: Path,
) -> None:
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetching-") as temporary:
        for file in checkpoint.files:
            place = Path(temporary) / file.name
            name = f"{path}{checkpoint.folder}/{file.name}"
            if name not in there:
                raise TrainingError(f"{file.name} is missing")
            if (there[name].size, there[name].crc32c) != (file.size, file.crc32c):
                raise TrainingError(f"{file.name} differs from the manifest")
            await storage.download(bucket, name, place, generation=there[name].generation)
            if manifest.described(place) != file:
                raise TrainingError(f"{file.name} differs from the manifest")
        for file in sorted(checkpoint.files, key=lambda file: file.name.endswith(".index")):
            shutil.move(Path(temporary) / file.name, target / file.name)


async def _fetch(request: dict[str, Any]) -> dict[str, Any]:
    endpoint = None
    if request["project"] is None:
        from ... import emulator

        endpoint = await asyncio.to_thread(emulator.ensure)
    async with CloudStorage(request["project"] or EMULATED_PROJECT, endpoint) as storage:
        return await fetch(
            storage, request["store"], Path(request["folder"]), results=request["results"]
        )


def main() -> int:
    """Return exit code 0, or 1 with the reason in the output."""
    return print_answer(_fetch(json.load(sys.stdin)))


if __name__ == "__main__":
    sys.exit(main())
