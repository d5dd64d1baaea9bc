"""A run's checkpoints: a crash leaves the old or the new one, each is verified before use, the last
and the best stay.

The files are TensorFlow's own (`model.ckpt-500.index`, `.data-...`, and the `checkpoint` state file
with relative paths), so that any TensorFlow program can read the folder. Restoring goes through
Python: with several parameter servers TensorFlow's restore would look for the files on each of
them, but they lie beside the chief.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import re
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol import checks, layout
from ...protocol.chief_messages import Checkpoint, File
from ...protocol.measures.objective import Best
from ..role import decode, host_and_port
from .blocks import is_shard
from .data_files import described

BEST = "best.json"
"""Beside the checkpoints, so that it goes wherever they go: which of them has the best evaluation,
and stays.
"""
_NAME = re.compile(r"model\.ckpt-(\d+)\.index")
_PART = re.compile(r"model\.ckpt-(\d+)\.")

VOCABULARY_PREFIX = "vocabulary."
"""Of their names among the checkpoints; behind it comes the name that Tensor2Tensor looks for."""
MOST_VOCABULARY_BYTES = 16 << 20
_MOST_FILES = 32

_BLOCK = 1 << 18
_SILENT_SECONDS = 30.0


def path_of(step: int) -> str:
    """What TensorFlow calls the path of a checkpoint, within the run's folder."""
    return f"{layout.CHECKPOINTS}/model.ckpt-{step}"


@dataclass(frozen=True)
class Saved:
    """One checkpoint as it was written."""

    step: int
    name: str
    seconds: float
    bytes: int


class Checkpoints:
    """The folder of checkpoints of one run."""

    def __init__(self, folder: Path, keep: int = 5) -> None:
        self._folder = folder
        self._keep = keep

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are whole as far as their names tell, newest first."""
        if not self._folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def prefix(self, step: int) -> Path:
        """What TensorFlow calls the checkpoint's path."""
        return self._folder / f"model.ckpt-{step}"

    def files(self, step: int) -> list[Path]:
        """The files of one checkpoint."""
        return sorted(self._folder.glob(f"model.ckpt-{step}.*"))

    def best(self) -> Best | None:
        """The best of them, as the file beside them says; None where there is none, or the
        checkpoint is not here.
        """
        try:
            found = checks.built(Best, checks.parsed_object((self._folder / BEST).read_bytes()))
        except (FileNotFoundError, ValueError):  # an unreadable one says nothing
            return None
        return found if self._index(found.step).exists() else None

    def keep_best(self, best: Best | None) -> None:
        """From now on `best` stays (None: none), however many follow. Raises OSError."""
        if best is None:
            (self._folder / BEST).unlink(missing_ok=True)
        else:
            write_atomically(self._folder / BEST, json.dumps(asdict(best)))

    def take(self, step: int, seconds: float, paths: Sequence[Path]) -> Saved:
        """Have the files `paths` as the checkpoint of `step`, which took `seconds` to write
        elsewhere.
        """

        def move(_: str) -> None:
            for path in sorted(
                paths, key=lambda path: path.suffix == ".index"
            ):  # the index makes it one
                path.replace(self._folder / path.name)

        return replace(self.write(step, move), seconds=seconds)

    def write(self, step: int, save: Callable[[str], None]) -> Saved:
        """Let `save` write the checkpoint of `step`, then point the state file to it and drop the
        oldest.
        """
        started = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        if step not in self.steps():  # what there is is good; to write it again could only spoil it
            try:
                save(str(self.prefix(step)))
            except BaseException:
                for path in self.files(
                    step
                ):  # a part of a checkpoint only takes the room that the next one needs
                    path.unlink(missing_ok=True)
                raise
        size = sum(path.stat().st_size for path in self.files(step))
        others = [
            each for each in self.steps() if each != step
        ]  # higher ones, after an older one was restored
        best = self.best()
        stays = {step, *others[: self._keep - 1], *([best.step] if best else [])}
        kept = sorted(stays, reverse=True)
        lines = [f'model_checkpoint_path: "{self.prefix(step).name}"']
        lines += [
            f'all_model_checkpoint_paths: "{self.prefix(kept_step).name}"'
            for kept_step in reversed(kept)
        ]
        write_atomically(self._folder / "checkpoint", "\n".join(lines) + "\n")
        for old in set(others) - set(kept):
            if not self._is_held(old):
                for path in self.files(old):
                    path.unlink(missing_ok=True)
        self._tidy()
        return Saved(
            step, f"{self._folder.name}/{self.prefix(step).name}", time.monotonic() - started, size
        )

    def _tidy(self) -> None:
        """Drop what a process that was killed while it wrote or dropped a checkpoint has left:
        files without index.
        """
        whole = set(self.steps())
        for path in self._folder.glob("model.ckpt-*"):
            found = _PART.match(path.name)
            if found and int(found[1]) not in whole:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self, step: int) -> Iterator[None]:
        """As long as it lasts, nobody's `write` drops the checkpoint of `step`."""
        try:
            index = self._index(step).open("rb")
        except FileNotFoundError:  # dropped already: whoever reads it will say so
            yield
            return
        with index:
            fcntl.flock(index, fcntl.LOCK_SH)  # it ends with the process, however that ends
            yield

    def _is_held(self, step: int) -> bool:
        with self._index(step).open("rb") as index:
            try:
                fcntl.flock(index, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _index(self, step: int) -> Path:
        return self._folder / f"model.ckpt-{step}.index"

    def newest(self, mend: Callable[[], object] | None = None) -> tuple[int, dict[str, Any]] | None:
        """Step and values of the newest checkpoint that can be read whole; None if there is none at
        all.

        Every value is read (TensorFlow checks its sum), so what is returned is what will be
        restored. A broken one is set aside as `broken-...`, then `mend` may bring it from
        elsewhere; if all are broken the run must not silently start from nothing, so that raises,
        then and ever after. So does what is no fault of the file: too little memory, too many open
        files.
        """
        from ..tf.graph_mode import tensorflow

        broken = [
            path.name.removeprefix("broken-")
            for path in sorted(self._folder.glob("broken-*.index"))
        ]
        for step in self.steps():
            try:
                return step, self.read(step)
            except (MemoryError, OSError, tensorflow().errors.ResourceExhaustedError):
                raise
            except Exception as error:  # noqa: BLE001 - TensorFlow reports a damaged file with many kinds of errors
                broken.append(f"model.ckpt-{step}: {str(error).splitlines()[0][:120]}")
                for path in self.files(step):
                    path.rename(path.with_name(f"broken-{path.name}"))
                if mend:
                    mend()
                    return self.newest()
        if broken:
            raise TrainingError("no checkpoint of the run can be read", where="; ".join(broken))
        return None

    def saver(self, step: int) -> Any:
        """A Saver of those of the default graph's variables that the checkpoint of `step` holds."""
        from ..tf.graph_mode import tensorflow
        from ..tf.placement import place_in_checkpoint

        tf = tensorflow()
        known = tf.train.load_checkpoint(str(self.prefix(step))).get_variable_to_shape_map()
        return tf.train.Saver(
            [
                global_variable
                for global_variable in tf.global_variables()
                if place_in_checkpoint(global_variable)[0] in known
            ]
        )

    def read(self, step: int) -> dict[str, Any]:
        """All values of one checkpoint."""
        from ..tf.graph_mode import tensorflow

        tf = tensorflow()
        reader = tf.train.load_checkpoint(str(self.prefix(step)))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


# The vocabularies of a run's problem, which were made with its records, kept beside its
# checkpoints.
#
# A checkpoint of a text model means nothing without them, so they go wherever checkpoints go: home,
# into the bucket, to the VM that takes a lost one's place, and to the run that resumes from it.
# There they are laid out before records are made anew, and Tensor2Tensor takes a vocabulary that it
# finds: the one that the model has learnt with.


def keep_vocabularies(data: Path, checkpoints: Path, *, shared: bool) -> None:
    """Copy the vocabularies in the folder `data` to the checkpoints: small files that are no
    records.

    Of a folder that is `shared` with other problems only what is called a vocabulary. Raises
    OSError.
    """
    found = [path for path in sorted(data.iterdir()) if _is_vocabulary(path, shared)][:_MOST_FILES]
    for path in found:
        kept = checkpoints / f"{VOCABULARY_PREFIX}{path.name}"
        content = path.read_bytes()
        if not kept.exists() or kept.read_bytes() != content:
            checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(kept, content)


def kept_vocabularies(checkpoints: Path) -> list[Path]:
    """The vocabularies among the checkpoints."""
    return sorted(checkpoints.glob(f"{VOCABULARY_PREFIX}*"))


def lay_out_vocabularies(checkpoints: Path, data: Path) -> None:
    """Copy what is kept to the folder `data`, under the names that Tensor2Tensor looks for. Raises
    OSError.
    """
    for path in kept_vocabularies(checkpoints):
        shutil.copyfile(path, data / path.name.removeprefix(VOCABULARY_PREFIX))


def _is_vocabulary(path: Path, shared: bool) -> bool:
    if path.name.startswith(".") or is_shard(path.name) or not path.is_file():
        return False
    return path.stat().st_size <= MOST_VOCABULARY_BYTES and (
        "vocab" in path.name.lower() or not shared
    )


# A checkpoint that a worker wrote (`--chief worker`), brought to the chief over the run's port.
#
# A message names the files with their sums, then come their bytes. What does not arrive whole
# counts for nothing: the chief puts the files where checkpoints lie once it has them all, and from
# there they go where all checkpoints go.


def deliver(chief: str, token: str, number: int, saved: Saved, folder: Path) -> None:
    """Send the checkpoint `saved` of the worker with this number. Raises OSError or ValueError if
    it was not taken.
    """
    paths = Checkpoints(folder).files(saved.step)
    files = tuple(File(**described(path, folder)) for path in paths)
    told = Checkpoint(
        token=token, number=number, step=saved.step, seconds=saved.seconds, files=files
    )
    connection = socket.create_connection(host_and_port(chief), _SILENT_SECONDS)
    with connection, connection.makefile("rwb") as stream:
        stream.write(told.encoded)
        for path in paths:
            with path.open("rb") as file:
                shutil.copyfileobj(file, stream, _BLOCK)
        stream.flush()
        answer = decode(stream.readline() or b"{}")
    if not answer.get("ok"):
        raise ValueError(str(answer.get("error", "the chief said nothing")))


@asynccontextmanager
async def received_checkpoint(
    reader: asyncio.StreamReader, told: Checkpoint, run: Path
) -> AsyncIterator[list[Path]]:
    """The files that a worker sends, below the run's folder; inside they may be moved, afterwards
    they are gone.

    Each delivery has a folder of its own: who has lost the duty may still be sending when the next
    one begins, perhaps files of the same names. Raises OSError or ValueError for anything less than
    all of them.
    """
    with tempfile.TemporaryDirectory(prefix="delivered-", dir=run) as place:
        paths = [await _receive(reader, file, told.step, Path(place)) for file in told.files]
        if not any(path.suffix == ".index" for path in paths):
            raise ValueError("it is no checkpoint without its index")
        yield paths


def forget_deliveries(run: Path) -> None:
    """Drop the deliveries that a chief was receiving when it was killed."""
    for place in run.glob("delivered-*"):
        shutil.rmtree(place, ignore_errors=True)


async def _receive(reader: asyncio.StreamReader, file: File, step: int, folder: Path) -> Path:
    if not re.fullmatch(rf"model\.ckpt-{step}\.[\w.-]+", file.name):
        raise ValueError(f"{file.name!r} is no file of that checkpoint")
    path = folder / file.name
    left = file.size
    digest = hashlib.sha256()
    with path.open("wb") as target:
        while left:
            async with asyncio.timeout(_SILENT_SECONDS):
                block = await reader.read(min(_BLOCK, left))
            if not block:
                raise ConnectionError(f"{path.name} ended {left} bytes too early")
            digest.update(block)
            await asyncio.to_thread(target.write, block)
            left -= len(block)
    if digest.hexdigest() != file.sha256:
        raise ValueError(f"{path.name} arrived damaged")
    return path
