"""The way Compute Engine writes things: URLs, times, ids, fingerprints, durations, errors. Pure functions."""

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

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class ApiError(Exception):
    """A refusal in the form of the API: HTTP status, `reason` (`notFound`, `invalid`, ...), a message."""

    def __init__(self, status: int, reason: str, message: str, parts: Mapping[str, str] | None = None) -> None:
        """`parts`: those of our own error, which the emulator's own clients make again."""
        self.status, self.reason, self.message, self._parts = status, reason, message, parts
        super().__init__(status, reason, message)

    def body(self) -> dict[str, Any]:
        """The JSON that the client receives."""
        domain = "usageLimits" if self.reason in ("quotaExceeded", "rateLimitExceeded") else "global"
        detail = {"message": self.message, "domain": domain, "reason": self.reason}
        own = {"parts": dict(self._parts)} if self._parts else {}
        return {"error": {"code": self.status, "message": self.message, "errors": [detail], **own}}


def not_found(path: str) -> ApiError:
    """404 for the resource at `path` (below the root)."""
    return ApiError(404, "notFound", f"The resource '{path}' was not found")


def invalid(field: str, value: object, why: str) -> ApiError:
    """400 for a field of a request."""
    return ApiError(400, "invalid", f"Invalid value for field '{field}': '{value}'. {why}")


def required(field: str) -> ApiError:
    """400 for a field that is missing."""
    return ApiError(400, "required", f"Required field '{field}' not specified")


def check_name(name: object, field: str = "resource.name") -> str:
    """The name, if it is a legal one."""
    if not name:
        raise required(field)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid(field, name, why)
    return name


def check_request_id(value: str | None) -> str | None:
    """The request's identity, if it is a UUID other than zero."""
    if value and (not _UUID.fullmatch(value) or not value.strip("0-")):
        raise invalid("requestId", value, "Must be a valid UUID.")
    return value or None


def link(*path: str) -> str:
    """The canonical URL of projects/`path`/..."""
    return ROOT + "projects/" + "/".join(path)


def path_of(url: str) -> str:
    """`projects/...` of a full or partial URL."""
    position = url.find("projects/")
    return url[position:] if position >= 0 else url.lstrip("/")


def last(url: str) -> str:
    """The last part of a full or partial URL, or of a bare name."""
    return url.rstrip("/").rpartition("/")[2]


def now(moment: float | None = None) -> str:
    """A moment (default: the present) as the API writes it."""
    return datetime.fromtimestamp(time.time() if moment is None else moment, UTC).isoformat(timespec="milliseconds")


def moment(text: str, field: str) -> float:
    """Seconds since 1970 of a time in a request."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(field, text, "Must be a date and time as in RFC 3339.") from None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def seconds(duration: object, field: str) -> float:
    """Seconds of a Duration in a request."""
    try:
        if not isinstance(duration, dict):
            raise TypeError
        return int(duration.get("seconds", 0)) + int(duration.get("nanos", 0)) / 1e9
    except (TypeError, ValueError):
        raise invalid(field, duration, "Must be a duration.") from None


def fingerprint(value: object) -> str:
    """A short URL-safe base64 digest that changes with `value`."""
    return base64.urlsafe_b64encode(hashlib.sha256(repr(value).encode()).digest()[:12]).decode()


def fixed_id(*parts: str) -> str:
    """The id of a resource that always exists: the same for the same parts."""
    return str(1_000_000_000 + zlib.crc32("/".join(parts).encode()))


_latest = 0


def fresh_id() -> str:
    """An id never given before."""
    global _latest
    _latest = max(_latest + 1, time.time_ns())
    return str(_latest)
