"""The check of a run: whether one step of its graph can be built.

The check runs the user's code, so never beside a controller on a VM. On the user's own machine it
runs in a subprocess if TensorFlow is installed, else on the first parameter server's VM, which has
everything that the run needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from ...controller.decisions.same_check import alike
from ...controller.host import controller_vm
from ...controller.vms.link import Link
from ...errors import RemoteError
from ...files import write_atomically
from ...journal import RunState
from ...protocol import checks, layout
from ...protocol.run import FitDeclaration, RunSpec
from ...remote import push_bundle
from ...runtime.role import environment

log = logging.getLogger(__name__)

_SECONDS = 300.0
_RETRY_SECONDS = 1.0
_MODULE = "transient_magics.runtime.programs.check"
# Limits of an answer, and of the sentence in it.
_MOST_BYTES = 65_536
_MOST_CHARACTERS = 2_000
# Limit of counted numbers.
_LARGEST = 2.0**63
_TOO_LONG = f"The check did not end within {_SECONDS:.0f} s; --no-check starts without it."
_THERE = (
    'PYTHONPATH="$HOME/{code}" TF_CPP_MIN_LOG_LEVEL=2 PYTHONHASHSEED=0 timeout -k 5 {seconds:.0f} '
    "transient-python "
    "-m {module} --run {run} 2>{run}/check.log >{run}/check.json; "
    "ended=$?; tail -c {most} {run}/check.json; echo; "
    '[ $ended -lt 124 ] || echo \'{{"ok": false, "late": true}}\'; tail -n 1 {run}/check.log'
)


def possible_here() -> bool:
    """Return whether this is the user's own machine and has TensorFlow and Tensor2Tensor."""
    return not controller_vm() and all(map(find_spec, ("tensorflow", "tensor2tensor")))


async def reason_against(
    folder: Path, link: Callable[[], Link | None], files: Callable[[], Mapping[str, bytes | Path]]
) -> str:
    """Return why a run cannot be trained, or nothing: checked on this machine or on a VM.

    Parameters
    ----------
    folder
        The run's folder.
    link
        Returns the link of the first parameter server's VM, or of one that replaces it.
    files
        Returns the files that the check needs there.
    """
    if possible_here():
        try:
            return await check(folder)
        except OSError as error:
            # For example a lack of memory, which says nothing about the run.
            log.warning("%s: not checked: %s", folder.name, error)
            return ""
    while True:
        there = link()
        try:
            if there and there.answering:
                return await check_there(there, folder, files)
        except (RemoteError, OSError) as error:
            log.warning("%s: not checked yet: %s", folder.name, error)
        await asyncio.sleep(_RETRY_SECONDS)


async def check(folder: Path) -> str:
    """Check a run in a subprocess on this machine: return why it cannot be trained, or nothing.

    What is counted of the model is written to `model.json` in the run's folder. Raises OSError.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _MODULE,
        "--run",
        str(folder),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(os.environ),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        return _TOO_LONG
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    tail = errors.decode(errors="replace").strip().splitlines()
    return _reason(
        folder,
        output.decode(errors="replace"),
        tail[-1] if tail else f"exit code {process.returncode}",
    )


async def check_there(
    link: Link, folder: Path, files: Callable[[], Mapping[str, bytes | Path]]
) -> str:
    """Check a run on a VM, after sending its files. Raises RemoteError or OSError."""
    run = folder.name
    connection = await link.bring(run, files)
    code = f"{layout.CODE_ON_VM}/{await push_bundle(connection)}"
    there = layout.run_on_vm(run)
    command = _THERE.format(
        code=code, seconds=_SECONDS, module=_MODULE, run=there, most=_MOST_BYTES
    )
    output = await connection.run(command, timeout=_SECONDS + 60)
    *_, last = output.strip().splitlines() or ["no output"]
    return _reason(folder, output, last)


def counts(folder: Path) -> dict[str, float]:
    """Return what a check has counted of the model; empty if it could not."""
    try:
        return _numbers(json.loads((folder / layout.MODEL).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def declared_by_fit(folder: Path) -> FitDeclaration:
    """Return what a check found that the cell's `model.fit` declares."""
    try:
        return FitDeclaration.from_dict(json.loads((folder / layout.FIT).read_text("utf-8")))
    except (OSError, ValueError):
        return FitDeclaration()


def check_counts(path: Path) -> None:
    """Reduce a file of counts from elsewhere to its numbers. Raises ValueError without any."""
    numbers = _numbers(json.loads(path.read_bytes()))
    path.write_text(json.dumps(numbers), encoding="utf-8")


def _reason(folder: Path, output: str, last_words: str) -> str:
    """Return the answer of a check: a line of JSON among other output."""
    for line in reversed(output.splitlines()):
        try:
            # A count may be NaN, which `parsed_object` refuses.
            answer = checks.an_object(json.loads(line))
        except (ValueError, RecursionError):
            continue
        if "ok" not in answer:
            continue
        if answer.get("late"):
            return _TOO_LONG
        if model := _numbers(answer.get("model")):
            # Plans use these figures.
            (folder / layout.MODEL).write_text(json.dumps(model), encoding="utf-8")
        if answer.get("fit"):
            try:
                fit = FitDeclaration.from_dict(answer["fit"])
            except ValueError as error:
                return f"The check's answer cannot be read: {error}"[:_MOST_CHARACTERS]
            (folder / layout.FIT).write_text(json.dumps(asdict(fit)), encoding="utf-8")
        if answer["ok"] is True:
            return ""
        return str(answer.get("error") or "The check failed")[:_MOST_CHARACTERS]
    return f"The check ended without an answer: {last_words[:_MOST_CHARACTERS]}"


def _numbers(model: object) -> dict[str, float]:
    """Return the numbers among the counts."""
    try:
        counts = checks.an_object(model)
    except ValueError:
        return {}
    return {
        name: value
        for name, value in counts.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST
    }


# The check of another run holds for the same code and packages.


def content(folder: Path) -> bytes:
    """Return a hash of the code and the packages in a run's folder. Raises OSError."""
    digest = hashlib.sha256((folder / layout.CELL).read_bytes())
    for path in _files(folder):
        digest.update(f"\0{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.digest()


def found_alike(folder: Path, spec: RunSpec, others: Sequence[RunState]) -> bool:
    """Return whether one of `others` passed its check with the same code as the run in `folder`.

    What was counted of its model is then copied to the folder.
    """
    for other in reversed(others):
        if other.name == spec.name or not alike(other.spec, spec):
            continue
        there = folder.with_name(other.name)
        try:
            if content(there) != content(folder):
                continue
            for name in (layout.MODEL, layout.FIT):
                if (there / name).exists():
                    write_atomically(folder / name, (there / name).read_bytes())
        except OSError as error:
            log.warning("%s: cannot be compared with %s: %s", spec.name, other.name, error)
            continue
        log.info("%s: the check of %s holds for it", spec.name, other.name)
        return True
    return False


def _files(folder: Path) -> Iterator[Path]:
    for name in (layout.INCLUDE, layout.WHEELS):
        yield from sorted(path for path in (folder / name).rglob("*") if path.is_file())
