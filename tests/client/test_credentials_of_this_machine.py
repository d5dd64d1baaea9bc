"""Google is asked with this machine's credentials, at its own names: they are used where they lie, never copied."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.client.google_here import ACCOUNT, TOKEN, google

pytestmark = pytest.mark.slow

PROGRAM = [sys.executable, "-m", "transient_magics.cli.program"]


def sku(description: str, dollars: float, usage: str) -> dict[str, Any]:
    """As Cloud Billing describes the price of a part."""
    price = {"currencyCode": "USD", "units": "0", "nanos": round(dollars * 1e9)}
    rate = {"startUsageAmount": 0, "unitPrice": price}
    return {
        "description": description, "category": {"usageType": usage}, "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": "h", "tieredRates": [rate]}}],
    }  # fmt: skip


SKUS = [
    sku("Nvidia Tesla T4 GPU running in Americas", 0.4321, "OnDemand"),
    sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.1234, "Preemptible"),
]


def who(bearer: str) -> str:
    """Whose the credentials of a request are: a token that was given for the key, or one that was signed with it."""
    token = bearer.removeprefix("Bearer ")
    if token == TOKEN:
        return ACCOUNT
    return json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["iss"]


def test_todays_prices_and_a_cluster_are_asked_for_with_credentials_that_are_never_copied(tmp_path: Path) -> None:
    def answers(host: str, method: str, path: str) -> tuple[int, dict[str, Any]]:
        if host.startswith("cloudbilling"):
            return 200, {"skus": SKUS}
        return 403, {"error": {"code": 403, "message": "Not today", "errors": [{"reason": "forbidden"}]}}

    home, secret = tmp_path / "home", tmp_path / "secret"
    secret.mkdir()
    with google(secret, answers) as there:
        own = {**there.environment, "TRANSIENT_MAGICS_HOME": str(home), "TMPDIR": str(tmp_path / "tmp")}
        (tmp_path / "tmp").mkdir()

        def said(*words: str, code: int = 0) -> str:
            ended = subprocess.run(
                [*PROGRAM, *words], capture_output=True, text=True, check=False, env=own, encoding="utf-8"
            )
            assert ended.returncode == code, ended
            return ended.stdout + ended.stderr

        def asked_of_compute_engine() -> list[str]:
            return [path for host, _, path, _ in there.asked if host.startswith("compute")]

        told = said("catalog", "t4", "--project", "my-own")
        assert datetime.now(UTC).date().isoformat() in told
        assert {path.partition("?")[0] for _, _, path, _ in there.asked} == {"/v1/services/6F81-5844-456A/skus"}

        assert "Not today" in said("cluster", "attach", "far", "--project", "my-own", code=1)
        attached = len(asked_of_compute_engine())
        assert attached

        said("cluster", "t4", "--name", "c", "--project", "my-own", "--ssh-from", "10.0.0.0/8", "--bucket", "none")
        deadline = time.monotonic() + 200
        while len(asked_of_compute_engine()) == attached:
            assert time.monotonic() < deadline, (home / "clusters" / "c" / "controller.log").read_text(encoding="utf-8")
            time.sleep(0.1)
        os.kill(int((home / "clusters" / "c" / "controller.lock").read_text(encoding="utf-8")), signal.SIGKILL)
        assert all(path.startswith("/compute/v1/projects/my-own/") for path in asked_of_compute_engine())
        assert there.tokens, "which are made with the key"
        assert {who(bearer) for *_, bearer in there.asked} == {ACCOUNT}
        assert there.kept_in(secret) == [secret / "credentials.json"]
        assert there.kept_in(home) == there.kept_in(tmp_path / "tmp") == []
