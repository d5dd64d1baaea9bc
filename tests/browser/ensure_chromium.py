"""Say which Chromium the browser tests will use, and install one where there is none.

Debian's package when that may be done, else Playwright's own download. Ends with 1 and one sentence when none can be
had.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """The browser's program: the one named by CHROMIUM, the system's, or Playwright's."""
    if named := os.environ.get("CHROMIUM"):
        return named
    if system := next(filter(None, map(shutil.which, NAMES)), None):
        return system
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def _debian() -> bool:
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        if subprocess.run(command, env=quiet, stdout=subprocess.DEVNULL, check=False).returncode:
            return False
    return True


def _playwright() -> bool:
    return subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], check=False).returncode == 0


def main() -> int:
    """Exit code 0 when there is a browser."""
    if found := find():
        print(f"Browser tests use {found}")
        return 0
    print("No Chromium here; installing one ...", flush=True)
    if (_debian() or _playwright()) and (found := find()):
        print(f"Browser tests use {found}")
        return 0
    print("No Chromium could be installed. Install one, or name it: CHROMIUM=/path make test", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
