"""Builds and checks a release without publishing it; `make package` runs it.

The source archive and the wheel land in `dist/`. Each is built twice, the second time from the unpacked source archive,
and both must be equal byte for byte. Then the metadata are checked, the wheel is installed and tried with every Python
from 3.11 to 3.13 of this machine (`tools/light`), and the pages are built. `--tag v1.2` only checks whether the version
of the package is that of the tag, and whether the changelog has it as released.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
NOTICES = ("LICENSE", "THIRD_PARTY.md")
USER_EXTRAS = {"bags", "dask", "planning", "sweep", "training"}


def main() -> None:
    """Run all steps, or the check of a tag. Exits with a message at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="only check that the version is that of this tag")
    tag = parser.parse_args().tag
    if tag:
        check_tag(tag, ROOT)
        return
    os.environ["SOURCE_DATE_EPOCH"] = commit_time()
    source, wheel = build(ROOT, DIST)
    print(f"built {source.name} and {wheel.name}", flush=True)
    check_rebuild(source, wheel)
    print("built them again from the source archive: equal", flush=True)
    for problem in problems(wheel):
        sys.exit(f"{wheel.name}: {problem}")
    print("the metadata are valid, and the notices are in the wheel", flush=True)
    subprocess.run([ROOT / "tools" / "light", "--wheel", wheel], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as pages:
        sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", pages]
        subprocess.run(sphinx, cwd=ROOT, check=True)
    print("the pages are built without a warning; nothing was published", flush=True)


def commit_time() -> str:
    """Return the time of the last commit in seconds since 1970: that of all files in the archives."""
    git = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(git, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout.strip()


def build(project: Path, to: Path) -> tuple[Path, Path]:
    """Build the source archive and the wheel of `project` into an empty folder, and return both."""
    shutil.rmtree(to, ignore_errors=True)
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(to), "-t", "sdist", "-t", "wheel"]
    subprocess.run(hatchling, cwd=project, check=True, stdout=subprocess.DEVNULL)
    (source,) = to.glob("*.tar.gz")
    (wheel,) = to.glob("*.whl")
    return source, wheel


def check_rebuild(source: Path, wheel: Path) -> None:
    """Exit where the source archive does not build into the same two files."""
    with tempfile.TemporaryDirectory() as temporary:
        with tarfile.open(source) as archive:
            archive.extractall(temporary, filter="data")
        (unpacked,) = Path(temporary).iterdir()
        for first, again in zip((source, wheel), build(unpacked, Path(temporary) / "again"), strict=True):
            if first.read_bytes() != again.read_bytes():
                sys.exit(f"{first.name} differs when it is built from the source archive")


def problems(wheel: Path) -> list[str]:
    """Return what is wrong with the metadata and the notices of a wheel, in sentences."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (path,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        content = archive.read(path)
    found = []
    metadata = Metadata.from_email(content, validate=True)
    if f"-{metadata.version}-" not in wheel.name:
        found.append(f"its version is {metadata.version}")
    if str(metadata.requires_python) != ">=3.11":
        found.append(f"it requires Python {metadata.requires_python}")
    message: Message = BytesParser().parsebytes(content)
    extras = set(message.get_all("Provides-Extra", []))
    if extras != USER_EXTRAS:
        found.append(f"its extras are {sorted(extras)}")
    folder = path.removesuffix("METADATA")
    found += [f"it has no {name}" for name in NOTICES if f"{folder}licenses/{name}" not in names]
    return found


def check_tag(tag: str, project: Path) -> None:
    """Exit where the package has another version than the tag, or the changelog does not have it as released."""
    text = (project / "transient_magics" / "version.py").read_text(encoding="utf-8")
    version = re.findall(r'VERSION = "([^"]+)"', text)[0]
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version is {version}")
    changes = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)}, \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        sys.exit(f"CHANGELOG.md has no heading '## {version}, YYYY-MM-DD'")


if __name__ == "__main__":
    main()
