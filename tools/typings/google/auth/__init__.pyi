"""What this package uses of Google's library for credentials."""

from collections.abc import Sequence

from .credentials import Credentials

def default(scopes: Sequence[str] | None = None) -> tuple[Credentials, str | None]: ...
