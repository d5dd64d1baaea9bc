"""The manifest of a run's checkpoints in a bucket: which there are, and of which files each consists.

A checkpoint lies in a folder of its own under a name never used before, so nothing that the manifest names is ever
overwritten; it counts from the moment on at which the manifest names it. Plain values, read by whoever restores or
fetches; nothing of Google's is imported here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import TrainingError

NAME = "checkpoints/manifest.json"
"""Below the run's place in the bucket."""
_FOLDER = re.compile(r"checkpoints/\d+-[0-9a-f]{1,32}", re.ASCII)
_FILE = re.compile(
    r"model\.ckpt-(?P<step>\d{1,18})\.(?:index|meta|data-\d{5}-of-\d{5})"
    r"|vocabulary\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}",
    re.ASCII,
)
MOST_BYTES = 16 << 20
"""Of a manifest; no run has so many checkpoints."""
_LARGEST = 5 << 40  # bytes, which is what an object may have


@dataclass(frozen=True)
class File:
    """One file: its size in bytes, and its CRC32C as Cloud Storage writes it (base64, big-endian)."""

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
        """What TensorFlow calls the checkpoint's path, relative to the run's place."""
        return f"{self.folder}/model.ckpt-{self.step}"


@dataclass(frozen=True)
class Manifest:
    """All checkpoints of a run that count, oldest first."""

    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def newest(self) -> Checkpoint | None:
        """The last one."""
        return self.checkpoints[-1] if self.checkpoints else None

    def adding(self, checkpoint: Checkpoint, keep: int) -> Manifest:
        """With one more, instead of another of the same step; the last `keep` stay.

        A run goes forward only: who comes with an earlier step has been overtaken by another chief. TrainingError.
        """
        others = [each for each in self.checkpoints if each.step != checkpoint.step]
        if others and others[-1].step > checkpoint.step:
            what = f"the checkpoint of step {others[-1].step} is there already, step {checkpoint.step} comes too late"
            raise TrainingError(what)
        return Manifest((*others, checkpoint)[-keep:])

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Manifest:
        """Read what `to_dict` gave; TrainingError for anything else, as for names of files that no checkpoint has."""
        try:
            found = tuple(map(_checkpoint, values["checkpoints"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingError(f"the manifest of the checkpoints cannot be read: {error!r}") from error
        return cls(tuple(sorted(found, key=lambda each: each.step)))


def described(path: Path) -> File:
    """A file as a manifest names it."""
    return File(path.name, path.stat().st_size, checksum(path))


def checksum(path: Path) -> str:
    """CRC32C of a file as Cloud Storage writes it."""
    import google_crc32c

    digest = google_crc32c.Checksum()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()


def state_file(steps: Iterable[int]) -> str:
    """TensorFlow's `checkpoint` file for a folder with checkpoints of these steps (not empty, oldest first)."""
    names = [f"model.ckpt-{step}" for step in steps]
    lines = [f'model_checkpoint_path: "{names[-1]}"', *(f'all_model_checkpoint_paths: "{name}"' for name in names)]
    return "\n".join(lines) + "\n"


def split(place: str) -> tuple[str, str]:
    """Bucket and path of `gs://bucket/path`; the path ends in a slash where it is not empty."""
    bucket, _, path = place.removeprefix("gs://").partition("/")
    path = path.strip("/")
    return bucket, f"{path}/" if path else ""


def _checkpoint(values: Any) -> Checkpoint:
    step = _number(values["step"])
    folder = _fits(_FOLDER, values["folder"])[0]
    return Checkpoint(step, folder, tuple(_file(each, step) for each in values["files"]))


def _file(values: Any, step: int) -> File:
    name = _fits(_FILE, values["name"])
    if name["step"] not in (None, str(step)):
        raise ValueError(f"{name[0]!r} is no file of step {step}")
    return File(name[0], _number(values["size"]), str(values["crc32c"]))


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is no count")
    return value


def _fits(pattern: re.Pattern[str], text: Any) -> re.Match[str]:
    found = pattern.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise ValueError(f"{str(text)[:80]!r} is no name of ours")
    return found
