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
from collections.abc import Sequence

from ...errors import TrainingError
from ..folder import RunFolder

_SECONDS = 300.0
_MOST_SAID = 300
_ASIDE = ("WARNING: ", "DEPRECATION: ", "[notice]", "hint: ", "note: ")
"""How lines of pip's begin that are not why it failed."""


def provide(folder: RunFolder) -> None:
    """Make the run's packages importable; they are installed by the first process that needs them."""
    wheels = sorted(map(str, folder.wheels.glob("*.whl")))
    if not wheels:
        return
    complete = folder.packages / ".complete"
    folder.packages.mkdir(exist_ok=True, mode=0o700)
    with (folder.packages / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an evaluation may begin beside the parameter server
        if not complete.exists():
            _install(wheels, str(folder.packages))
            complete.touch()
    site.addsitedir(sysconfig.get_path("purelib", vars={"base": str(folder.packages)}))


def _install(wheels: list[str], prefix: str) -> None:
    options = ["--no-index", "--no-deps", "--ignore-installed", "--no-warn-script-location"]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *options]
    done = subprocess.run(
        [*command, "--prefix", prefix, *wheels],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        encoding="utf-8",
    )
    if done.returncode:
        raise TrainingError(why_not(done.stderr, [path.rpartition("/")[2] for path in wheels]), where="--pip")


def why_not(said: str, wheels: Sequence[str]) -> str:
    """A sentence of pip's errors: the last one, which file of `wheels` it is about, if it says so, and no more than a
    line of it, for what is wrong with a file is said with words out of that file."""
    lines = [line.strip() for line in said.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_ASIDE)]
    errors = [line for line in telling if line.startswith("ERROR: ")]
    last = next(reversed(errors or telling), "it says nothing").removeprefix("ERROR: ")
    plain = "".join(each if each.isprintable() else " " for each in last)
    what = f"{plain[:_MOST_SAID]}..." if len(plain) > _MOST_SAID else plain
    named = next((name for name in wheels if name in said), wheels[0] if len(wheels) == 1 else "")
    return f"pip cannot install {named or 'the packages'}: {what}"
