"""Bring a run's newest checkpoint into its bucket, or back: `python -m ...programs.shipping ship
--run F`.

`ship` uploads the newest checkpoint of the run's folder (and the best, where that is not there
yet), then names it in the manifest, then deletes what the manifest names no longer. `restore`
downloads the newest checkpoint whose files are what the manifest says, if none as new lies in the
folder, and the best. A process of its own, and when it ships of low priority: training must not
wait for it. It can be killed at any moment; what is half there counts for nothing. Prints one line
of JSON, `{"step": N or null, ...}` or `{"error": "sentence"}`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import TrainingError, TransientError
from ...files import write_atomically
from ...protocol import layout
from ...protocol.objective import Best
from ...protocol.run import RunSpec
from ..files.bucket import Bucket, DamagedError
from ..files.checkpoints import Checkpoints, kept_vocabularies
from ..files.manifest import NAME, Checkpoint, File, Manifest, described, state_file
from ..folder import RunFolder

_NICE = 10
_LEFT_OVER_SECONDS = 3600.0
"""An upload that was not finished within so long never will be."""


def ship(bucket: Bucket, folder: Path, keep: int = 5) -> dict[str, Any]:
    """Upload the newest checkpoint in `folder`, with the vocabularies beside it, which without it
    mean nothing.

    The best one too, where the bucket does not have it. The answer has step, path, seconds and
    bytes of the newest, and `best` with its path; or only `step: null` if there is none.
    """
    started = time.monotonic()
    local = Checkpoints(folder)
    step = next(iter(local.steps()), None)
    manifest, generation = read_manifest(bucket)
    if step is None:
        return {"step": None}
    best = local.best()
    uploaded: list[str] = []
    with local.locked(
        step
    ):  # where few are kept, the next ones may be written faster than this is uploaded
        # The index comes last: whoever finds it there, finds all of it, though no manifest should
        # tell.
        paths = sorted(
            [*kept_vocabularies(folder), *local.files(step)],
            key=lambda path: path.suffix == ".index",
        )
        newest = manifest.newest
        after = manifest
        try:
            if (
                newest is None
                or newest.step != step
                or set(newest.files) != {described(path) for path in paths}
            ):
                after = manifest.adding(
                    Checkpoint(step, "", ()), keep
                )  # refused before anything is uploaded
                after = manifest.with_best(best).adding(
                    newest := _upload(bucket, step, paths, uploaded), keep
                )
            after = after.with_best(best, _best_one(bucket, folder, best, after, uploaded))
            if after != manifest:
                bucket.write_json(NAME, after.to_dict(), generation)
        except (TransientError, OSError):
            for name in uploaded:
                bucket.delete(name)
            raise
    if after != manifest:
        _clean(bucket, manifest, after)
    if after.best:
        judged = after.of(after.best.step)
    else:
        judged = None
    if after.best and judged:
        told = {**asdict(after.best), "path": f"{bucket.place}/{judged.prefix}"}
    else:
        told = None
    return _shipped(bucket, newest, started) | ({"best": told} if told else {})


def _best_one(
    bucket: Bucket, folder: Path, best: Best | None, manifest: Manifest, uploaded: list[str]
) -> Checkpoint | None:
    """The best checkpoint, uploaded just now; None where there is none, or it is in the bucket
    already.
    """
    if best is None or manifest.of(best.step):
        return None
    local = Checkpoints(folder)
    with local.locked(best.step):
        paths = sorted(
            [*kept_vocabularies(folder), *local.files(best.step)],
            key=lambda path: path.suffix == ".index",
        )
        return _upload(bucket, best.step, paths, uploaded)


def _upload(bucket: Bucket, step: int, paths: Sequence[Path], uploaded: list[str]) -> Checkpoint:
    """Upload the files of a checkpoint into a folder of its own; `uploaded` notes the names of what
    is there.
    """
    place = f"{layout.CHECKPOINTS}/{step}-{secrets.token_hex(6)}"
    files = list[File]()
    for path in paths:
        files.append(bucket.upload(path, name := f"{place}/{path.name}"))
        uploaded.append(name)
    return Checkpoint(step, place, tuple(files))


def restore(bucket: Bucket, folder: Path, *, own: bool = True) -> dict[str, Any]:
    """Have the newest good checkpoint in `folder`, and the best; its step, and `refused`: why newer
    ones were passed over.

    `own`: it is the run's own place, and not one that it only resumes from.
    """
    manifest, generation = read_manifest(bucket)
    answer = _restore_newest(bucket, manifest, generation, folder, own=own)
    return {**answer, "refused": [*answer["refused"], *_restore_best(bucket, manifest, folder)]}


def _restore_best(bucket: Bucket, manifest: Manifest, folder: Path) -> list[str]:
    """Have the best one too, unless another is here; why that could not be."""
    local = Checkpoints(folder)
    best = manifest.best
    if best:
        checkpoint = manifest.of(best.step)
    else:
        checkpoint = None
    if best is None or checkpoint is None or local.best():
        return []
    try:
        _download(bucket, checkpoint, folder)
    except DamagedError as error:
        return [f"the best one, step {best.step}: {error}"]
    local.keep_best(best)
    write_atomically(folder / "checkpoint", state_file(reversed(local.steps())))
    return []


def _restore_newest(
    bucket: Bucket, manifest: Manifest, generation: int, folder: Path, *, own: bool
) -> dict[str, Any]:
    local = Checkpoints(folder)
    here = next(iter(local.steps()), None)
    refused: list[str] = []
    for checkpoint in reversed(manifest.checkpoints):
        if here is not None and here > checkpoint.step:
            break
        try:
            _download(bucket, checkpoint, folder)
        except DamagedError as error:
            refused.append(f"step {checkpoint.step}: {error}")
            continue
        if (
            refused and own
        ):  # what is passed over must not stand in the way of the run's next checkpoints
            left = tuple(each for each in manifest.checkpoints if each.step <= checkpoint.step)
            bucket.write_json(NAME, Manifest(left).with_best(manifest.best).to_dict(), generation)
        write_atomically(folder / "checkpoint", state_file(reversed(local.steps())))
        return {"step": checkpoint.step, "refused": refused}
    if refused and here is None:
        raise TrainingError(
            "every checkpoint of the run differs from its manifest", where="; ".join(refused)
        )
    return {"step": here, "refused": refused}


def read_manifest(bucket: Bucket) -> tuple[Manifest, int]:
    """The manifest and its generation; an empty one and 0 where there is none yet.

    Where it is lost or damaged it is what lies there whole: a run never starts from nothing beside
    its checkpoints. Raises TrainingError for a damaged one beside which nothing is whole.
    """
    content, generation = bucket.read(NAME)
    damage: TrainingError | None = None
    if content is not None:
        try:
            return Manifest.read(content), generation
        except TrainingError as error:
            damage = error
    found = Manifest.from_objects(each[:3] for each in bucket.list(f"{layout.CHECKPOINTS}/"))
    if found.newest:
        if damage:
            what = damage.what
        else:
            what = "the manifest of the checkpoints is lost"
        steps = ", ".join(f"{checkpoint.step}" for checkpoint in found.checkpoints)
        print(f"{what}; whole in {bucket.place} are the steps {steps}", file=sys.stderr, flush=True)
    elif damage:
        raise damage
    return found, generation


def _download(bucket: Bucket, checkpoint: Checkpoint, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for file in sorted(
        checkpoint.files, key=lambda file: file.name.endswith(".index")
    ):  # the index makes it one
        path = folder / file.name
        if not path.exists() or described(path) != file:
            bucket.download(file, f"{checkpoint.folder}/{file.name}", path)


def _clean(bucket: Bucket, before: Manifest, after: Manifest) -> None:
    """Delete what the manifest names no longer, and what unfinished uploads left; others may be
    uploading just now.
    """
    named = _objects(after)
    dropped = _objects(before) - _objects(after)
    found = [
        (each.name, each.made)
        for each in bucket.list(f"{layout.CHECKPOINTS}/")
        if each.name not in named
    ]
    written = max((made for name, made in found if name == NAME), default=0.0)
    for name, made in found:
        if name in dropped or (name.count("/") == 2 and written - made > _LEFT_OVER_SECONDS):
            bucket.delete(name)


def _objects(manifest: Manifest) -> set[str]:
    return {
        f"{checkpoint.folder}/{file.name}"
        for checkpoint in manifest.checkpoints
        for file in checkpoint.files
    }


def _shipped(bucket: Bucket, checkpoint: Checkpoint, started: float) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "path": f"{bucket.place}/{checkpoint.prefix}",
        "seconds": round(time.monotonic() - started, 3),
        "bytes": sum(file.size for file in checkpoint.files),
    }


def main() -> None:
    """Exit code 0, or 1 with the reason in the output."""
    parser = argparse.ArgumentParser(
        description="Bring a run's newest checkpoint into its bucket, or back."
    )
    parser.add_argument("do", choices=("ship", "restore"))
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--beside", action="store_true", help="the one before stays too, however few are kept"
    )
    given = parser.parse_args()
    folder = RunFolder(given.run)
    try:
        spec = folder.spec()
        if given.do == "ship":
            answer = _ship(folder, spec, beside=given.beside)
        else:
            answer = _restore(folder, spec)
    except TransientError as error:
        answer = {"error": str(error)}
    except OSError as error:  # a full disk, or a checkpoint that was dropped while it was read
        answer = {"error": f"{error.strerror or error} ({error.filename})"}
    print(json.dumps(answer), flush=True)
    sys.exit("error" in answer)


def _ship(folder: RunFolder, spec: RunSpec, *, beside: bool) -> dict[str, Any]:
    assert spec.store
    os.nice(_NICE)
    return ship(Bucket(spec.store, folder.bucket_token), folder.checkpoints, spec.keep + beside)


def _restore(folder: RunFolder, spec: RunSpec) -> dict[str, Any]:
    assert spec.store
    answer = restore(Bucket(spec.store, folder.bucket_token), folder.checkpoints)
    if answer["step"] is None and spec.resume_store:
        return restore(
            Bucket(spec.resume_store, folder.bucket_token), folder.checkpoints, own=False
        )
    return answer


if __name__ == "__main__":
    main()
