"""The data of a run on its chief's machine: made there, got from a bucket, or copied from the chief
before.

And how workers get it: as files, in blocks where it is large, or not at all where preparation VMs
read it. All of this blocks, and generating is TensorFlow's: it belongs on the chief's one thread.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...protocol.chief_messages import What, read_fetch
from ...protocol.messages import encode
from ...protocol.run import RunSpec
from ..files import blocks, checkpoints, data_files
from ..files.blocks import Index
from ..folder import RunFolder
from ..programs import shared_records
from ..role import log
from .variables import Keeper


class Records:
    """The records of one run, and the vocabularies beside them."""

    def __init__(self, folder: RunFolder, spec: RunSpec, keeper: Keeper) -> None:
        self._folder = folder
        self._spec = spec
        self._keeper = keeper
        self.index = blocks.Index(())
        """Of the records that come in blocks."""
        self.elsewhere: tuple[str, ...] = ()
        """The names of record files that preparation VMs read, and no worker."""

    def make(self) -> list[dict[str, Any]]:
        """The files of the data: made, or those that are here, or where the run moves here, those
        of its chief.

        Raises TrainingError where they cannot be made.
        """
        if not self._spec.records:
            copy_before(self._folder, self._spec, "whole", self._folder.data)
        files = data_files.make(self._folder.data, self._fill)
        self.index = self._indexed()
        return files

    def insist(self) -> None:
        """Raise TrainingError where a folder of the user's own (`--data-dir`) has no records."""
        if not self._keeper.has_records():
            raise _no_records(self._spec.problem, self._spec.data_folder)

    def keep_vocabularies(self) -> None:
        """Have the vocabularies among the checkpoints: these are read with them alone."""
        data = Path(self._folder.data_directory(self._spec))
        shared = self._spec.data_folder is not None
        checkpoints.keep_vocabularies(data, self._folder.checkpoints, shared=shared)

    def _fill(self, directory: Path, temporary: Path) -> None:
        """Get the records from the bucket where they are shared, or make them, and share them."""
        place = self._spec.records
        problem = self._spec.problem
        if place and shared_records.run(
            "get", place, problem, directory, self._folder.bucket_token
        ):
            if not self._keeper.has_records():
                raise _no_records(problem, place)
            return
        checkpoints.lay_out_vocabularies(self._folder.checkpoints, directory)
        self._keeper.generate(directory, temporary)
        if problem and not self._keeper.has_records():
            raise TrainingError(
                f"{problem} generates no training records", fix="Look at its generator."
            )
        if place:
            shared_records.run("put", place, problem, directory, self._folder.bucket_token)

    def _indexed(self) -> blocks.Index:
        """The blocks of the records, if they come in blocks: where they are large, or a cache for
        them is declared.

        Who measures stalls reads files that lie on its VM, warm or cold.
        """
        if self._spec.stalls:
            paths = ()
        else:
            paths = self._keeper.record_files()
        if not self._spec.reads_records:
            self.elsewhere = tuple(str(path.relative_to(self._folder.data)) for path in paths)
            return blocks.Index(())
        wanted = paths and (self._spec.cache or blocks.large(paths))
        if wanted:
            return blocks.indexed(self._folder.data, paths)
        return blocks.Index(())


def copy_before(folder: RunFolder, spec: RunSpec, what: What, directory: Path) -> None:
    """Where the run is to move here: have what its chief has, if that can be reached."""
    standby = folder.standby
    if not standby.exists() or not (before := standby.read_text(encoding="utf-8")):
        return
    try:
        data_files.copy(before, spec.token, directory, what, tries=1)
    except TrainingError as error:
        log(f"{what} are made anew: {error}")


def _no_records(problem: str, place: str | None) -> TrainingError:
    fix = f"Put there what {problem} generates, or leave --data-dir out: then they are made."
    return TrainingError(f"no records of {problem} are in {place}", where="--data-dir", fix=fix)


# Blocks on their way from the chief's disk to a worker: by sendfile, so that the parameter server's
# process, which serves variables as well, does not touch their bytes. And the token for those who
# read them in their bucket.


async def serve_blocks(
    directory: Path, index: Index, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send the blocks that are asked for on this connection. Raises OSError and ValueError, which
    end it.
    """
    writer.write(encode({"ok": True, "files": []}))
    loop = asyncio.get_running_loop()
    while line := await reader.readline():
        name = read_fetch(line).name
        if (
            not (name.isascii() and name.isdigit())
            or len(name) > 12
            or int(name) >= len(index.blocks)
        ):
            writer.write(encode({"ok": False, "error": f"no block {name:.20}"}))
            continue
        block = index.blocks[int(name)]
        writer.write(encode({"ok": True, "size": block.size}))
        await writer.drain()
        with (directory / block.file).open("rb") as file:
            sent = await loop.sendfile(writer.transport, file, block.offset, block.size)
        if sent < block.size:
            raise ConnectionError(f"{block.file} is shorter than it was")


def granted(path: Path) -> dict[str, Any]:
    """The answer to who asks for the token that opens the records in their bucket: it lies at
    `path`, if at all.
    """
    try:
        brought = json.loads(path.read_bytes())
        return {"ok": True, "access": str(brought["token"]), "expires": float(brought["expires"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"ok": False, "error": "no token for the records has been brought to ps-0"}
