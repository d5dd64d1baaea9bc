"""A run's checkpoints: written, verified before use, and dropped except for the last and the best.

A crash leaves the old or the new checkpoint. The files are TensorFlow's own
(`model.ckpt-500.index`, `.data-...`, and the `checkpoint` state file with relative paths), so that
any TensorFlow program can read the folder. Restoring uses Python: with several parameter servers,
TensorFlow's own restore would look for the files on each of them, but only the chief's VM has them.
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
from ...protocol.objective import Best
from ..role import decode, host_and_port
from .blocks import is_shard
from .data_files import described

BEST = "best.json"
"""File beside the checkpoints, which is copied with them.

It names the checkpoint with the best evaluation, which is never dropped.
"""
_NAME = re.compile(r"model\.ckpt-(\d+)\.index")
_PART = re.compile(r"model\.ckpt-(\d+)\.")

VOCABULARY_PREFIX = "vocabulary."
"""Prefix of a vocabulary among the checkpoints, before Tensor2Tensor's name of the file."""
MOST_VOCABULARY_BYTES = 16 << 20
_MOST_FILES = 32

_BLOCK = 1 << 18
_SILENT_SECONDS = 30.0


def path_of(step: int) -> str:
    """Return TensorFlow's path of a checkpoint, relative to the run's folder."""
    return f"{layout.CHECKPOINTS}/model.ckpt-{step}"


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written.

    Attributes
    ----------
    step, name
        Its step, and its path relative to the run's folder.
    seconds, bytes
        The time to write it, and its size.
    """

    step: int
    name: str
    seconds: float
    bytes: int


class Checkpoints:
    """The folder of a run's checkpoints, of which the last `keep` stay."""

    def __init__(self, folder: Path, keep: int = 5) -> None:
        self._folder = folder
        self._keep = keep

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that have an index, newest first."""
        if not self._folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def find(self, step: int | None = None) -> int:
        """Return `step` if it has a checkpoint; without it, the newest step.

        Raises TrainingError if there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise TrainingError("the run has no checkpoint yet", where=str(self._folder))
        if step is None:
            return steps[0]
        if step not in steps:
            raise TrainingError(
                f"the run has no checkpoint of step {step:,}",
                where=str(self._folder),
                fix=f"Use one of these steps: {', '.join(map(str, steps))}.",
            )
        return step

    def prefix(self, step: int) -> Path:
        """Return TensorFlow's path of a checkpoint."""
        return self._folder / f"model.ckpt-{step}"

    def files(self, step: int) -> list[Path]:
        """Return the files of a checkpoint."""
        return sorted(self._folder.glob(f"model.ckpt-{step}.*"))

    def best(self) -> Best | None:
        """Return the best checkpoint according to the file beside them.

        None if there is no such file, or it is invalid, or the checkpoint is not here.
        """
        try:
            found = checks.built(Best, checks.parsed_object((self._folder / BEST).read_bytes()))
        except (FileNotFoundError, ValueError):
            return None
        if self._index(found.step).exists():
            return found
        return None

    def keep_best(self, best: Best | None) -> None:
        """Keep the checkpoint `best` from now on (None: no checkpoint). Raises OSError."""
        if best is None:
            (self._folder / BEST).unlink(missing_ok=True)
        else:
            write_atomically(self._folder / BEST, json.dumps(asdict(best)))

    def take(self, step: int, seconds: float, paths: Sequence[Path]) -> Saved:
        """Move the files `paths` here as the checkpoint of `step`.

        `seconds` is the time that it took to write them elsewhere.
        """

        def move(_: str) -> None:
            # The index comes last: with it the checkpoint exists.
            for path in sorted(paths, key=lambda path: path.suffix == ".index"):
                path.replace(self._folder / path.name)

        return replace(self.write(step, move), seconds=seconds)

    def write(self, step: int, save: Callable[[str], None]) -> Saved:
        """Write the checkpoint of `step` with `save`, update the state file and drop the oldest.

        `save` gets the path as TensorFlow expects it.
        """
        started = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        if step not in self.steps():  # writing an existing one again could only damage it
            try:
                save(str(self.prefix(step)))
            except BaseException:
                self._drop(step)  # a partial one takes the space that the next one needs
                raise
        size = sum(path.stat().st_size for path in self.files(step))
        # Some may have higher steps, after an older one was restored.
        others = [other for other in self.steps() if other != step]
        kept = {step, *others[: self._keep - 1]}
        if best := self.best():
            kept.add(best.step)
        lines = [f'model_checkpoint_path: "{self.prefix(step).name}"']
        lines += [
            f'all_model_checkpoint_paths: "{self.prefix(kept_step).name}"'
            for kept_step in sorted(kept)
        ]
        write_atomically(self._folder / "checkpoint", "\n".join(lines) + "\n")
        for old in set(others) - kept:
            if not self._is_locked(old):
                self._drop(old)
        self._drop_partial()
        return Saved(
            step, f"{self._folder.name}/{self.prefix(step).name}", time.monotonic() - started, size
        )

    def _drop(self, step: int) -> None:
        for path in self.files(step):
            path.unlink(missing_ok=True)

    def _drop_partial(self) -> None:
        """Drop files without an index, which a process left that was killed while it wrote."""
        whole = set(self.steps())
        for path in self._folder.glob("model.ckpt-*"):
            found = _PART.match(path.name)
            if found and int(found[1]) not in whole:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, step: int) -> Iterator[None]:
        """Protect the checkpoint of `step` inside the block.

        No `write`, in this or another process, drops it.
        """
        try:
            index = self._index(step).open("rb")
        except FileNotFoundError:  # already dropped: reading it will fail
            yield
            return
        with index:
            # The kernel releases the lock at any end of the process.
            fcntl.flock(index, fcntl.LOCK_SH)
            yield

    def _is_locked(self, step: int) -> bool:
        with self._index(step).open("rb") as index:
            try:
                fcntl.flock(index, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _index(self, step: int) -> Path:
        return self._folder / f"model.ckpt-{step}.index"

    def newest(self, mend: Callable[[], object] | None = None) -> tuple[int, dict[str, Any]] | None:
        """Return step and values of the newest checkpoint that is readable; None if there is none.

        Every value is read (TensorFlow checks its sum), so what is returned will be restored. A
        damaged checkpoint is renamed to `broken-...`, and `mend` may bring it from elsewhere.

        Raises
        ------
        TrainingError
            If all checkpoints are damaged, now and in later calls: the run must not silently start
            from nothing.
        MemoryError, OSError, tf.errors.ResourceExhaustedError
            If a resource is missing, which does not mean that the file is damaged.
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
            except Exception as error:  # noqa: BLE001 - damaged files have many errors
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
        """Return a Saver of the default graph's variables that are in the checkpoint of `step`."""
        from ..tf.graph_mode import tensorflow
        from ..tf.placement import place_in_checkpoint

        tf = tensorflow()
        stored = tf.train.load_checkpoint(str(self.prefix(step))).get_variable_to_shape_map()
        variables = [
            variable
            for variable in tf.global_variables()
            if place_in_checkpoint(variable)[0] in stored
        ]
        return tf.train.Saver(variables)

    def read(self, step: int) -> dict[str, Any]:
        """Return all values of one checkpoint by name."""
        from ..tf.graph_mode import tensorflow

        tf = tensorflow()
        reader = tf.train.load_checkpoint(str(self.prefix(step)))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


# The vocabularies of a run's problem, which are generated with its records, stored beside the
# checkpoints.
#
# A checkpoint of a text model is useless without them, so they are copied with it: to the user's
# machine, into the bucket, to the VM that replaces a lost one, and to the run that resumes from it.
# They are laid out there before the records are generated again, and Tensor2Tensor uses an existing
# vocabulary: the one that the model was trained with.


def keep_vocabularies(data: Path, checkpoints: Path, *, shared: bool) -> None:
    """Copy the vocabularies in the folder `data` to the checkpoints.

    These are small files that are not records. In a folder `shared` with other problems, only files
    with "vocab" in their name. Raises OSError.
    """
    found = [path for path in sorted(data.iterdir()) if _is_vocabulary(path, shared)][:_MOST_FILES]
    for path in found:
        kept = checkpoints / f"{VOCABULARY_PREFIX}{path.name}"
        content = path.read_bytes()
        if not kept.exists() or kept.read_bytes() != content:
            checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(kept, content)


def kept_vocabularies(checkpoints: Path) -> list[Path]:
    """Return the vocabularies among the checkpoints."""
    return sorted(checkpoints.glob(f"{VOCABULARY_PREFIX}*"))


def lay_out_vocabularies(checkpoints: Path, data: Path) -> None:
    """Copy the stored vocabularies to `data`, with Tensor2Tensor's names. Raises OSError."""
    for path in kept_vocabularies(checkpoints):
        shutil.copyfile(path, data / path.name.removeprefix(VOCABULARY_PREFIX))


def _is_vocabulary(path: Path, shared: bool) -> bool:
    if path.name.startswith(".") or is_shard(path.name) or not path.is_file():
        return False
    if shared and "vocab" not in path.name.lower():
        return False
    return path.stat().st_size <= MOST_VOCABULARY_BYTES


# A checkpoint that a worker wrote (`--chief worker`), sent to the chief over the run's port.
#
# A message names the files with their sums, and their bytes follow. The chief moves the files to
# the checkpoints when all are complete, and discards them otherwise.


def deliver(chief: str, token: str, number: int, saved: Saved, folder: Path) -> None:
    """Send the checkpoint `saved` of the worker `number` to the chief.

    Raises OSError or ValueError if the chief did not accept it.
    """
    paths = Checkpoints(folder).files(saved.step)
    files = tuple(File(**described(path, folder)) for path in paths)
    message = Checkpoint(
        token=token, number=number, step=saved.step, seconds=saved.seconds, files=files
    )
    connection = socket.create_connection(host_and_port(chief), _SILENT_SECONDS)
    with connection, connection.makefile("rwb") as stream:
        stream.write(message.encoded)
        for path in paths:
            with path.open("rb") as file:
                shutil.copyfileobj(file, stream, _BLOCK)
        stream.flush()
        answer = decode(stream.readline() or b"{}")
    if not answer.get("ok"):
        raise ValueError(str(answer.get("error", "no answer from the chief")))


@asynccontextmanager
async def received_checkpoint(
    reader: asyncio.StreamReader, message: Checkpoint, run: Path
) -> AsyncIterator[list[Path]]:
    """Receive the files of a worker's checkpoint below the run's folder.

    Inside the block they may be moved; afterwards they are deleted. Each delivery has its own
    folder: a worker that no longer saves may still be sending when another one begins, with files
    of the same names. Raises OSError or ValueError if not all files arrive.
    """
    with tempfile.TemporaryDirectory(prefix="delivered-", dir=run) as place:
        paths = [await _receive(reader, file, message.step, Path(place)) for file in message.files]
        if not any(path.suffix == ".index" for path in paths):
            raise ValueError("the checkpoint has no index file")
        yield paths


def forget_deliveries(run: Path) -> None:
    """Delete the deliveries that a killed chief was receiving."""
    for place in run.glob("delivered-*"):
        shutil.rmtree(place, ignore_errors=True)


async def _receive(reader: asyncio.StreamReader, file: File, step: int, folder: Path) -> Path:
    if not re.fullmatch(rf"model\.ckpt-{step}\.[\w.-]+", file.name):
        raise ValueError(f"{file.name!r} is not a file of the checkpoint")
    path = folder / file.name
    left = file.size
    digest = hashlib.sha256()
    with path.open("wb") as target:
        while left:
            async with asyncio.timeout(_SILENT_SECONDS):
                block = await reader.read(min(_BLOCK, left))
            if not block:
                raise ConnectionError(
                    f"the chief closed the connection {left:,} bytes before the end of {path.name}"
                )
            digest.update(block)
            await asyncio.to_thread(target.write, block)
            left -= len(block)
    if digest.hexdigest() != file.sha256:
        raise ValueError(f"{path.name} was damaged in transit")
    return path
