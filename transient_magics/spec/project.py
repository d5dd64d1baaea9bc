"""The ID of a Google Cloud project, as it is typed."""

from __future__ import annotations

import re

from ..errors import DeclarationError

_ID = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
"""6 to 30 lower-case letters, digits or hyphens; a letter first, and no hyphen last (Resource Manager,
`Project.projectId`, cloud.google.com/resource-manager/reference/rest/v3/projects, read 2026-11-27)."""
_DOMAIN = r"(?:[-a-z0-9]{1,63}\.)+[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN_SCOPED = re.compile(rf"{_DOMAIN}:[a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?")
"""`example.com:my-project`, as Compute Engine takes it (parameter `project`, discovery revision 20261106)."""
_FIX = (
    "An ID has 6 to 30 lower-case letters, digits and hyphens; a project's name may be another. Type "
    "`gcloud projects list`: the ID is in the first column."
)


def parse_project(text: str, where: str = "--project") -> str:
    """Return the ID of a project. Raises DeclarationError for a text that cannot be one, as a display name."""
    found = text.strip()
    if not (_ID.fullmatch(found) or _DOMAIN_SCOPED.fullmatch(found)):
        raise DeclarationError(f"'{text}' is not the ID of a Google Cloud project", where=where, fix=_FIX)
    return found
