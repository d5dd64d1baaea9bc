"""The manifest of a run's checkpoints in a bucket: which there are, and of which files each
consists.

A checkpoint lies in a folder of its own under a name never used before, so nothing that the
manifest names is ever overwritten; it counts from the moment on at which the manifest names it.
Should the manifest be lost or damaged, those count that lie there whole: their index is uploaded
last. Plain values, read by whoever restores or fetches; nothing of Google's is imported here.
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
from ...protocol.measures.objective import Best

NAME = f"{layout.CHECKPOINTS}/manifest.json"
"""Below the run's place in the bucket."""
_FOLDER = re.compile(rf"{layout.CHECKPOINTS}/\d+-[0-9a-f]{{1,32}}", re.ASCII)
_FILE = re.compile(
    r"model\.ckpt-(?P<step>\d{1,18})\.(?:(?P<index>index)|meta|data-\d{5}-of-(?P<parts>\d{5}))"
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
    """All checkpoints of a run that count, oldest first, and which of them is the best."""

    checkpoints: tuple[Checkpoint, ...] = ()
    best: Best | None = None

    @property
    def newest(self) -> Checkpoint | None:
        """The last one."""
        if self.checkpoints:
            return self.checkpoints[-1]
        return None

    def of(self, step: int) -> Checkpoint | None:
        """The checkpoint of `step`."""
        return next(
            (checkpoint for checkpoint in self.checkpoints if checkpoint.step == step), None
        )

    def adding(self, checkpoint: Checkpoint, keep: int) -> Manifest:
        """With one more, instead of another of the same step; the last `keep` stay, and the best.

        A run goes forward only: who comes with an earlier step has been overtaken by another chief.
        TrainingError.
        """
        others = [each for each in self.checkpoints if each.step != checkpoint.step]
        if others and others[-1].step > checkpoint.step:
            what = f"the checkpoint of step {others[-1].step} is there already, step {checkpoint.step} comes too late"
            raise TrainingError(what)
        every = (*others, checkpoint)
        dropped = [
            each.step for each in every[:-keep] if not self.best or each.step != self.best.step
        ]
        return Manifest(tuple(each for each in every if each.step not in dropped), self.best)

    def judged(self, best: Best | None, checkpoint: Checkpoint | None = None) -> Manifest:
        """With `best` as the best one; `checkpoint` is that one, where it was not named yet."""
        every = {
            each.step: each for each in (*self.checkpoints, *([checkpoint] if checkpoint else []))
        }
        named = best if best and best.step in every else None
        return Manifest(tuple(every[step] for step in sorted(every)), named)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, content: bytes) -> Manifest:
        """Read the JSON of what `to_dict` gave. Raises TrainingError as `from_dict` does."""
        try:
            values = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise TrainingError(f"the manifest of the checkpoints is not JSON: {error}") from error
        return cls.from_dict(values)

    @classmethod
    def lying_there(cls, objects: Iterable[tuple[str, int, str]]) -> Manifest:
        """What a lost manifest named, by the objects in the run's place: name, size and CRC32C,
        oldest first.

        A checkpoint whose index and data are all there is whole; of two of the same step the later
        one counts.
        """
        folders: dict[str, list[File]] = {}
        for name, size, crc32c in objects:
            folder, _, plain = name.rpartition("/")
            if _FOLDER.fullmatch(folder) and _FILE.fullmatch(plain):
                folders.setdefault(folder, []).append(File(plain, size, crc32c))
        whole = {
            step: Checkpoint(step, folder, tuple(files))
            for folder, files in folders.items()
            if (step := _whole(files, folder)) is not None
        }
        return cls(tuple(sorted(whole.values(), key=lambda each: each.step)))

    @classmethod
    def from_dict(cls, values: Any) -> Manifest:
        """Read what `to_dict` gave; TrainingError for anything else, as for names of files that no
        checkpoint has.
        """
        try:
            found = tuple(map(_checkpoint, values["checkpoints"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingError(
                f"the manifest of the checkpoints cannot be read: {error!r}"
            ) from error
        return cls(tuple(sorted(found, key=lambda each: each.step))).judged(
            _best(values.get("best"))
        )


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
    """TensorFlow's `checkpoint` file for a folder with checkpoints of these steps (not empty,
    oldest first).
    """
    names = [f"model.ckpt-{step}" for step in steps]
    lines = [
        f'model_checkpoint_path: "{names[-1]}"',
        *(f'all_model_checkpoint_paths: "{name}"' for name in names),
    ]
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


def _whole(files: Sequence[File], folder: str) -> int | None:
    """The step of the checkpoint of which these files are all; None where one is missing, or is of
    another step.
    """
    found = [match for file in files if (match := _FILE.fullmatch(file.name))]
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
        raise ValueError(f"{name[0]!r} is no file of step {step}")
    return File(name[0], _number(values["size"]), str(values["crc32c"]))


def _best(values: Any) -> Best | None:
    """Which is the best; one that cannot be read costs that alone."""
    try:
        if isinstance(values, dict):
            return checks.built(Best, values)
        return None
    except ValueError:
        return None


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError(f"{value!r} is no count")
    return value


def _fits(pattern: re.Pattern[str], text: Any) -> re.Match[str]:
    if isinstance(text, str):
        found = pattern.fullmatch(text)
    else:
        found = None
    if not found:
        raise ValueError(f"{str(text)[:80]!r} is not a valid name")
    return found
