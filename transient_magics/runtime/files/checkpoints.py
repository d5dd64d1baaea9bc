"""A run's checkpoints: a crash leaves the old or the new one, each is verified before use, the last and the best stay.

The files are TensorFlow's own (`model.ckpt-500.index`, `.data-...`, and the `checkpoint` state file with relative
paths), so that any TensorFlow program can read the folder. Restoring goes through Python: with several parameter
servers TensorFlow's restore would look for the files on each of them, but they lie beside the chief.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol import checks, layout
from ...protocol.measures.objective import Best

BEST = "best.json"
"""Beside the checkpoints, so that it goes wherever they go: which of them has the best evaluation, and stays."""
_NAME = re.compile(r"model\.ckpt-(\d+)\.index")
_PART = re.compile(r"model\.ckpt-(\d+)\.")


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
        """The best of them, as the file beside them says; None where there is none, or the checkpoint is not here."""
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
        """Have the files `paths` as the checkpoint of `step`, which took `seconds` to write elsewhere."""

        def move(_: str) -> None:
            for path in sorted(paths, key=lambda path: path.suffix == ".index"):  # the index makes it one
                path.replace(self._folder / path.name)

        return replace(self.write(step, move), seconds=seconds)

    def write(self, step: int, save: Callable[[str], None]) -> Saved:
        """Let `save` write the checkpoint of `step`, then point the state file to it and drop the oldest."""
        started = time.monotonic()
        self._folder.mkdir(parents=True, exist_ok=True)
        if step not in self.steps():  # what there is is good; to write it again could only spoil it
            try:
                save(str(self.prefix(step)))
            except BaseException:
                for path in self.files(step):  # a part of a checkpoint only takes the room that the next one needs
                    path.unlink(missing_ok=True)
                raise
        size = sum(path.stat().st_size for path in self.files(step))
        others = [each for each in self.steps() if each != step]  # higher ones, after an older one was restored
        best = self.best()
        stays = {step, *others[: self._keep - 1], *([best.step] if best else [])}
        kept = sorted(stays, reverse=True)
        lines = [f'model_checkpoint_path: "{self.prefix(step).name}"']
        lines += [f'all_model_checkpoint_paths: "{self.prefix(kept_step).name}"' for kept_step in reversed(kept)]
        write_atomically(self._folder / "checkpoint", "\n".join(lines) + "\n")
        for old in set(others) - set(kept):
            if not self._is_held(old):
                for path in self.files(old):
                    path.unlink(missing_ok=True)
        self._tidy()
        return Saved(step, f"{self._folder.name}/{self.prefix(step).name}", time.monotonic() - started, size)

    def _tidy(self) -> None:
        """Drop what a process that was killed while it wrote or dropped a checkpoint has left: files without index."""
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
        """Step and values of the newest checkpoint that can be read whole; None if there is none at all.

        Every value is read (TensorFlow checks its sum), so what is returned is what will be restored. A broken one is
        set aside as `broken-...`, then `mend` may bring it from elsewhere; if all are broken the run must not silently
        start from nothing, so that raises, then and ever after. So does what is no fault of the file: too little
        memory, too many open files.
        """
        from ..tf.graph_mode import tensorflow

        broken = [path.name.removeprefix("broken-") for path in sorted(self._folder.glob("broken-*.index"))]
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
        return tf.train.Saver([each for each in tf.global_variables() if place_in_checkpoint(each)[0] in known])

    def read(self, step: int) -> dict[str, Any]:
        """All values of one checkpoint."""
        from ..tf.graph_mode import tensorflow

        tf = tensorflow()
        reader = tf.train.load_checkpoint(str(self.prefix(step)))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
