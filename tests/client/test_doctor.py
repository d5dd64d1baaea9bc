"""The doctor, as a user types it: on a machine without credentials, on the emulator, and in a new project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import transient_magics as tm
from tests.homes import own_home
from transient_magics import emulator
from transient_magics.cli import arguments
from transient_magics.magics.completion import candidates

PROGRAM = [sys.executable, "-m", "transient_magics.cli.program", "doctor"]
PAID_HOUR = Path(__file__).parents[2] / "docs" / "paid_hour.py"


@pytest.fixture
def home() -> Iterator[Path]:
    with own_home() as folder:
        yield folder


def ended(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program, when it is through."""
    whole = {**os.environ, **environment}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=900, env=whole, encoding="utf-8")


def test_what_is_typed_is_read_and_completed() -> None:
    words = arguments.split("t4x2 --project my-own --zone us-west1-b --no-external-ip")
    assert arguments.parse("doctor", words).values == {
        "spec": "t4x2", "project": "my-own", "zone": ("us-west1-b",), "external_ip": False,
    }  # fmt: skip
    assert "--project" in candidates("transient_doctor", "", "--pro")


def without_credentials(folder: Path) -> dict[str, str]:
    """The environment of a machine on which nobody ever logged in, and which reaches nothing."""
    nowhere = "http://127.0.0.1:9"
    return {
        "TRANSIENT_MAGICS_HOME": str(folder / "home"), "CLOUDSDK_CONFIG": str(folder), "NO_GCE_CHECK": "true",
        "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "PATH": str(folder),
    }  # fmt: skip


@pytest.mark.slow
def test_a_machine_without_credentials_is_told_what_to_type(tmp_path: Path) -> None:
    done = ended(*PROGRAM, "--project", "some-project-of-mine", **without_credentials(tmp_path))
    assert done.returncode == 1, done
    said = done.stdout
    assert "good: this machine's folder: " in said
    assert "NOT GOOD: gcloud: SSH goes through Identity-Aware Proxy. This requires gcloud" in said
    assert "NOT GOOD: clock: https://compute.googleapis.com/ does not answer" in said
    assert "NOT GOOD: credentials: No Google Cloud credentials were found on this machine." in said
    assert "    type: gcloud auth application-default login" in said
    assert "3 checks of project some-project-of-mine failed" in said


@pytest.mark.slow
def test_a_notebook_sees_a_table_with_the_commands(home: Path) -> None:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    done = shell.run_cell("%transient_doctor --bucket none")
    done.raise_error()
    found = done.result
    assert found.well
    assert {row["check"]: row["result"] for row in found.rows}["bucket"] == "note"
    assert [row["check"] for row in found.rows if not row["question"]] == [], "each says what it checked"
    html = shell.display_formatter.format(found)[0]["text/html"]
    assert html.count("<tr>") == len(found.rows) + 1
    assert "NOT GOOD" not in html
    shell.run_cell("%unload_ext transient_magics")


@pytest.mark.training
@pytest.mark.nightly
def test_the_paid_hour_ends_well_on_the_emulator_and_leaves_no_vm(home: Path) -> None:
    done = ended(sys.executable, str(PAID_HOUR))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT GOOD" not in done.stdout
    assert re.search(r"good: training .*: 20 steps, loss .*; fetched .*model\.ckpt-20\.index\.", done.stdout)
    assert re.search(r"good: a preemption notice .*: vm\.preemption_notice after .*, vm\.revoked after", done.stdout)
    assert "good: leftovers (" in done.stdout
    assert len(tm.images().images) == 1


def patched(**change: Any) -> dict[str, Any]:
    """What the emulated project lacks, after a change of that."""
    request = urllib.request.Request(
        f"{emulator.ensure()}/emulator/v1/project", json.dumps(change).encode(), method="PATCH"
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.nightly
def test_in_a_new_project_whoever_does_what_the_doctor_says_gets_through(home: Path) -> None:
    steps = patched(fresh=True)["steps"]
    mended: list[str] = []
    for _ in range(len(steps)):
        found = tm.doctor()
        bad = [check for check in found.checks if check.result == "bad"]
        if not bad:
            break
        wanted = [step for step in steps if any(re.search(rf"\b{re.escape(step)}\b", f"{check.fix} {check.found}")
                                                for check in bad)]  # fmt: skip
        assert wanted, f"nothing that is said helps: {bad}"
        assert all(check.fix for check in bad), bad
        mended += wanted
        patched(mend=wanted)
    assert found.well, found
    assert "compute.googleapis.com" in mended[:2], "the API comes before what it answers"
    assert {"billing", "roles/compute.instanceAdmin.v1", "roles/storage.admin", "GPUS_ALL_REGIONS"} <= set(mended)
    assert str(found).count("All checks of the emulator passed.") == 1
