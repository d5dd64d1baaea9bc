"""`transient emulator project`: show and change what the project of a running emulator lacks."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.parse
from pathlib import Path
from typing import Any

from transient_magics import places
from transient_magics.errors import DeclarationError, UnreachableError, from_message

from ..settings import find
from .state import (
    CHARGES,
    CUSTOM_ROLES,
    MANAGED,
    NETWORK,
    POLICIES,
    QUOTAS,
    ROLES,
    SERVICES,
    STEPS,
)

_PATH = "/emulator/v1/project"
_VERBS = ("show", "fresh", "whole", "mend", "lack", "role")
_VERBS_WITH_STEPS = ("mend", "lack", "role")
_GROUPS = {
    "accounts": CHARGES,
    "APIs that are not enabled": SERVICES,
    "roles that no user has": ROLES,
    "organization policies that are active": (*POLICIES, *MANAGED),
    "quotas of a new project": QUOTAS,
    "network": NETWORK,
}
# The name of a role that ends the limit to a custom role.
_EVERY_RIGHT = "all"
_ANSWER_SECONDS = 10.0


def run(argv: list[str]) -> int:
    """Parse the command line, ask the emulator and print what its project lacks.

    Returns
    -------
    int
        The exit code, 0.

    Raises
    ------
    TransientError
        If the command line is invalid or no emulator answers.
    """
    options = _parser().parse_args(argv)
    change = _change(options)
    state = (options.state or places.emulator()).absolute()
    answer = ask(find(state).get("url", ""), change)
    lines = describe(answer["lacks"])
    role = answer["role"]
    if role:
        lines.append(f"Users have the permissions of {role} alone.")
    print("\n".join(lines))
    return 0


def _change(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the change that the command line asks for; None to show the state."""
    takes_steps = options.verb in _VERBS_WITH_STEPS
    if takes_steps and not options.steps:
        raise DeclarationError(f"{options.verb} needs steps", fix="-h lists them.")
    if options.steps and not takes_steps:
        raise DeclarationError(f"{options.verb} does not accept steps", fix="Leave them out.")
    match options.verb:
        case "fresh" | "whole":
            return {options.verb: True}
        case "role":
            if len(options.steps) > 1:
                raise DeclarationError("role needs one name", fix="-h lists the names.")
            name = options.steps[0]
            return {"role": "" if name == _EVERY_RIGHT else name}
        case "mend" | "lack":
            return {options.verb: options.steps}
    return None


def ask(url: str, change: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask an emulator what its project lacks, and change that first.

    Parameters
    ----------
    url
        The emulator's URL.
    change
        The change to make (see `Project.change`); None makes none.

    Returns
    -------
    dict
        The state of the project (see `Project.to_json`).

    Raises
    ------
    DeclarationError
        If the change is invalid.
    UnreachableError
        If no emulator answers.
    """
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port, timeout=_ANSWER_SECONDS
    )
    try:
        if change:
            connection.request("PATCH", _PATH, json.dumps(change))
        else:
            connection.request("GET", _PATH)
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        fix = "Start it with `transient emulator`, or name its --state."
        raise UnreachableError("The emulator does not answer", where=url, fix=fix) from error
    finally:
        connection.close()
    if answer.status != 200:
        refusal = content["error"]
        raise from_message(refusal.get("parts", {"error": refusal["message"]}), DeclarationError)
    return content


def describe(lacks: list[str]) -> list[str]:
    """Return what a project lacks in words, one line for each kind of step."""
    if not lacks:
        return ["The emulated project lacks nothing."]
    lines = ["The emulated project is like a new one of a strict organization. It lacks:"]
    for title, steps in _GROUPS.items():
        found = [step for step in steps if step in lacks]
        if found:
            lines.append(f"  {title}: {', '.join(found)}")
    lines.append("`transient emulator project mend STEP` needs a step.")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transient emulator project",
        description="Show which APIs, roles, policies and quotas the project of a running emulator "
        "lacks, and change them.",
        epilog=f"Names for STEP: {', '.join(STEPS)}.",
    )
    parser.add_argument(
        "verb",
        nargs="?",
        choices=_VERBS,
        default="show",
        help="show: show what is missing; fresh: remove everything; whole: add everything; "
        "mend STEP...: add STEPs; lack STEP...: remove STEPs; "
        "role NAME: restrict users to a custom role of docs/accounts.md "
        f"({', '.join(CUSTOM_ROLES)}; {_EVERY_RIGHT}: no restriction)",
    )
    parser.add_argument(
        "steps",
        nargs="*",
        metavar="STEP",
        help="Google's name of an API, role, policy or quota",
    )
    parser.add_argument(
        "--state",
        type=Path,
        help="the directory of the emulator (default: a directory of this user)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
