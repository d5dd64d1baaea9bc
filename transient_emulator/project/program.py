"""`transient emulator project`: what the project of a running emulator lacks, and steps taken or taken back."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.parse
from pathlib import Path
from typing import Any

from transient_magics import places
from transient_magics.errors import DeclarationError, UnreachableError, heard

from ..settings import find
from .state import CHARGES, CUSTOM_ROLES, MANAGED, NETWORK, POLICIES, QUOTAS, ROLES, SERVICES, STEPS

_PATH = "/emulator/v1/project"
_VERBS = ("show", "fresh", "whole", "mend", "lack", "role")
_GROUPS = {
    "accounts": CHARGES,
    "APIs that are not enabled": SERVICES,
    "roles that nobody has": ROLES,
    "organization policies that are on": (*POLICIES, *MANAGED),
    "quotas of a new project": QUOTAS,
    "network": NETWORK,
}
_EVERY_RIGHT = "all"
_ANSWER_SECONDS = 10.0


def run(argv: list[str]) -> int:
    """Parse the command line, ask the emulator, print what its project lacks. Raises TransientError."""
    options = _parser().parse_args(argv)
    if bool(options.steps) != (options.verb in ("mend", "lack", "role")):
        raise DeclarationError(f"{options.verb} takes {'steps' if not options.steps else 'no steps'}", fix="See -h.")
    if options.verb == "role" and len(options.steps) > 1:
        raise DeclarationError("role takes one name", fix="See -h.")
    change = {"fresh": True} if options.verb == "fresh" else {"whole": True} if options.verb == "whole" else None
    if options.verb == "role":
        (name,) = options.steps
        change = {"role": "" if name == _EVERY_RIGHT else name}
    elif options.steps:
        change = {options.verb: options.steps}
    state = (options.state or places.emulator()).absolute()
    answer = ask(find(state).get("url", ""), change)
    lines = told(answer["lacks"])
    if role := answer["role"]:
        lines.append(f"Users have the permissions of {role} alone.")
    print("\n".join(lines))
    return 0


def ask(url: str, change: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the project of the emulator at `url` lacks, after `change` if there is one.

    Raises DeclarationError for a change that cannot be meant, UnreachableError where no emulator answers.
    """
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("PATCH" if change else "GET", _PATH, json.dumps(change) if change else None)
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        fix = "Start one with `transient emulator`, or name its --state."
        raise UnreachableError("No emulator answers", where=url, fix=fix) from error
    finally:
        connection.close()
    if answer.status != 200:
        said = content["error"]
        raise heard(said.get("parts", {"error": said["message"]}), DeclarationError)
    return content


def told(lacks: list[str]) -> list[str]:
    """What is lacking, a line for each kind of steps."""
    if not lacks:
        return ["The emulated project lacks nothing."]
    lines = ["The emulated project is like a new one of a strict organization. It lacks:"]
    for title, steps in _GROUPS.items():
        if found := [step for step in steps if step in lacks]:
            lines.append(f"  {title}: {', '.join(found)}")
    return [*lines, "`transient emulator project mend STEP` takes a step."]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transient emulator project",
        description="What the project of a running emulator lacks, as a new Google project does; mend it step by step.",
        epilog=f"Steps: {', '.join(STEPS)}.",
    )
    parser.add_argument(
        "verb", nargs="?", choices=_VERBS, default="show",
        help="fresh: lack everything; whole: lack nothing; mend STEP...: take steps; lack STEP...: take them back; "
        "role NAME: limit users to a custom role of docs/accounts.md "
        f"({', '.join(CUSTOM_ROLES)}; {_EVERY_RIGHT}: no limit)",
    )  # fmt: skip
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help="what Google calls it: an API, a role, a policy, a quota"
    )
    parser.add_argument("--state", type=Path, help="the emulator's directory (default: this user's own)")
    return parser


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
