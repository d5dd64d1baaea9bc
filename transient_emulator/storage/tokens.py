"""The Security Token Service, as far as it limits an access token to some objects.

A token contains its boundary and its expiry, signed with a key of this emulator. It therefore
outlives the emulator's process, and no client can forge one. Google's tokens are opaque to their
holders, and so are these.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from transient_magics.files import write_atomically

from . import rights

PATH = "/v1/token"
# Google's tokens begin so. No client should rely on it.
_PREFIX = "ya29.dr."
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_LIFETIME = 3600.0


class Tokens:
    """The tokens of this emulator.

    Parameters
    ----------
    folder
        The folder of the key that signs tokens.
    lifetime
        Seconds until a new token expires.
    """

    def __init__(self, folder: Path, lifetime: float = _LIFETIME) -> None:
        self._lifetime = lifetime
        path = folder / "token-key"
        if not path.exists():
            write_atomically(path, secrets.token_hex(32), durable=False)
        self._key = path.read_bytes()

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Exchange a token with the rights of `request` for one with fewer rights."""
        if request.method != "POST":
            return web.Response(status=404)
        try:
            fields = {name: str(value) for name, value in (await request.post()).items()}
            return web.json_response(self.exchange(fields))
        except (ValueError, KeyError, TypeError) as error:
            return refusal("invalid_request", f"It cannot be understood: {error}")

    def exchange(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """Return the answer to a request.

        Parameters
        ----------
        fields
            The fields of the request's form.

        Raises
        ------
        ValueError, KeyError, TypeError
            If the request is invalid.
        """
        if fields["grant_type"] != _GRANT:
            raise ValueError("grant_type")
        kinds = {fields["requested_token_type"], fields["subject_token_type"]}
        if kinds != {_ACCESS_TOKEN}:
            raise ValueError("only access tokens can be exchanged")
        if not fields["subject_token"]:
            raise ValueError("subject_token")
        options = json.loads(unquote(fields["options"]))
        # An invalid boundary is refused now, not when the token is used.
        rights.parse_boundary(options)
        content = {"options": options, "expires": time.time() + self._lifetime}
        text = base64.urlsafe_b64encode(json.dumps(content).encode()).decode()
        return {
            "access_token": f"{_PREFIX}{text}.{self._sign(text)}",
            "issued_token_type": _ACCESS_TOKEN,
            "token_type": "Bearer",
            "expires_in": int(self._lifetime),
        }

    def rights(self, token: str) -> rights.Rights | None:
        """Return the rights of a token's holder; None if it was not issued here, or has expired."""
        if not token.startswith(_PREFIX):
            return None
        text, _, signature = token.removeprefix(_PREFIX).rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return None
        content = json.loads(base64.urlsafe_b64decode(text))
        if content["expires"] <= time.time():
            return None
        return rights.Rights(rights.parse_boundary(content["options"]))

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def refusal(kind: str, why: str) -> web.Response:
    """Return a refusal in the service's form (RFC 6749, 5.2)."""
    return web.json_response({"error": kind, "error_description": why}, status=400)
