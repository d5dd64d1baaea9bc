"""Copy a run's newest checkpoint to its bucket, or back.

`python -m ...programs.shipping ship --run F` uploads the newest checkpoint of the run's folder (and
the best, if the bucket does not have it), then names it in the manifest, then deletes what the
manifest no longer names. `restore` downloads the newest checkpoint whose files match the manifest,
if none as new is in the folder, and the best one.

It is a process of its own, and `ship` has a low priority, because training must not wait for it. It
may be killed at any moment: incomplete uploads do not count. Prints one line of JSON, `{"step": N
or null, ...}` or `{"error": "sentence"}`.
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

from ...errors import TrainingError, TransientError, reason_of
from ...files import write_atomically
from ...protocol import layout
from ...protocol.objective import Best
from ...protocol.run import RunSpec
from ..files.bucket import Bucket, DamagedError
from ..files.checkpoints import Checkpoints, kept_vocabularies
from ..files.manifest import NAME, Checkpoint, File, Manifest, described, state_file
from ..folder import RunFolder
from ..phases import phase_files

_NICE = 10
_LEFT_OVER_SECONDS = 3600.0
"""Age in seconds of an incomplete upload that is deleted."""


def ship(bucket: Bucket, folder: Path, keep: int = 5) -> dict[str, Any]:
    """Upload the newest checkpoint with its vocabularies, and the best one if it is missing.

    Parameters
    ----------
    bucket
        The run's bucket.
    folder
        Folder of the checkpoints.
    keep
        Number of checkpoints to keep in the bucket.

    Returns
    -------
    dict
        Step, path, seconds and bytes of the newest, and `best` with its path; or only `step: null`
        if there is no checkpoint.
    """
    started = time.monotonic()
    local = Checkpoints(folder)
    step = next(iter(local.steps()), None)
    manifest, generation = read_manifest(bucket)
    if step is None:
        return {"step": None}
    best = local.best()
    uploaded: list[str] = []
    # If few are kept, newer checkpoints may be written, and this one dropped, during the upload.
    with local.locked(step):
        paths = _paths(folder, step)
        newest = manifest.newest
        after = manifest
        try:
            if newest is None or not _is_same(newest, step, paths):
                # An empty one first: if the manifest refuses it, nothing has been uploaded.
                manifest.adding(Checkpoint(step, "", ()), keep)
                newest = _upload(bucket, step, paths, uploaded)
                after = manifest.with_best(best).adding(newest, keep)
            after = after.with_best(best, _upload_best(bucket, folder, best, after, uploaded))
            if after != manifest:
                bucket.write_json(NAME, after.to_dict(), generation)
        except (TransientError, OSError):
            for name in uploaded:
                bucket.delete(name)
            raise
    if after != manifest:
        _clean(bucket, manifest, after)
    answer = _describe(bucket, newest, started)
    best_shipped = after.of(after.best.step) if after.best else None
    if after.best and best_shipped:
        answer["best"] = {**asdict(after.best), "path": f"{bucket.place}/{best_shipped.prefix}"}
    return answer


def _paths(folder: Path, step: int) -> list[Path]:
    """Return the files of a checkpoint, vocabularies and phases, in the order of their upload.

    The index is the last one: with it, all files are there, even if no manifest names them.
    """
    beside = [*kept_vocabularies(folder), *phase_files(folder)]
    paths = [*beside, *Checkpoints(folder).files(step)]
    return sorted(paths, key=lambda path: path.suffix == ".index")


def _is_same(checkpoint: Checkpoint, step: int, paths: Sequence[Path]) -> bool:
    """Return whether the bucket's checkpoint has the same files."""
    return checkpoint.step == step and set(checkpoint.files) == {described(path) for path in paths}


def _upload_best(
    bucket: Bucket, folder: Path, best: Best | None, manifest: Manifest, uploaded: list[str]
) -> Checkpoint | None:
    """Upload the best checkpoint; None if there is none, or the bucket has it."""
    if best is None or manifest.of(best.step):
        return None
    with Checkpoints(folder).locked(best.step):
        return _upload(bucket, best.step, _paths(folder, best.step), uploaded)


def _upload(bucket: Bucket, step: int, paths: Sequence[Path], uploaded: list[str]) -> Checkpoint:
    """Upload the files of a checkpoint into a new folder, and add their names to `uploaded`."""
    place = f"{layout.CHECKPOINTS}/{step}-{secrets.token_hex(6)}"
    files = list[File]()
    for path in paths:
        name = f"{place}/{path.name}"
        files.append(bucket.upload(path, name))
        uploaded.append(name)
    return Checkpoint(step, place, tuple(files))


def restore(bucket: Bucket, folder: Path, *, own: bool = True) -> dict[str, Any]:
    """Download the newest good checkpoint into `folder`, and the best one.

    Parameters
    ----------
    bucket, folder
        The bucket, and the folder of the checkpoints.
    own
        Whether it is the run's own bucket, and not one from which it only resumes.

    Returns
    -------
    dict
        The `step`, and `refused`: why newer checkpoints were not used.
    """
    manifest, generation = read_manifest(bucket)
    answer = _restore_newest(bucket, manifest, generation, folder, own=own)
    return {**answer, "refused": [*answer["refused"], *_restore_best(bucket, manifest, folder)]}


def _restore_best(bucket: Bucket, manifest: Manifest, folder: Path) -> list[str]:
    """Download the best checkpoint, unless there is one; return why not, if it is damaged."""
    local = Checkpoints(folder)
    best = manifest.best
    checkpoint = manifest.of(best.step) if best else None
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
        if refused and own:
            # Drop the refused ones: the run's next checkpoints may have smaller steps.
            left = tuple(older for older in manifest.checkpoints if older.step <= checkpoint.step)
            bucket.write_json(NAME, Manifest(left).with_best(manifest.best).to_dict(), generation)
        write_atomically(folder / "checkpoint", state_file(reversed(local.steps())))
        return {"step": checkpoint.step, "refused": refused}
    if refused and here is None:
        raise TrainingError(
            "all checkpoints of the run differ from their manifest", where="; ".join(refused)
        )
    return {"step": here, "refused": refused}


def read_manifest(bucket: Bucket) -> tuple[Manifest, int]:
    """Return the manifest and its generation; an empty one and 0 if there is none yet.

    If it is lost or damaged, it is made from the complete checkpoints in the bucket: a run never
    starts from the beginning beside its checkpoints. Raises TrainingError if it is damaged and no
    checkpoint is complete.
    """
    content, generation = bucket.read(NAME)
    damage: TrainingError | None = None
    if content is not None:
        try:
            return Manifest.read(content), generation
        except TrainingError as error:
            damage = error
    objects = bucket.list(f"{layout.CHECKPOINTS}/")
    manifest = Manifest.from_objects(listed[:3] for listed in objects)
    if manifest.newest:
        what = damage.what if damage else "the manifest of the checkpoints is lost"
        steps = ", ".join(f"{checkpoint.step}" for checkpoint in manifest.checkpoints)
        text = f"{what}; complete in {bucket.place} are the steps {steps}"
        print(text, file=sys.stderr, flush=True)
    elif damage:
        raise damage
    return manifest, generation


def _download(bucket: Bucket, checkpoint: Checkpoint, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # The index is the last one, because with it the checkpoint counts as complete.
    for file in sorted(checkpoint.files, key=lambda file: file.name.endswith(".index")):
        path = folder / file.name
        if not path.exists() or described(path) != file:
            bucket.download(file, f"{checkpoint.folder}/{file.name}", path)


def _clean(bucket: Bucket, before: Manifest, after: Manifest) -> None:
    """Delete what the manifest no longer names, and the rest of old incomplete uploads.

    Newer ones are kept, because another process may be uploading them.
    """
    named = _objects(after)
    dropped = _objects(before) - _objects(after)
    unnamed = [
        (listed.name, listed.made)
        for listed in bucket.list(f"{layout.CHECKPOINTS}/")
        if listed.name not in named
    ]
    written = max((made for name, made in unnamed if name == NAME), default=0.0)
    for name, made in unnamed:
        is_old = name.count("/") == 2 and written - made > _LEFT_OVER_SECONDS
        if name in dropped or is_old:
            bucket.delete(name)


def _objects(manifest: Manifest) -> set[str]:
    return {
        f"{checkpoint.folder}/{file.name}"
        for checkpoint in manifest.checkpoints
        for file in checkpoint.files
    }


def _describe(bucket: Bucket, checkpoint: Checkpoint, started: float) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "path": f"{bucket.place}/{checkpoint.prefix}",
        "seconds": round(time.monotonic() - started, 3),
        "bytes": sum(file.size for file in checkpoint.files),
    }


def main() -> None:
    """Print the answer; exit with 1 if it is an error."""
    parser = argparse.ArgumentParser(
        description="Copy a run's newest checkpoint to its bucket, or back."
    )
    parser.add_argument("do", choices=("ship", "restore"))
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--beside", action="store_true", help="keep one more, so that the one before stays"
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
        answer = {"error": f"{reason_of(error)} ({error.filename})"}
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
