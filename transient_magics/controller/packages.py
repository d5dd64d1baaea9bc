"""Resolve a run's `--pip` to wheels in its folder, once, for all VMs and the whole run.

Every VM has the packages of its cluster's locks. The requested packages have to agree with them.
Their further requirements are gathered here, so that VMs need no access to an index, and a later VM
gets the same versions.

No code of a package runs here: only wheels are accepted, and pip may start no program, unless
`--pip-build` is given. pip gets the part of this process's environment that it needs, without
credentials. The resolved files and the downloaded files are the same, by their hashes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import DeclarationError, TrainingError
from ..spec import TRAINING, check_package, without_secrets
from .vms.startup import pinned

_SECONDS = 300.0
_LOCKED = "Every VM has the versions of locks/training.txt, with --for jobs of locks/light.txt."
_RESTRICTED_PIP = Path(__file__).with_name("restricted_pip.py")
_ENVIRONMENT = re.compile(
    r"HOME|PATH|LANG|LC_\w+|TMPDIR|USER|LOGNAME|XDG_\w+|PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE"
    r"|(?:HTTPS?|NO|ALL)_PROXY|(?:https?|no|all)_proxy"
)
_WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[A-Za-z0-9_.!+]+)(?:-\d[^-/]*)?(?:-[A-Za-z0-9_.]+){3}\.whl"
)


async def gather(
    packages: Sequence[str], wheels: Path, *, build: bool = False, purpose: str = TRAINING
) -> None:
    """Put wheels of `packages` and their requirements into the folder `wheels`, unless it exists.

    `packages` are pip's requirements, names of files in the folder `pip` beside `wheels`, absolute
    paths, or URLs. With `build`, packages without a wheel are built. `purpose` is that of the
    cluster. Raises TrainingError with pip's own sentence.
    """
    if not packages or wheels.exists():
        return
    try:
        places = [check_package(package, build=build) for package in packages]
    except DeclarationError as error:
        raise TrainingError(error.what, where=error.where, fix=error.fix) from error
    own = {
        path.name: str(path)
        for path in wheels.with_name("pip").glob("*")
        if path.is_file() and not path.is_symlink()
    }
    packages = [own.get(package, package) for package in packages]
    folders = [place for place in places if place and Path(place).is_dir()]
    with tempfile.TemporaryDirectory(dir=wheels.parent, prefix=".wheels-") as temporary:
        lock, report, requirements, fresh = (
            Path(temporary) / name for name in ("lock.txt", "report", "wanted.txt", "wheels")
        )
        there = pinned(purpose)
        lock.write_text(
            "".join(f"{name}=={version}\n" for name, version in there.items()), encoding="utf-8"
        )
        if build:
            binary = []
        else:
            binary = ["--only-binary=:all:"]
        resolving = [
            "--dry-run",
            "--ignore-installed",
            "--report",
            str(report),
            "--constraint",
            str(lock),
        ]
        await _pip(build, temporary, "install", *resolving, *binary, "--", *packages)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
        missing = [entry for entry in found if _normal(entry["metadata"]["name"]) not in there]
        fresh.mkdir()
        exact = [_exactly(entry) for entry in missing if "dir_info" not in entry["download_info"]]
        if exact:
            requirements.write_text("\n".join(exact), encoding="utf-8")
            if build:
                how = ["wheel", "--wheel-dir"]
            else:
                how = ["download", *binary, "--dest"]
            await _pip(
                build,
                temporary,
                *how,
                str(fresh),
                "--no-deps",
                "--require-hashes",
                "--requirement",
                str(requirements),
            )
        if folders:
            await _pip(
                build, temporary, "wheel", "--no-deps", "--wheel-dir", str(fresh), "--", *folders
            )
        _check(fresh, missing)
        fresh.rename(wheels)


def _exactly(found: dict[str, Any]) -> str:
    """Return an entry of pip's report as a requirement that matches only this file."""
    metadata = found["metadata"]
    archive = found["download_info"]["archive_info"]
    url: str = found["download_info"]["url"]
    if found["is_direct"]:
        name = f"{metadata['name']} @ {url}"
    else:
        name = f"{metadata['name']}=={metadata['version']}"
    hashes: dict[str, str] = archive.get("hashes") or {}
    digest = hashes.get("sha256")
    if not digest and url.startswith("file:"):
        digest = hashlib.sha256(Path(unquote(urlsplit(url).path)).read_bytes()).hexdigest()
    if not digest:
        raise TrainingError(
            f"The package index has no SHA-256 of {metadata['name']}",
            where="--pip",
            fix="Name a file of it instead.",
        )
    return f"{name} --hash=sha256:{digest}"


def _check(folder: Path, resolved: Sequence[dict[str, Any]]) -> None:
    """Check that these are exactly the wheels that were resolved."""
    expected = {
        (_normal(entry["metadata"]["name"]), entry["metadata"]["version"]) for entry in resolved
    }
    names = [path.name for path in folder.iterdir()]
    matches = [_WHEEL.fullmatch(name) for name in names]
    brought = {
        (_normal(found["name"]), found["version"].replace("_", "-")) for found in matches if found
    }
    expected_wheels = {(name, version.replace("_", "-")) for name, version in expected}
    if None in matches or brought != expected_wheels or len(names) != len(expected):
        what = (
            f"pip downloaded {', '.join(sorted(names)) or 'nothing'}, which differs from what "
            "it resolved before"
        )
        raise TrainingError(what, where="--pip", fix="Declare the work again.")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


async def _pip(build: bool, folder: str, *words: str) -> None:
    if build:
        program = ["-m", "pip"]
    else:
        program = [str(_RESTRICTED_PIP)]
    command = [sys.executable, *program, "--disable-pip-version-check", "--no-input", *words]
    plain = {name: value for name, value in os.environ.items() if _ENVIRONMENT.fullmatch(name)}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=plain,
        cwd=folder,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            _, errors = await process.communicate()
    except TimeoutError:
        raise TrainingError(
            f"pip did not end within {_SECONDS:.0f} s", where="--pip", fix="Declare the work again."
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = without_secrets(errors.decode(errors="replace")).splitlines()
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        telling = [line for line in errors if not line.startswith("ResolutionImpossible")]
        if telling:
            what = telling[-1]
        else:
            what = (lines or ["pip failed"])[-1]
        fix = _LOCKED if "conflicting" in what else ""
        if not build and ("to be built" in what or "No matching distribution" in what):
            fix = (
                "Only wheels are accepted; --pip-build builds the others on the controller's "
                "machine."
            )
        raise TrainingError(what, where="--pip", fix=fix)
