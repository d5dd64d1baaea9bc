"""Google's own host names, behind which an emulator or a scripted API answers.

Clients are built as for Google: without an endpoint, with a login that is found as Google's libraries find one. What
depends on the host (messages that begin with it, headers of the login, credentials) is seen only that way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from requests.adapters import HTTPAdapter

QUOTA_PROJECT = "project-of-another-day"
TOKEN = "ya29.of-the-login"
_HERE = "127.0.0.1"
_LOGIN_HOST = "oauth2.googleapis.com"
_SERVED = ("compute", "storage", "sts", "cloudresourcemanager", "iam", "orgpolicy", "cloudbilling", "openidconnect")
SERVED = tuple(f"{name}.googleapis.com" for name in _SERVED)


@dataclass
class Hosts:
    """What was sent to Google's names: host, path, and the project that the request was to be charged to."""

    url: str
    sent: list[tuple[str, str, str | None]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def charged(self, host: str) -> set[str | None]:
        """The projects that requests to a host named, None for those that named none."""
        return {project for name, _, project in self.sent if name == host}


@contextmanager
def mounted(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, quota_project: str = QUOTA_PROJECT
) -> Iterator[Hosts]:
    """Forward what is sent to Google's names to `url`, and log in with a quota project."""
    login = folder / "application_default_credentials.json"
    login.write_text(
        json.dumps(
            {
                "type": "authorized_user",
                "client_id": "gcloud",
                "client_secret": "secret",
                "refresh_token": "refresh",
                "quota_project_id": quota_project,
            }
        ),
        encoding="utf-8",
    )
    login.chmod(0o600)
    hosts = Hosts(url)
    real = HTTPAdapter.send

    def send(adapter: HTTPAdapter, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        parts = urlsplit(str(request.url))
        if parts.hostname == _LOGIN_HOST:
            return _answer(request, {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
        if parts.hostname not in (*SERVED, _HERE):
            hosts.unknown.append(str(parts.hostname))
        forwarded = request.copy()
        if parts.hostname in SERVED:
            hosts.sent.append((parts.hostname, parts.path, request.headers.get("x-goog-user-project")))
            forwarded.url = f"{hosts.url}{parts.path}?{parts.query}"
        if forwarded.headers.get("Authorization") == f"Bearer {TOKEN}":
            del forwarded.headers["Authorization"]  # the emulator serves every user of this machine
        response = real(adapter, forwarded, **{**options, "proxies": {}})
        response.request = request
        response.url = str(request.url)
        return response

    with monkeypatch.context() as patch:
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(login))
        patch.delenv("GOOGLE_CLOUD_QUOTA_PROJECT", raising=False)
        patch.setattr(HTTPAdapter, "send", send)
        yield hosts
    assert hosts.unknown == []


def _answer(request: requests.PreparedRequest, content: dict[str, Any]) -> requests.Response:
    response = requests.Response()
    response.status_code = 200
    response._content = json.dumps(content).encode()
    response.headers["Content-Type"] = "application/json"
    response.request = request
    response.url = str(request.url)
    return response
