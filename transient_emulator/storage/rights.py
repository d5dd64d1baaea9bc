"""What a request may do in Cloud Storage: all, nothing, or what the boundary of its token leaves of it.

Boundaries are read as Google's documentation writes them: rules of a bucket, roles in it and a condition on the names
of objects and of lists. Where the request goes is asked at the shelf, by which everything passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..rest import wire

_READ = frozenset({"storage.objects.get", "storage.objects.list"})
_USE = _READ | {"storage.objects.create", "storage.objects.update", "storage.objects.delete"}
_ROLES: dict[str, frozenset[str]] = {
    "objectViewer": _READ,
    "objectCreator": frozenset({"storage.objects.create"}),
    "objectUser": _USE,
    "objectAdmin": _USE,
}
_BUCKET = re.compile(r"//storage\.googleapis\.com/projects/_/buckets/([a-z0-9][-_.a-z0-9]*)")
_TEXT = r"'((?:[^'\\]|\\['\\])*)'"
_CLAUSE = re.compile(
    rf"\s*(?:resource\.name\.startsWith\({_TEXT}\)|resource\.name == {_TEXT}"
    rf"|api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)\.startsWith\({_TEXT}\))\s*(?:\|\||$)"
)
_MOST_RULES, _LONGEST_CONDITION = 10, 2048


@dataclass(frozen=True)
class Rule:
    """Permissions in a bucket; `begins`, `equals` and `lists` say of which names and lists, None: of all."""

    bucket: str
    permissions: frozenset[str]
    conditions: tuple[tuple[str, str], ...] | None

    def allows(self, permission: str, bucket: str, name: str | None, prefix: str) -> bool:
        """Whether it grants a permission on an object, or (without a name) on the bucket with a list's prefix."""
        if bucket != self.bucket or permission not in self.permissions:
            return False
        if self.conditions is None:
            return True
        resource = f"projects/_/buckets/{bucket}" + ("" if name is None else f"/objects/{name}")
        meets = {"begins": resource.startswith, "equals": resource.__eq__, "lists": prefix.startswith}
        return any(meets[kind](text) for kind, text in self.conditions)


@dataclass(frozen=True)
class Rights:
    """Those of one request. `rules` None: all; without any: nobody's, who is told that he has said no name.

    `role`: the permissions in the project, on every bucket; None: no role limits them.
    """

    rules: tuple[Rule, ...] | None = None
    role: frozenset[str] | None = None

    def allows(self, permission: str, bucket: str, name: str | None = None, prefix: str = "") -> bool:
        """Whether it is granted."""
        if self.role is not None:
            return permission in self.role
        return self.rules is None or any(rule.allows(permission, bucket, name, prefix) for rule in self.rules)

    def demand(self, permission: str, bucket: str, name: str | None = None, prefix: str = "") -> None:
        """ApiError where it is not granted: 403, or 401 for a request of nobody."""
        if self.allows(permission, bucket, name, prefix):
            return
        what = "bucket" if name is None else "object"
        known = bool(self.rules) or self.role is not None
        who, status, reason = ("The caller", 403, "forbidden") if known else ("Anonymous caller", 401, "required")
        raise wire.ApiError(
            status, reason,
            f"{who} does not have {permission} access to the Google Cloud Storage {what}. "
            f"Permission '{permission}' denied on resource (or it may not exist).",
        )  # fmt: skip


ALL, NONE = Rights(), Rights(())
REFUSED = Rights((Rule("", frozenset(), None),))
"""Of somebody who is known, and has no role."""
_present: ContextVar[Rights] = ContextVar("rights", default=ALL)


def have(rights: Rights) -> None:
    """From here on the present request has these."""
    _present.set(rights)


def demand(permission: str, bucket: str, name: str | None = None, prefix: str = "") -> None:
    """See that the present request may do it. ApiError if not."""
    _present.get().demand(permission, bucket, name, prefix)


def grants(permission: str, bucket: str) -> bool:
    """Whether the present request may do it."""
    return _present.get().allows(permission, bucket)


def boundary(options: Any) -> tuple[Rule, ...]:
    """The rules of a Credential Access Boundary. ValueError for what it cannot be, or what is not understood here."""
    rules = options["accessBoundary"]["accessBoundaryRules"]
    if not isinstance(rules, list) or not 1 <= len(rules) <= _MOST_RULES:
        raise ValueError(f"between 1 and {_MOST_RULES} rules make a boundary")
    return tuple(map(_rule, rules))


def _rule(values: Mapping[str, Any]) -> Rule:
    found = _BUCKET.fullmatch(values["availableResource"])
    if not found:
        raise ValueError(f"{values['availableResource']!r} is no bucket")
    condition = values.get("availabilityCondition")
    return Rule(found[1], _permissions(values["availablePermissions"]), _conditions(condition) if condition else None)


def _permissions(roles: Iterable[str]) -> frozenset[str]:
    granted: set[str] = set()
    for role in roles:
        kind, _, name = role.partition("inRole:roles/storage.")
        if kind or name not in _ROLES:
            raise ValueError(f"{role!r} is no role that is known here")
        granted |= _ROLES[name]
    return frozenset(granted)


def _conditions(condition: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What is joined by || in an expression."""
    expression, place = condition["expression"], 0
    found: list[tuple[str, str]] = []
    if len(expression) > _LONGEST_CONDITION:
        raise ValueError(f"a condition has {_LONGEST_CONDITION} characters at most")
    while place < len(expression):
        clause = _CLAUSE.match(expression, place)
        if not clause:
            raise ValueError(f"the emulator cannot read the condition: {expression[place:]!r}")
        kind, text = next((k, t) for k, t in zip(("begins", "equals", "lists"), clause.groups(), strict=True) if t)
        found.append((kind, re.sub(r"\\(.)", r"\1", text)))
        place = clause.end()
    if not found or expression.rstrip().endswith("||"):
        raise ValueError("the condition is not complete")
    return tuple(found)
