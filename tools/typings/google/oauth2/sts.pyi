from collections.abc import Mapping
from typing import Any

from ..auth.transport.requests import Request

class Client:
    def __init__(self, token_exchange_endpoint: str) -> None: ...
    def exchange_token(
        self,
        request: Request,
        grant_type: str,
        subject_token: str,
        subject_token_type: str,
        *,
        requested_token_type: str | None = None,
        additional_options: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]: ...
