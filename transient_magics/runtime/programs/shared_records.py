"""A problem's records in a bucket, shared by all clusters.

`python -m ...programs.shared_records get ...` copies them into a folder: those that `put` left
there, or else all files of the place (a folder of the problem's own, which someone else filled).
`put` uploads a folder under a new name, and then names it in a small manifest. If several do so at
the same time, one wins, and the uploads of the others are deleted. Prints one line of JSON,
`{"files": N}` or `{"error": "sentence"}`.
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
    """Copy the records into `directory`; return the number of files, 0 if there are no records."""
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
    """Return the folder of the bucket's place from which `get` copies; "" for the place itself."""
    values, _ = bucket.read_json(_manifest(problem))
    if values is None:
        return ""
    return _read(values)[0]


def put(bucket: Bucket, problem: str, directory: Path) -> int:
    """Upload the records; return the number of files, 0 if another cluster was faster."""
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
        # The VM's token may be allowed to create objects there, and not to delete them.
        with contextlib.suppress(TrainingError):
            for file in files:
                bucket.delete(f"{folder}{file.name}")
        return 0
    return len(files)


def run(action: str, place: str, problem: str, directory: Path, token: Path) -> int:
    """Run `get` or `put` in another process, which has Google's client in its memory.

    Returns the number of files. Raises TrainingError.
    """
    arguments = [action, place, problem, str(directory), "--token", str(token)]
    command = [sys.executable, "-m", f"{__package__}.{Path(__file__).stem}", *arguments]
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
            File(str(file["name"]), int(file["size"]), str(file["crc32c"]))
            for file in values["files"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingError(f"the manifest of the records cannot be read: {error!r}") from error
    is_valid = _PART.fullmatch(folder.removesuffix("/"))
    if not is_valid or not all(_NAME.fullmatch(file.name) for file in files):
        raise TrainingError("the manifest of the records names files outside of its folder")
    return folder, files


def main() -> None:
    """Print the answer; exit with 1 if it is an error."""
    parser = argparse.ArgumentParser(
        description="Get a problem's records from a bucket, or put them there."
    )
    parser.add_argument("do", choices=("get", "put"))
    parser.add_argument("place", help="gs://bucket/folder")
    parser.add_argument("problem")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--token", type=Path, help="file with the token for the bucket")
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
