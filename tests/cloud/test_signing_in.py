"""Which credentials are found here, and how far this machine's clock is from a server's."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from google.oauth2.credentials import Credentials

from transient_magics.cloud.calling import clients
from transient_magics.cloud.calling.login import signed_in


def test_credentials_are_told_without_what_they_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)

    def refresh(self: Credentials, request: Any) -> None:
        self.token, self.expiry = "ya29.secret", until.replace(tzinfo=None)

    found = Credentials(None, refresh_token="a-secret", account="me@example.com")
    monkeypatch.setattr(Credentials, "refresh", refresh)
    monkeypatch.setattr("google.auth.default", lambda **_: (found, None))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    file = tmp_path / "application_default_credentials.json"
    file.write_text("{}", encoding="utf-8")
    file.chmod(0o644)
    told = signed_in()
    assert (told.kind, told.whose, told.place) == ("a user's login", "me@example.com", str(file))
    assert told.expires == until.timestamp()
    assert told.exposed
    assert "secret" not in repr(told)
    file.chmod(0o600)
    assert not signed_in().exposed


@pytest.mark.parametrize("behind", [-1000.0, 0.0, 1000.0])
async def test_the_clocks_distance_is_bounded(behind: float) -> None:
    async def answer(request: web.Request) -> web.Response:
        moment = datetime.fromtimestamp(time.time() + behind, UTC)
        return web.Response(headers={"Date": format_datetime(moment, usegmt=True)})

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    began = time.time()
    least, most = await asyncio.to_thread(clients.clock_offset, url, direct=True)
    took = time.time() - began
    await runner.cleanup()
    assert least <= -behind <= most, "what is true lies within"
    assert most - least <= 1.0 + took, "and not much besides"
