"""A recorded report of the doctor's, asked again of an emulator: where does it answer otherwise than Google did?

    python -m tests.cloud.contract doctor-report.json

What was asked is asked again in its order. Placeholders stand for names: those that an answer brought (an operation's
name, a VM's number) are bound to what the emulator answers in the same place, the others are made up. Compared are the
statuses, which fields there are, of which types, and the values that are the same whoever asks and whenever.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tests.emulator.emulated_cloud import PROJECT, http_request, start
from transient_magics.cloud.calling.recording import shape

_PLACEHOLDER = re.compile(r"\b[A-Z]+-\d+\b")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)")
_COMPARED = ("kind", "operationType", "code", "reason", "domain")
_LATER = frozenset(("endTime", "progress", "statusMessage", "nextPageToken", "warnings", "etag"))
"""Fields that come and go with the moment, or with how much there is."""
_ELSEWHERE = ("cloudbilling.googleapis.com", "openidconnect.googleapis.com")
"""Services that the emulator does not play."""
_LONGEST_WAIT, _SETTLING_SECONDS = 60, 20.0


class Replay:
    """One report, asked of the emulator at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._bound = {"PROJECT-1": PROJECT}
        self.asked = 0

    def differences(self, exchanges: list[Mapping[str, Any]]) -> Iterator[str]:
        """A sentence for each difference, in the order of the questions."""
        told: set[str] = set()
        for each in exchanges:
            if self._can_be_asked(each):
                for what in self._ask(each):
                    sentence = f"{each['method']} {each['route']} ({each['status']}): {what}"
                    if sentence not in told:
                        told.add(sentence)
                        yield sentence

    def _can_be_asked(self, exchange: Mapping[str, Any]) -> bool:
        body = exchange["asked"]
        whole = body is None or (isinstance(body, dict) and "<form>" not in body.values())
        objects = "/o" in exchange["path"].partition("/b/")[2] or exchange["path"].startswith(
            ("/upload/", "/download/")
        )
        return whole and not objects and exchange["host"] not in _ELSEWHERE

    def _ask(self, exchange: Mapping[str, Any]) -> Iterator[str]:
        self.asked += 1
        path = quote(self._filled(exchange["path"]), safe="/:")
        query = {key: self._filled(value) for key, value in exchange["query"].items()}
        body, deadline = self._filled_in(exchange["asked"]), time.monotonic() + _SETTLING_SECONDS
        while True:  # whoever asked Google may have waited for something before
            status, answer = http_request(self._url, exchange["method"], f"{path}?{urlencode(query)}", body)
            if status == exchange["status"] or exchange["method"] != "GET" or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if status != exchange["status"]:
            yield f"the emulator answers {status}"
            return
        self._bind(exchange["answered"], answer)
        recorded, given = exchange["answered"], shape(answer) if answer is not None else None
        if "/aggregated/instances" in path:  # which VMs there are at a moment; what one is, is compared where it is got
            recorded, given = ({**each, "items": {}} for each in (recorded, given))
        yield from compare(recorded, given)
        if isinstance(answer, dict) and answer.get("kind") == "compute#operation":
            self._finish(answer)

    def _finish(self, operation: Mapping[str, Any]) -> None:
        """Google took its time too before the next question."""
        path = operation["selfLink"].partition("/compute/")[2]
        for _ in range(_LONGEST_WAIT):
            status, found = http_request(self._url, "POST", f"/compute/{path}/wait")
            if status != 200 or found["status"] == "DONE":
                return
        raise AssertionError(f"{path} does not end")

    def _filled_in(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._filled(key): self._filled_in(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._filled_in(each) for each in value]
        return self._filled(value) if isinstance(value, str) else value

    def _filled(self, text: str) -> str:
        """With names for placeholders, and moments an hour from now."""
        later = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _PLACEHOLDER.sub(lambda found: self._name(found[0]), _MOMENT.sub(later, text))

    def _name(self, placeholder: str) -> str:
        kind, _, number = placeholder.partition("-")
        made_up = {
            "UUID": str(uuid.uuid5(uuid.NAMESPACE_URL, placeholder)),
            "HASH": hashlib.sha256(placeholder.encode()).hexdigest()[:16],
            "KEY": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA",
            "NUMBER": f"{4711:09}{number}",
            "ADDRESS": f"203.0.113.{number}",
            "ACCOUNT": f"account-{number}@example.com",
        }
        return self._bound.get(placeholder) or made_up.get(kind) or placeholder.lower()

    def _bind(self, recorded: Any, answer: Any) -> None:
        if isinstance(recorded, dict) and isinstance(answer, dict):
            for key, value in recorded.items():
                self._bind(value, answer.get(key))
        elif isinstance(recorded, str) and isinstance(answer, str) and _PLACEHOLDER.fullmatch(recorded):
            self._bound[recorded] = answer


def compare(recorded: Any, given: Any, place: str = "") -> Iterator[str]:
    """Where two shapes differ, Google's first."""
    where = place or "the answer"
    if isinstance(recorded, dict) and isinstance(given, dict):
        for key in sorted(recorded.keys() | given.keys()):
            inner = f"{place}.{key}".lstrip(".")
            if key in _LATER:
                continue
            if key not in given:
                yield f"Google has {inner}, the emulator not"
            elif key not in recorded:
                yield f"the emulator has {inner}, Google not"
            elif key in _COMPARED and recorded[key] != given[key]:
                yield f"{inner} is {recorded[key]!r} of Google, {given[key]!r} of the emulator"
            else:
                yield from compare(recorded[key], given[key], inner)
    elif isinstance(recorded, list) and isinstance(given, list):
        if recorded and given:
            yield from compare(recorded[0], given[0], f"{place}[]")
    elif _kind(recorded) != _kind(given):
        yield f"{where} is a {_kind(recorded)} of Google, a {_kind(given)} of the emulator"


def _kind(leaf: Any) -> str:
    """The type of a leaf, be it there by its type or by its value."""
    if isinstance(leaf, str) and re.fullmatch(r"<[a-z]+>", leaf):
        return leaf.strip("<>")
    names = {bool: "boolean", int: "number", float: "number", str: "string", dict: "object", list: "list"}
    return names.get(type(leaf), "null")


def main() -> int:
    """Print how an emulator differs from what is recorded; exit code 1 where it does."""
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        running = start(Path(folder) / "state", "--notice", "0.2")
        try:
            replay = Replay(running.url)
            found = list(replay.differences(report["exchanges"]))
        finally:
            running.process.terminate()
            running.process.wait()
    print("\n".join([*found, f"{replay.asked} questions, {len(found)} differences"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
