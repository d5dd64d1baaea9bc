"""The notation of Compute Engine: URLs, times, ids, fingerprints, durations, errors.

Pure functions.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

ROOT = "https://www.googleapis.com/compute/v1/"
USER = "emulated-user@emulated-project.iam.gserviceaccount.com"
SYSTEM = "system@google.com"
"""The account of operations that Compute Engine itself starts, such as preemptions."""

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# Google reports these reasons in a domain of their own.
_USAGE_REASONS = ("quotaExceeded", "rateLimitExceeded")


class ApiError(Exception):
    """A refusal in the form of the API.

    Parameters
    ----------
    status
        The HTTP status.
    reason
        Google's name of the reason, such as `notFound` or `invalid`.
    message
        A sentence.
    parts
        The parts of an error of the product, which the emulator's own clients rebuild.
    """

    def __init__(
        self, status: int, reason: str, message: str, parts: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self._parts = parts
        super().__init__(status, reason, message)

    def body(self) -> dict[str, Any]:
        """Return the JSON that the client receives."""
        domain = "usageLimits" if self.reason in _USAGE_REASONS else "global"
        detail = {"message": self.message, "domain": domain, "reason": self.reason}
        error: dict[str, Any] = {
            "code": self.status,
            "message": self.message,
            "errors": [detail],
        }
        if self._parts:
            error["parts"] = dict(self._parts)
        return {"error": error}


def not_found(path: str) -> ApiError:
    """Return the 404 for the resource at `path` (below the root)."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def invalid(field: str, value: object, why: str) -> ApiError:
    """Return the 400 for the value of a field."""
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def required(field: str) -> ApiError:
    """Return the 400 for a missing field."""
    return ApiError(400, "required", f"Required field '{field}' not specified")


def check_name(name: object, field: str = "resource.name") -> str:
    """Return the name if it is legal. Raises ApiError 400 otherwise."""
    if not name:
        raise required(field)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid(field, name, why)
    return name


def check_request_id(value: str | None) -> str | None:
    """Return a request id if it is a UUID other than zero; None if it is missing.

    Raises ApiError 400.
    """
    if not value:
        return None
    if not _UUID.fullmatch(value) or not value.strip("0-"):
        raise invalid("requestId", value, "Must be a valid UUID.")
    return value


def link(*path: str) -> str:
    """Return the canonical URL of projects/`path`/..."""
    return ROOT + "projects/" + "/".join(path)


def path_of(url: str) -> str:
    """Return the part `projects/...` of a full or partial URL."""
    position = url.find("projects/")
    if position < 0:
        return url.lstrip("/")
    return url[position:]


def last(url: str) -> str:
    """Return the last part of a full or partial URL, or of a bare name."""
    return url.rstrip("/").rpartition("/")[2]


def now(moment: float | None = None) -> str:
    """Return a moment (seconds since 1970; default: the present) as the API writes it."""
    if moment is None:
        moment = time.time()
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def moment(text: str, field: str) -> float:
    """Return the seconds since 1970 of a time in a request. Raises ApiError 400 for the field."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(field, text, "Must be a date and time as in RFC 3339.") from None
    if not parsed.tzinfo:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.timestamp()


def seconds(duration: object, field: str) -> float:
    """Return the seconds of a Duration in a request. Raises ApiError 400 for the field."""
    try:
        if not isinstance(duration, dict):
            raise TypeError
        return int(duration.get("seconds", 0)) + int(duration.get("nanos", 0)) / 1e9
    except (TypeError, ValueError):
        raise invalid(field, duration, "Must be a duration.") from None


def fingerprint(value: object) -> str:
    """Return a short URL-safe base64 digest that changes with `value`."""
    digest = hashlib.sha256(repr(value).encode()).digest()
    return base64.urlsafe_b64encode(digest[:12]).decode()


def fixed_id(*parts: str) -> str:
    """Return the id of a resource that always exists: the same for the same parts."""
    return str(1_000_000_000 + zlib.crc32("/".join(parts).encode()))


_latest = 0


def fresh_id() -> str:
    """Return a new id. Later ids are larger."""
    global _latest
    # The clock alone may return the same nanosecond twice, or step back.
    _latest = max(_latest + 1, time.time_ns())
    return str(_latest)
