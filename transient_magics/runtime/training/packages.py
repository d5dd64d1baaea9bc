"""The packages that a run asked for (`--pip`), in the run's own folder beside those of the machine.

They come as wheels with the run's other files, already chosen to fit what every VM has, so nothing is looked up and
nothing of the machine's own environment changes.
"""

from __future__ import annotations

import fcntl
import site
import subprocess
import sys
import sysconfig

from ...errors import TrainingError
from ..folder import RunFolder

_SECONDS = 300.0


def provide(folder: RunFolder) -> None:
    """Make the run's packages importable; they are installed by the first process that needs them."""
    wheels = sorted(map(str, folder.wheels.glob("*.whl")))
    if not wheels:
        return
    complete = folder.packages / ".complete"
    folder.packages.mkdir(exist_ok=True, mode=0o700)
    with (folder.packages / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an evaluation may begin beside the parameter server
        if not complete.exists():
            _install(wheels, str(folder.packages))
            complete.touch()
    site.addsitedir(sysconfig.get_path("purelib", vars={"base": str(folder.packages)}))


def _install(wheels: list[str], prefix: str) -> None:
    options = ["--no-index", "--no-deps", "--ignore-installed", "--no-warn-script-location"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options]
    done = subprocess.run(
        [*command, "--prefix", prefix, *wheels], capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    if done.returncode:
        said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
        raise TrainingError(said[0] if said else "pip failed", where="--pip")
