"""The manifest of a run's checkpoints in a bucket, with the files of each.

Each checkpoint has a folder with a name that was never used before, so nothing in the manifest is
ever overwritten. A checkpoint counts as soon as the manifest names it. If the manifest is lost or
damaged, all complete checkpoints in the bucket count: their index is uploaded last. Plain values,
for all that restore or fetch; no Google client is imported here.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...protocol import checks, layout
from ...protocol.objective import Best

NAME = f"{layout.CHECKPOINTS}/manifest.json"
"""Name of the manifest, relative to the run's place in the bucket."""
_FOLDER = re.compile(rf"{layout.CHECKPOINTS}/\d+-[0-9a-f]{{1,32}}", re.ASCII)
_FILE = re.compile(
    r"model\.ckpt-(?P<step>\d{1,18})\.(?:(?P<index>index)|meta|data-\d{5}-of-(?P<parts>\d{5}))"
    r"|vocabulary\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}"
    r"|phases\.json|phase-[1-9]\d{0,5}\.npz",
    re.ASCII,
)
MOST_BYTES = 16 << 20
"""Bound of a manifest's size, beyond any number of checkpoints."""
_LARGEST = 5 << 40
"""Bound of an object's size in bytes."""


@dataclass(frozen=True)
class File:
    """A file: its size in bytes, and its CRC32C as in Cloud Storage (base64, big-endian)."""

    name: str
    size: int
    crc32c: str


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: its files in `folder`, relative to the run's place."""

    step: int
    folder: str
    files: tuple[File, ...]

    @property
    def prefix(self) -> str:
        """TensorFlow's path of the checkpoint, relative to the run's place."""
        return f"{self.folder}/model.ckpt-{self.step}"


@dataclass(frozen=True)
class Manifest:
    """All valid checkpoints of a run, oldest first, and the best of them."""

    checkpoints: tuple[Checkpoint, ...] = ()
    best: Best | None = None

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint, or None."""
        if self.checkpoints:
            return self.checkpoints[-1]
        return None

    def of(self, step: int) -> Checkpoint | None:
        """Return the checkpoint of `step`, or None."""
        found = (checkpoint for checkpoint in self.checkpoints if checkpoint.step == step)
        return next(found, None)

    def adding(self, checkpoint: Checkpoint, keep: int) -> Manifest:
        """Return a manifest with one more checkpoint, in place of another of the same step.

        The last `keep` stay, and the best. A run only proceeds: another chief has overtaken one
        that adds an earlier step, and then TrainingError is raised.
        """
        others = [other for other in self.checkpoints if other.step != checkpoint.step]
        if others and others[-1].step > checkpoint.step:
            raise TrainingError(
                f"step {checkpoint.step} is out of date: the manifest already has the checkpoint "
                f"of step {others[-1].step}"
            )
        every = (*others, checkpoint)
        best_step = self.best.step if self.best else None
        dropped = {old.step for old in every[:-keep]} - {best_step}
        return Manifest(tuple(item for item in every if item.step not in dropped), self.best)

    def with_best(self, best: Best | None, checkpoint: Checkpoint | None = None) -> Manifest:
        """Return a manifest with `best` as the best checkpoint.

        `checkpoint` is that checkpoint, if the manifest does not name it yet.
        """
        every = {item.step: item for item in self.checkpoints}
        if checkpoint:
            every[checkpoint.step] = checkpoint
        named = best if best and best.step in every else None
        return Manifest(tuple(every[step] for step in sorted(every)), named)

    def to_dict(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, content: bytes) -> Manifest:
        """Parse the JSON of `to_dict`. Raises TrainingError as `from_dict` does."""
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise TrainingError(f"the manifest of the checkpoints is not JSON: {error}") from error
        return cls.from_dict(values)

    @classmethod
    def from_objects(cls, objects: Iterable[tuple[str, int, str]]) -> Manifest:
        """Return the manifest of the complete checkpoints in the bucket, in place of a lost one.

        Parameters
        ----------
        objects
            Name, size and CRC32C of the objects in the run's place, oldest first.

        Returns
        -------
        Manifest
            The checkpoints whose index and data are all there; of two of the same step, the later
            one.
        """
        folders: dict[str, list[File]] = {}
        for name, size, crc32c in objects:
            folder, _, plain = name.rpartition("/")
            if _FOLDER.fullmatch(folder) and _FILE.fullmatch(plain):
                folders.setdefault(folder, []).append(File(plain, size, crc32c))
        whole: dict[int, Checkpoint] = {}
        for folder, files in folders.items():
            step = _whole(files, folder)
            if step is not None:
                whole[step] = Checkpoint(step, folder, tuple(files))
        return cls(_sorted(whole.values()))

    @classmethod
    def from_dict(cls, values: Any) -> Manifest:
        """Parse what `to_dict` returned.

        Raises TrainingError for anything else, including names that no checkpoint file has.
        """
        try:
            found = tuple(map(_checkpoint, values["checkpoints"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingError(
                f"the manifest of the checkpoints cannot be read: {error!r}"
            ) from error
        return cls(_sorted(found)).with_best(_best(values.get("best")))


def _sorted(checkpoints: Iterable[Checkpoint]) -> tuple[Checkpoint, ...]:
    return tuple(sorted(checkpoints, key=lambda checkpoint: checkpoint.step))


def described(path: Path) -> File:
    """Return a file's entry in a manifest."""
    return File(path.name, path.stat().st_size, checksum(path))


def checksum(path: Path) -> str:
    """Return the CRC32C of a file as Cloud Storage writes it."""
    import google_crc32c

    digest = google_crc32c.Checksum()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()


def state_file(steps: Iterable[int]) -> str:
    """Return TensorFlow's `checkpoint` file for checkpoints of these steps.

    `steps` is not empty, oldest first.
    """
    names = [f"model.ckpt-{step}" for step in steps]
    lines = [
        f'model_checkpoint_path: "{names[-1]}"',
        *(f'all_model_checkpoint_paths: "{name}"' for name in names),
    ]
    return "\n".join(lines) + "\n"


def split(place: str) -> tuple[str, str]:
    """Return bucket and path of `gs://bucket/path`.

    A path that is not empty ends in a slash.
    """
    bucket, _, path = place.removeprefix("gs://").partition("/")
    path = path.strip("/")
    if path:
        path = f"{path}/"
    return bucket, path


def _checkpoint(values: Any) -> Checkpoint:
    step = _number(values["step"])
    folder = _fits(_FOLDER, values["folder"])[0]
    return Checkpoint(step, folder, tuple(_file(row, step) for row in values["files"]))


def _whole(files: Sequence[File], folder: str) -> int | None:
    """Return the step of the checkpoint that consists of these files.

    None if one is missing, or belongs to another step.
    """
    matches = (_FILE.fullmatch(file.name) for file in files)
    found = [match for match in matches if match]
    steps = {match["step"] for match in found if match["step"]}
    data = [int(match["parts"]) for match in found if match["parts"]]
    has_index = any(match["index"] for match in found)
    if not has_index or not data or set(data) != {len(data)} or len(steps) != 1:
        return None
    (step,) = map(int, steps)
    if folder.startswith(f"{layout.CHECKPOINTS}/{step}-"):
        return step
    return None


def _file(values: Any, step: int) -> File:
    name = _fits(_FILE, values["name"])
    if name["step"] not in (None, str(step)):
        raise ValueError(f"{name[0]!r} is not a file of step {step}")
    return File(name[0], _number(values["size"]), str(values["crc32c"]))


def _best(values: Any) -> Best | None:
    """Return the best checkpoint; None for an invalid value, which does not affect the others."""
    try:
        if isinstance(values, dict):
            return checks.built(Best, values)
        return None
    except ValueError:
        return None


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is not a valid count")
    return value


def _fits(pattern: re.Pattern[str], text: Any) -> re.Match[str]:
    found = None
    if isinstance(text, str):
        found = pattern.fullmatch(text)
    if not found:
        raise ValueError(f"{str(text)[:80]!r} is not a valid name")
    return found
