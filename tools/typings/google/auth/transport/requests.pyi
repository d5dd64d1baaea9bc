from requests import Session

from ..credentials import Credentials

class Request:
    def __init__(self, session: Session | None = None) -> None: ...

class AuthorizedSession(Session):
    def __init__(self, credentials: Credentials, *, max_refresh_attempts: int = 2) -> None: ...
