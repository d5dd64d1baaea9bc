"""What a run's `--pip` comes to: wheels in the run's folder, chosen once, for all VMs and as long as the run lasts.

Every VM has the packages of the training lock. What is asked for has to agree with them; what it needs beyond them is
gathered here, so that VMs need no way to an index, and one that joins later has the same versions.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import TrainingError
from .startup import pinned

_SECONDS = 300.0


async def gather(packages: Sequence[str], wheels: Path) -> None:
    """Put wheels of `packages`, and of what they need, into the folder `wheels`, unless it is there.

    `packages` are pip's requirements or absolute paths of files. Raises TrainingError with pip's own sentence.
    """
    if not packages or wheels.exists():
        return
    with tempfile.TemporaryDirectory(dir=wheels.parent, prefix=".wheels-") as temporary:
        lock, report, fresh = (Path(temporary) / name for name in ("lock.txt", "report.json", "wheels"))
        there = pinned()
        lock.write_text("".join(f"{name}=={version}\n" for name, version in there.items()))
        resolving = ["--dry-run", "--ignore-installed", "--report", str(report), "--constraint", str(lock)]
        await _pip("install", *resolving, "--", *packages)
        found = json.loads(report.read_text())["install"]
        missing = [each for each in found if _normal(each["metadata"]["name"]) not in there]
        fresh.mkdir()
        if missing:
            await _pip("wheel", "--no-deps", "--wheel-dir", str(fresh), "--", *map(_exactly, missing))
        fresh.rename(wheels)


def _exactly(found: dict[str, Any]) -> str:
    """One line of pip's report as a requirement that means this and nothing else."""
    metadata = found["metadata"]
    return found["download_info"]["url"] if found["is_direct"] else f"{metadata['name']}=={metadata['version']}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


async def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    # A Jupyter kernel has FORCE_COLOR set, and all that it starts: pip's sentences would come between escape sequences.
    plain = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE, start_new_session=True, env=plain,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_SECONDS):
            _, errors = await process.communicate()
    except TimeoutError:
        raise TrainingError(f"pip did not end within {_SECONDS:.0f} s", where="--pip") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").splitlines()
        said = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        telling = [line for line in said if not line.startswith("ResolutionImpossible")]
        what = telling[-1] if telling else (lines or ["pip failed"])[-1]
        fix = "Every VM has the versions of locks/training.txt." if "conflicting" in what else ""
        raise TrainingError(what, where="--pip", fix=fix)
