"""The Security Token Service, as far as it bounds the rights of an access token: tokens for some objects only.

A token carries its boundary and its end, signed with a key of this emulator's: it outlives the emulator's process, and
nobody can make one but by asking. Google's are opaque; so are these to whoever holds them.
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
_PREFIX = "ya29.dr."  # as Google's begin, but nobody should rely on it
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_LIFETIME = 3600.0


class Tokens:
    """Gives and knows tokens; `folder` keeps the key that they are signed with. `lifetime` is in seconds."""

    def __init__(self, folder: Path, lifetime: float = _LIFETIME) -> None:
        self._lifetime = lifetime
        path = folder / "token-key"
        if not path.exists():
            write_atomically(path, secrets.token_hex(32), durable=False)
        self._key = path.read_bytes()

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Exchange a token whose rights are those of `request` for one that has fewer."""
        if request.method != "POST":
            return web.Response(status=404)
        try:
            given = {name: str(value) for name, value in (await request.post()).items()}
            return web.json_response(self.exchange(given))
        except (ValueError, KeyError, TypeError) as error:
            return refusal("invalid_request", f"It cannot be understood: {error}")

    def exchange(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The answer to a well-formed request; ValueError, KeyError or TypeError for any other."""
        if given["grant_type"] != _GRANT:
            raise ValueError("grant_type")
        if given["requested_token_type"] != _ACCESS_TOKEN or given["subject_token_type"] != _ACCESS_TOKEN:
            raise ValueError("only access tokens are exchanged")
        if not given["subject_token"]:
            raise ValueError("subject_token")
        options = json.loads(unquote(given["options"]))
        rights.boundary(options)
        told = json.dumps({"options": options, "expires": time.time() + self._lifetime}).encode()
        text = base64.urlsafe_b64encode(told).decode()
        token = f"{_PREFIX}{text}.{self._sign(text)}"
        return {
            "access_token": token, "issued_token_type": _ACCESS_TOKEN, "token_type": "Bearer",
            "expires_in": int(self._lifetime),
        }  # fmt: skip

    def rights(self, token: str) -> rights.Rights | None:
        """What its holder may do; None if it was not made here, or has expired."""
        text, _, signature = token.removeprefix(_PREFIX).rpartition(".")
        if not token.startswith(_PREFIX) or not hmac.compare_digest(signature.encode(), self._sign(text).encode()):
            return None
        told = json.loads(base64.urlsafe_b64decode(text))
        return rights.Rights(rights.boundary(told["options"])) if told["expires"] > time.time() else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


def refusal(kind: str, why: str) -> web.Response:
    """As the service writes it."""
    return web.json_response({"error": kind, "error_description": why}, status=400)
