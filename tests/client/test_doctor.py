"""The doctor, as a user types it: on a machine without credentials, on the emulator, and through its whole course."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import transient_magics as tm
from tests.homes import own_home
from transient_magics import emulator, places
from transient_magics.cli import arguments
from transient_magics.client import launching
from transient_magics.client.checkup import estimate
from transient_magics.client.declaring import Declaration, specify
from transient_magics.errors import DeclarationError
from transient_magics.magics.completion import candidates

PROGRAM = [sys.executable, "-m", "transient_magics.cli.program", "doctor"]


@pytest.fixture
def home() -> Iterator[Path]:
    with own_home() as folder:
        yield folder


def ended(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program, when it is through."""
    whole = {**os.environ, **environment}
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, check=False, timeout=600, env=whole, encoding="utf-8"
    )


def test_what_is_typed_is_read_and_completed() -> None:
    words = arguments.split(
        "t4x2 --project my-own --spend $2 --yes --zone us-west1-b --no-external-ip --report out.json"
    )
    assert arguments.parse("doctor", words).values == {
        "spec": "t4x2", "project": "my-own", "spend": 2.0, "yes": True, "zone": ("us-west1-b",), "external_ip": False,
        "report_to": "out.json",
    }  # fmt: skip
    with pytest.raises(DeclarationError, match="--yes is about what --spend pays for"):
        arguments.parse("doctor", ["--yes"])
    assert "--spend" in candidates("transient_doctor", "", "--sp")


def test_the_most_that_the_course_costs_is_what_its_vms_cost_until_they_are_deleted() -> None:
    cpu, gpu = (specify(Declaration(spec, project="a-project", max_hours=0.5)) for spec in ("cpu", "t4"))
    whole, baked = estimate.parts(cpu, gpu, image=False), estimate.parts(cpu, gpu, image=True)
    assert len(whole) == 3
    assert baked == (whole[0], whole[2])
    most = sum(part.most for part in whole)
    assert most == pytest.approx((cpu.hourly + gpu.hourly) / 2 + whole[1].hourly)
    assert f"${most:.3g}" in estimate.words(whole)


def without_credentials(folder: Path) -> dict[str, str]:
    """The environment of a machine on which nobody ever logged in, and which reaches nothing."""
    nowhere = "http://127.0.0.1:9"
    return {
        "TRANSIENT_MAGICS_HOME": str(folder / "home"), "CLOUDSDK_CONFIG": str(folder), "NO_GCE_CHECK": "true",
        "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "PATH": str(folder),
    }  # fmt: skip


@pytest.mark.slow
def test_a_machine_without_credentials_is_told_what_to_type_and_its_report_names_nobody(tmp_path: Path) -> None:
    report = tmp_path / "shown.json"
    done = ended("--project", "some-project-of-mine", "--report", str(report), **without_credentials(tmp_path))
    assert done.returncode == 1, done
    said = done.stdout
    assert "good: this machine's folder: " in said
    assert "NOT GOOD: gcloud: SSH goes through Identity-Aware Proxy, and the program gcloud" in said
    assert "NOT GOOD: clock: https://compute.googleapis.com/ does not answer" in said
    assert "NOT GOOD: credentials: No Google Cloud credentials were found on this machine." in said
    assert "    type: gcloud auth application-default login" in said
    assert "3 to mend in project some-project-of-mine" in said
    whole = report.read_text(encoding="utf-8") + report.with_suffix(".txt").read_text(encoding="utf-8")
    assert "some-project-of-mine" not in whole
    assert str(tmp_path) not in whole
    assert "gcloud auth application-default login" in whole


@pytest.mark.slow
def test_nothing_is_rented_above_the_limit_nor_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in without_credentials(tmp_path).items():
        monkeypatch.setenv(name, value)
    above = r"may cost more than \$0\.200: \$0\.6\d+ at most: .*--spend 0\.6\d allows"
    with pytest.raises(DeclarationError, match=above):
        tm.doctor(project="some-project", spend=0.2, yes=True, anyway=True)
    with pytest.raises(DeclarationError, match="The cost of the course needs your agreement"):
        tm.doctor(project="some-project", spend=5.0, anyway=True)
    found = tm.doctor(project="some-project", spend=5.0, yes=True)
    assert [stage.subject for stage in found.stages] == ["the course"], "not where something is not good"
    assert tm.clusters() == []


@pytest.mark.slow
def test_a_notebook_sees_a_table_with_the_commands(home: Path) -> None:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    done = shell.run_cell("%transient_doctor --bucket none")
    done.raise_error()
    found = done.result
    assert found.well
    assert {row["subject"]: row["verdict"] for row in found.rows}["bucket"] == "note"
    html = shell.display_formatter.format(found)[0]["text/html"]
    assert html.count("<tr>") == len(found.rows) + 1
    assert "NOT GOOD" not in html
    shell.run_cell("%unload_ext transient_magics")
    exchanges = json.loads(found.report.read_text(encoding="utf-8"))["exchanges"]
    assert {each["host"] for each in exchanges} == {"127.0.0.1"}
    assert "/compute/v1/projects/{project}/regions/{region}" in {each["route"] for each in exchanges}
    assert not any("RECORD" in name for name in os.environ), "what is asked later is not recorded"


def vms() -> list[Any]:
    """What the emulator has, of whatever cluster."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    instances = compute_v1.InstancesClient(
        credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator.ensure()}
    )
    found = instances.aggregated_list(project="emulated-project")
    return [each for _, scope in found for each in scope.instances]


@pytest.mark.slow
def test_a_users_own_cluster_is_not_taken_for_one_of_a_killed_course(home: Path) -> None:
    for name in ("doctor-thesis", "doctor-gpu-1a2b3c", "doctor-cpu-4d5e6f"):
        folder = places.private(places.cluster(name))
        (folder / "spec.json").write_text(
            json.dumps(specify(Declaration("cpu", name=name)).to_dict()), encoding="utf-8"
        )
    running_course = places.private(home / "doctor") / "4d5e6f.pid"
    running_course.write_text(str(os.getpid()), encoding="utf-8")
    left_behind = [line for line in tm.doctor().lines if line.subject == "left behind"]
    shutil.rmtree(places.clusters())  # so that no controller is started to end these clusters
    assert [line.mend for line in left_behind if line.mend] == ["transient cluster delete doctor-gpu-1a2b3c"]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_course_interrupted_before_its_controller_is_started_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = launching.commands.start_controller, list[Path]()

    def interrupted(directory: Path, *how: Any, **options: Any) -> None:
        begun.append(directory)
        if len(begun) == 1:
            raise KeyboardInterrupt
        start(directory, *how, **options)

    monkeypatch.setattr(launching.commands, "start_controller", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tm.doctor(spend=1.0, say=lambda words: None)
    assert len(set(begun)) == 1
    assert tm.clusters() == []


@pytest.mark.slow
def test_an_interrupted_course_leaves_nothing(home: Path) -> None:
    course = subprocess.Popen([*PROGRAM, "--spend", "1"], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert course.stdout
    assert any("The course costs nothing on the emulator" in line for line in course.stdout)
    deadline = time.monotonic() + 200
    while not tm.clusters():
        assert time.monotonic() < deadline, "no cluster was declared"
        time.sleep(0.1)
    course.send_signal(signal.SIGINT)
    output, _ = course.communicate(timeout=300)
    assert course.returncode == 130
    assert "good: what is left" in output
    assert vms() == []
    assert tm.clusters() == []


@pytest.mark.training
@pytest.mark.nightly
def test_the_course_ends_well_and_its_report_says_what_was_seen(home: Path) -> None:
    done = ended("--spend", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT GOOD" not in done.stdout
    path = home / "doctor" / "doctor-report.json"
    assert f"The report, without names of yours: {path}" in done.stdout
    report = json.loads(path.read_text(encoding="utf-8"))
    stages = {each["subject"]: each for each in report["stages"]}
    assert [each["subject"] for each in report["stages"] if each["verdict"] != "good"] == []
    notice = stages["a notice, as Compute Engine gives it"]["facts"]
    assert notice["told_by_the_vm"] == [True]
    assert 25 < notice["gone_after_seconds"][0] - notice["notice_after_seconds"][0] < 120
    kinds = [each["type"] for each in notice["operations"]]
    assert kinds[0] == "insert"
    assert "compute.instances.preempted" in kinds
    assert stages["the checkpoint"]["facts"]["shipped_step"] == 20
    assert {vm["at_the_end"] for vm in stages["the end that Compute Engine enforces"]["facts"]["vms"]} == {"DELETE"}
    assert stages["what is left"]["facts"]["cleared"] > 5
    assert vms() == []
    assert len(tm.images().images) == 1
    routes = {(each["method"], each["route"].rpartition("/")[2]) for each in report["exchanges"]}
    assert {("POST", "simulateMaintenanceEvent"), ("POST", "images"), ("GET", "getGuestAttributes")} <= routes
    assert "emulated-project" not in path.read_text(encoding="utf-8") + path.with_suffix(".txt").read_text(
        encoding="utf-8"
    )


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
        bad = [line for line in found.lines if line.verdict == "bad"]
        if not bad:
            break
        wanted = [step for step in steps if any(re.search(rf"\b{re.escape(step)}\b", f"{line.mend} {line.said}")
                                                for line in bad)]  # fmt: skip
        assert wanted, f"nothing that is said helps: {bad}"
        assert all(line.mend for line in bad), bad
        mended += wanted
        patched(mend=wanted)
    assert found.well, found
    assert mended[0] == "compute.googleapis.com"
    assert {"roles/compute.instanceAdmin.v1", "roles/storage.admin", "GPUS_ALL_REGIONS"} <= set(mended)
    assert str(found).count("All is well in the emulator.") == 1
