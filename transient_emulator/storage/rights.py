"""The rights of a request to Cloud Storage: all, none, or what the boundary of its token permits.

Boundaries are read in the form of Google's documentation: rules with a bucket, roles in it, and a
condition on the names of objects and of lists. The shelf, which every access passes, checks the
rights.
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
# One clause of a condition: on the beginning of a name, on a name, or on the prefix of a list.
_CLAUSE = re.compile(
    rf"\s*(?:resource\.name\.startsWith\({_TEXT}\)|resource\.name == {_TEXT}"
    r"|api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)"
    rf"\.startsWith\({_TEXT}\))\s*(?:\|\||$)"
)
_CLAUSE_KINDS = ("begins", "equals", "lists")
# Google's limits of a boundary.
_MOST_RULES = 10
_LONGEST_CONDITION = 2048


@dataclass(frozen=True)
class Rule:
    """Permissions in a bucket.

    Attributes ----------
    bucket
        The bucket's name.
    permissions
        The permissions.
    conditions
        Kind (`begins`, `equals` or `lists`) and text of the names and lists to which they apply;
        None for all.
    """

    bucket: str
    permissions: frozenset[str]
    conditions: tuple[tuple[str, str], ...] | None

    def allows(self, permission: str, bucket: str, name: str | None, prefix: str) -> bool:
        """Return whether it grants a permission on an object, or for a list with a prefix."""
        if bucket != self.bucket or permission not in self.permissions:
            return False
        if self.conditions is None:
            return True
        resource = f"projects/_/buckets/{bucket}"
        if name is not None:
            resource += f"/objects/{name}"
        tests = {
            "begins": resource.startswith,
            "equals": resource.__eq__,
            "lists": prefix.startswith,
        }
        return any(tests[kind](text) for kind, text in self.conditions)


@dataclass(frozen=True)
class Rights:
    """The rights of one request.

    Attributes
    ----------
    rules
        The rules of its token; None for all rights; empty for an anonymous caller.
    role
        The permissions in the project, on every bucket; None if no role limits them.
    """

    rules: tuple[Rule, ...] | None = None
    role: frozenset[str] | None = None

    def allows(
        self, permission: str, bucket: str, name: str | None = None, prefix: str = ""
    ) -> bool:
        """Return whether a permission is granted, see `demand`."""
        if self.role is not None:
            return permission in self.role
        if self.rules is None:
            return True
        return any(rule.allows(permission, bucket, name, prefix) for rule in self.rules)

    def demand(
        self, permission: str, bucket: str, name: str | None = None, prefix: str = ""
    ) -> None:
        """Check that a permission is granted.

        Parameters
        ----------
        permission
            Such as `storage.objects.get`.
        bucket
            The bucket's name.
        name
            The object's name; None for the bucket itself.
        prefix
            The prefix of a list.

        Raises
        ------
        ApiError
            403 if it is not granted, or 401 for an anonymous caller.
        """
        if self.allows(permission, bucket, name, prefix):
            return
        what = "bucket" if name is None else "object"
        anonymous = not self.rules and self.role is None
        caller = "Anonymous caller" if anonymous else "The caller"
        message = (
            f"{caller} does not have {permission} access to the Google Cloud Storage {what}. "
            f"Permission '{permission}' denied on resource (or it may not exist)."
        )
        if anonymous:
            raise wire.ApiError(401, "required", message)
        raise wire.ApiError(403, "forbidden", message)


ALL = Rights()
"""All rights."""
NONE = Rights(())
"""The rights of an anonymous caller."""
REFUSED = Rights((Rule("", frozenset(), None),))
"""The rights of a user without any role."""
# Per request: each one runs in a task of its own.
_present: ContextVar[Rights] = ContextVar("rights", default=ALL)


def use(rights: Rights) -> None:
    """Give the present request these rights."""
    _present.set(rights)


def demand(permission: str, bucket: str, name: str | None = None, prefix: str = "") -> None:
    """Check that the present request has a permission, see `Rights.demand`. Raises ApiError."""
    _present.get().demand(permission, bucket, name, prefix)


def grants(permission: str, bucket: str) -> bool:
    """Return whether the present request has a permission on a bucket."""
    return _present.get().allows(permission, bucket)


def parse_boundary(options: Any) -> tuple[Rule, ...]:
    """Return the rules of a Credential Access Boundary.

    Parameters
    ----------
    options
        The JSON that the client sent.

    Raises ------
    ValueError
        For an invalid boundary, or one that is not supported here. KeyError and TypeError for a
        missing or wrong part.
    """
    rules = options["accessBoundary"]["accessBoundaryRules"]
    if not isinstance(rules, list) or not 1 <= len(rules) <= _MOST_RULES:
        raise ValueError(f"a boundary must have 1 to {_MOST_RULES} rules")
    return tuple(map(_rule, rules))


def _rule(values: Mapping[str, Any]) -> Rule:
    resource = values["availableResource"]
    found = _BUCKET.fullmatch(resource)
    if not found:
        raise ValueError(f"{resource!r} is not a bucket")
    permissions = _permissions(values["availablePermissions"])
    condition = values.get("availabilityCondition")
    return Rule(found[1], permissions, _conditions(condition) if condition else None)


def _permissions(roles: Iterable[str]) -> frozenset[str]:
    granted: set[str] = set()
    for role in roles:
        before, _, name = role.partition("inRole:roles/storage.")
        if before or name not in _ROLES:
            raise ValueError(f"unknown role {role!r}")
        granted |= _ROLES[name]
    return frozenset(granted)


def _conditions(condition: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return kind and text of the clauses that || joins in an expression."""
    expression = condition["expression"]
    if len(expression) > _LONGEST_CONDITION:
        raise ValueError(f"a condition must have at most {_LONGEST_CONDITION} characters")
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(expression):
        clause = _CLAUSE.match(expression, position)
        if not clause:
            rest = expression[position:]
            raise ValueError(f"the emulator cannot read the condition: {rest!r}")
        texts = zip(_CLAUSE_KINDS, clause.groups(), strict=True)
        given = [(kind, text) for kind, text in texts if text]
        if not given:
            raise ValueError("a clause of the condition must not be empty")
        kind, text = given[0]
        found.append((kind, re.sub(r"\\(.)", r"\1", text)))
        position = clause.end()
    if not found or expression.rstrip().endswith("||"):
        raise ValueError("the condition is not complete")
    return tuple(found)
