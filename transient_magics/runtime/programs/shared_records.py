"""A problem's records in a bucket, shared by all clusters: `python -m ...programs.shared_records
get ...`.

`get` brings them into a folder: those that `put` left there, else whatever lies in the place itself
(a folder of the problem's own, filled by somebody). `put` uploads a folder under a name never used
before and then names it in a small manifest; of several that do so at once one wins, and the
others' uploads go. Prints one line of JSON, `{"files": N}` or `{"error": "sentence"}`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import secrets
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import TrainingError, TransientError, reason_of
from ..files.bucket import Bucket, OvertakenError
from ..files.manifest import File

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PART = re.compile(r"[A-Za-z0-9_-]+")


def get(bucket: Bucket, problem: str, directory: Path) -> int:
    """How many files there are now in `directory`; 0: nobody has made them yet."""
    values, _ = bucket.read_json(_manifest(problem))
    if values is None:
        files = [file for file in bucket.files() if not file.name.endswith(".records.json")]
        folder = ""
    else:
        folder, files = _read(values)
    for file in files:
        bucket.download(file, f"{folder}{file.name}", directory / file.name)
    return len(files)


def folder(bucket: Bucket, problem: str) -> str:
    """Where in the place the records lie that `get` would bring: a folder of it, or the place
    itself (empty).
    """
    values, _ = bucket.read_json(_manifest(problem))
    if values is None:
        return ""
    return _read(values)[0]


def put(bucket: Bucket, problem: str, directory: Path) -> int:
    """How many files were uploaded; 0: somebody else was faster."""
    folder = f"{problem}-{secrets.token_hex(6)}/"
    paths = sorted(
        path for path in directory.iterdir() if path.is_file() and _NAME.fullmatch(path.name)
    )
    files = [bucket.upload(path, f"{folder}{path.name}") for path in paths]
    try:
        bucket.write_json(
            _manifest(problem), {"folder": folder, "files": [asdict(file) for file in files]}, 0
        )
    except OvertakenError:
        with contextlib.suppress(
            TrainingError
        ):  # the VM's token may make objects there and not delete any
            for file in files:
                bucket.delete(f"{folder}{file.name}")
        return 0
    return len(files)


def run(do: str, place: str, problem: str, directory: Path, token: Path) -> int:
    """Have a process of its own do it, which has Google's client in its memory instead of us.
    Raises TrainingError.
    """
    words = [do, place, problem, str(directory), "--token", str(token)]
    command = [sys.executable, "-m", f"{__package__}.{Path(__file__).stem}", *words]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    answer: dict[str, Any] = {"error": f"the records' program ended with code {ended.returncode}"}
    with contextlib.suppress(IndexError, ValueError):
        answer = json.loads(ended.stdout.splitlines()[-1])
    if "error" in answer:
        raise TrainingError(str(answer["error"]))
    return int(answer["files"])


def _manifest(problem: str) -> str:
    return f"{problem}.records.json"


def _read(values: Any) -> tuple[str, list[File]]:
    try:
        folder = str(values["folder"])
        files = [
            File(str(each["name"]), int(each["size"]), str(each["crc32c"]))
            for each in values["files"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"the manifest of the records cannot be read: {error!r}") from error
    if not _PART.fullmatch(folder.removesuffix("/")) or not all(
        _NAME.fullmatch(file.name) for file in files
    ):
        raise TrainingError("the manifest of the records names files that lead elsewhere")
    return folder, files


def main() -> None:
    """Exit code 0, or 1 with the reason in the output."""
    parser = argparse.ArgumentParser(
        description="Get a problem's records from a bucket, or put them there."
    )
    parser.add_argument("do", choices=("get", "put"))
    parser.add_argument("place", help="gs://bucket/folder")
    parser.add_argument("problem")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--token", type=Path, help="the file with the token for the bucket")
    given = parser.parse_args()
    answer: dict[str, Any]
    try:
        work = get if given.do == "get" else put
        answer = {"files": work(Bucket(given.place, given.token), given.problem, given.directory)}
    except TransientError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": f"{reason_of(error)} ({error.filename})"}
    print(json.dumps(answer), flush=True)
    sys.exit("error" in answer)


if __name__ == "__main__":
    main()
