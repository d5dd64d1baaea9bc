"""A run's data on the chief's VM: generated, or copied from a bucket or an earlier chief.

Workers get it as files, or in blocks if it is large, or not at all if preparation VMs read it. All
methods block, and generating uses TensorFlow, so they run on the chief's other thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
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
    """The records of one run, and their vocabularies."""

    def __init__(self, folder: RunFolder, spec: RunSpec, keeper: Keeper) -> None:
        self._folder = folder
        self._spec = spec
        self._keeper = keeper
        self.index = blocks.Index(())
        """Index of the records that come in blocks."""
        self.elsewhere: tuple[str, ...] = ()
        """Names of the record files that preparation VMs read, and no worker."""

    def make(self) -> list[dict[str, Any]]:
        """Make the data files unless they are here, and return their descriptions.

        A run that moves to this VM copies them from its present chief. Raises TrainingError if they
        cannot be made.
        """
        if not self._spec.records:
            copy_from_predecessor(self._folder, self._spec, "whole", self._folder.data)
        files = data_files.make(self._folder.data, self._fill)
        self.index = self._indexed()
        return files

    def check(self) -> None:
        """Raise TrainingError if the user's folder (`--data-dir`) has no records."""
        if not self._keeper.has_records():
            raise _no_records(self._spec.problem, self._spec.data_folder)

    def keep_vocabularies(self) -> None:
        """Copy the vocabularies to the checkpoints, which cannot be read without them."""
        data = Path(self._folder.data_directory(self._spec))
        shared = self._spec.data_folder is not None
        checkpoints.keep_vocabularies(data, self._folder.checkpoints, shared=shared)

    def _fill(self, directory: Path, temporary: Path) -> None:
        """Copy the records from the bucket that shares them, or generate and share them."""
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
                f"{problem} generates no training records", fix="Check its generator."
            )
        if place:
            shared_records.run("put", place, problem, directory, self._folder.bucket_token)

    def _indexed(self) -> blocks.Index:
        """Return the index of the records if they come in blocks; else an empty one.

        Large records do, and records with a declared cache. Runs that measure stalls read files on
        each VM, warm or cold.
        """
        paths: Sequence[Path] = ()
        if not self._spec.stalls:
            paths = self._keeper.record_files()
        if not self._spec.reads_records:
            self.elsewhere = tuple(str(path.relative_to(self._folder.data)) for path in paths)
            return blocks.Index(())
        if paths and (self._spec.cache or blocks.large(paths)):
            return blocks.indexed(self._folder.data, paths)
        return blocks.Index(())


def copy_from_predecessor(folder: RunFolder, spec: RunSpec, what: What, directory: Path) -> None:
    """If the run moves to this VM, copy what its present chief has, if that answers."""
    standby = folder.standby
    if not standby.exists():
        return
    address = standby.read_text(encoding="utf-8")
    if not address:
        return
    try:
        data_files.copy(address, spec.token, directory, what, tries=1)
    except TrainingError as error:
        log(f"{what} are made here: {error}")


def _no_records(problem: str, place: str | None) -> TrainingError:
    fix = f"Put the records of {problem} there, or leave --data-dir out to generate them."
    return TrainingError(f"{place} has no records of {problem}", where="--data-dir", fix=fix)


async def serve_blocks(
    directory: Path, index: Index, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send the blocks that are requested on this connection.

    They are sent with sendfile, so their bytes do not pass through this process, which also serves
    variables. Raises OSError and ValueError, which end the connection.
    """
    writer.write(encode({"ok": True, "files": []}))
    loop = asyncio.get_running_loop()
    while line := await reader.readline():
        name = read_fetch(line).name
        is_number = name.isascii() and name.isdigit() and len(name) <= 12
        if not is_number or int(name) >= len(index.blocks):
            writer.write(encode({"ok": False, "error": f"no block {name:.20}"}))
            continue
        block = index.blocks[int(name)]
        writer.write(encode({"ok": True, "size": block.size}))
        await writer.drain()
        with (directory / block.file).open("rb") as file:
            sent = await loop.sendfile(writer.transport, file, block.offset, block.size)
        if sent < block.size:
            raise ConnectionError(f"the data file {block.file} was truncated while workers read it")


def granted(path: Path) -> dict[str, Any]:
    """Return the answer to a request for the token in `path`, which opens the records' bucket."""
    try:
        token = json.loads(path.read_bytes())
        return {"ok": True, "access": str(token["token"]), "expires": float(token["expires"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"ok": False, "error": "ps-0 has no token for the records"}
