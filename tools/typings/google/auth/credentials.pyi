from datetime import datetime

from .transport.requests import Request

class Credentials:
    token: str | None
    expiry: datetime | None
    """In UTC, without a zone."""

    def refresh(self, request: Request) -> None: ...

class AnonymousCredentials(Credentials): ...
