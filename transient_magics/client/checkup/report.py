"""The report that a person can attach to a question: what was found, and how Google's services were asked and answered.

Everything goes through `Names`. Of exchanges that are alike (the same question about the same kind of thing, answered
in the same shape) the first one is kept, with how many there were: in their order, they can be asked again elsewhere.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import platform
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ... import places
from ...version import VERSION
from .diagnosis import Line
from .names import Names

FORM = 1
_PACKAGES = ("google-cloud-compute", "google-cloud-storage", "google-auth", "requests", "asyncssh")
_NAMED = frozenset(
    (
        "projects", "zones", "regions", "instances", "disks", "images", "family", "networks", "subnetworks",
        "firewalls", "operations", "machineTypes", "acceleratorTypes", "b", "serviceAccounts", "services", "routers",
    )
)  # fmt: skip
"""What in a path is followed by a name."""


@cache
def machine() -> dict[str, Any]:
    """What this is run with: versions alone."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "transient_magics": VERSION, "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}", "packages": versions,
    }  # fmt: skip


def own_names() -> dict[str, list[str]]:
    """The names of this machine and of its user."""
    host = socket.gethostname()
    users = [Path.home().name]
    with contextlib.suppress(OSError, KeyError):  # an account without a name
        users.append(getpass.getuser())
    homes = [each for each in (str(places.home()), str(Path.home())) if len(each) > 1]
    return {"home": homes, "host": [host, host.partition(".")[0]], "user": users}


def with_parts(known: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The names, with what of an e-mail address is a name by itself."""
    every = {kind: list(names) for kind, names in known.items()}
    for account in list(every.get("account", ())):
        local, _, domain = account.partition("@")
        public = domain in ("gmail.com", "googlemail.com") or domain.endswith("gserviceaccount.com")
        every.setdefault("user", []).append(local)
        if domain and not public:
            every.setdefault("host", []).append(domain)
    return every


def make(
    known: Mapping[str, Iterable[str]],
    asked: Mapping[str, Any],
    lines: Sequence[Line],
    stages: Sequence[Line],
    exchanges: Iterable[Mapping[str, Any]],
    now: float,
) -> dict[str, Any]:
    """The whole report, as JSON values without names."""
    names = Names(with_parts(known))
    return {
        "form": FORM,
        "made": time.strftime("%Y-%m-%d", time.gmtime(now)),
        "machine": machine(),
        "asked": names.concealed(asked),
        "lines": [_line(names, each) for each in lines],
        "stages": [_line(names, each) for each in stages],
        "exchanges": distinct(names.concealed(each) for each in exchanges),
    }


def distinct(exchanges: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first of those that are alike, with its route and how many there were."""
    kept: dict[str, dict[str, Any]] = {}
    for each in exchanges:
        route = template(str(each["path"]))
        query = sorted(each["query"])
        key = json.dumps([each["method"], route, query, each["status"], each["answered"]], sort_keys=True)
        known = kept.setdefault(key, {**each, "route": route, "times": 0})
        known["times"] += 1
    for each in kept.values():
        each.pop("at", None)
    return list(kept.values())


def template(path: str) -> str:
    """A path with placeholders for names: `/compute/v1/projects/{project}/zones/{zone}`."""
    parts = path.split("/")
    for index, part in enumerate(parts[1:], 1):
        before = parts[index - 1]
        if before == "o":  # the names of objects have slashes
            return "/".join([*parts[:index], "{object}"])
        if before in _NAMED and part and part not in _NAMED:
            name, colon, verb = part.partition(":")
            parts[index] = f"{{{before.removesuffix('s')}}}{colon}{verb}" if name else part
    return "/".join(parts)


def as_text(report: Mapping[str, Any]) -> str:
    """The same for reading."""
    machine = report["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    head = [
        f"transient doctor, {report['made']}: transient_magics {machine['transient_magics']}, Python "
        f"{machine['python']} on {machine['system']}; {packages}.",
        "Asked: " + json.dumps(report["asked"]),
        "",
    ]
    told = [_told(each) for each in (*report["lines"], *report["stages"])]
    asked = [
        f"{each['times']:>5} x {each['status']} {each['method']} {each['host']}{each['route']}"
        for each in report["exchanges"]
    ]
    return "\n".join([*head, *told, "", "What was asked and how often it was answered so:", *asked, ""])


def write(report: Mapping[str, Any], path: Path) -> Path:
    """Write the report as JSON, and for reading beside it; the JSON's path. Raises OSError."""
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".txt").write_text(as_text(report), encoding="utf-8")
    return path


def read_exchanges(path: Path) -> list[dict[str, Any]]:
    """What was recorded, in its order; a line that was torn by a killed program is passed over."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return sorted(found, key=lambda each: each["at"])


def _line(names: Names, line: Line) -> dict[str, Any]:
    return {
        "subject": names.conceal(line.subject), "verdict": line.verdict, "said": names.conceal(line.said),
        "mend": names.conceal(line.mend), "seconds": round(line.seconds, 1), "facts": names.concealed(line.facts),
    }  # fmt: skip


def _told(line: Mapping[str, Any]) -> str:
    facts = f"\n    {json.dumps(line['facts'])}" if line["facts"] else ""
    shown = Line(line["subject"], line["verdict"], line["said"], line["mend"], line["seconds"])
    return f"{shown}{facts}"
