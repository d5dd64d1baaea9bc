"""The `transient` program: what it says where, and its exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from transient_magics import client
from transient_magics.cli.program import main
from transient_magics.journal.lock import LOCK, is_locked

PROGRAM = [sys.executable, "-m", "transient_magics.cli.program"]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
    yield folder
    if client.clusters():
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*PROGRAM, "cluster", "delete", "--all"], capture_output=True, check=False, timeout=150)
    shutil.rmtree(folder, ignore_errors=True)


def said(*words: str, code: int = 0) -> str:
    """What the program printed, run in this process; on stderr where it failed, in one line."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        exit_code = main(words)
    assert exit_code == code, errors.getvalue()
    if code == 0 or "--dry-run" in words:
        return output.getvalue()
    assert output.getvalue() == ""
    assert errors.getvalue().startswith("transient: ")
    assert errors.getvalue().count("\n") == 1
    return errors.getvalue()


def test_it_is_a_process_with_an_exit_code_and_its_complaints_on_stderr() -> None:
    ended = subprocess.run(
        [*PROGRAM, "clutser"], capture_output=True, text=True, check=False, timeout=150, encoding="utf-8"
    )
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "Did you mean cluster?" in ended.stderr


@pytest.mark.parametrize("words", [[], ["cluster", "-h"], ["cluster", "revoke", "--help"]])
def test_help(words: list[str]) -> None:
    assert said(*words).startswith("usage: transient")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cluster", "k80x"], "column 5"),
        (["cluster", "k80x4", "--wiat"], "Did you mean --wait?"),
        (["cluster", "k80x4", "-o", "c"], "-o works only in notebooks"),
        (["train", "nothere.py", "--model", "a", "--hparams-set", "b", "--problem", "c", "--train-steps", "3"],
         "nothere.py cannot be read"),
    ],
)  # fmt: skip
def test_a_mistake_in_what_was_typed_ends_with_2(home: Path, words: list[str], expected: str) -> None:
    assert expected in said(*words, code=2)


def test_a_fault_in_the_file_ends_with_2_and_names_its_line(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("import os\nx = (\n", encoding="utf-8")
    options = ["--model", "a", "--hparams-set", "b", "--problem", "c", "--train-steps", "3"]
    assert "line 2: '(' was never closed" in said("train", str(file), *options, code=2)


def test_a_fault_in_the_file_of_a_job_is_told_before_a_cluster_is_asked_for(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "ping.py"
    file.write_text("import asyncio\nawait asyncio.sleep(1)\n", encoding="utf-8")
    words = ["job", "python ping.py --fast", "--include", str(file)]
    assert "ping.py line 2: 'await' outside function" in said(*words, code=2)
    file.write_text("print(1)\n", encoding="utf-8")
    assert "There is no cluster yet" in said(*words, code=1)


def test_what_cannot_be_done_ends_with_1(home: Path) -> None:
    assert "Unknown cluster 'nope'" in said("cluster", "status", "nope", code=1)
    assert "There is no cluster yet" in said("cluster", "status", code=1)


def test_the_catalog_and_a_dry_run_need_nothing(home: Path) -> None:
    assert "k80: withdrawn May 2024, use t4 or l4" in said("catalog")
    assert "1 GPU: 12 vCPUs, 78 GB" in said("catalog", "V100")
    assert "Did you mean k80?" in said("catalog", "k8", code=2)
    assert "$1.17 per hour" in said("cluster", "k80x4", "--dry-run")
    assert said("cluster", "list") == "No cluster.\n"


@pytest.mark.slow
def test_a_dry_run_meets_what_a_new_project_refuses(home: Path) -> None:
    state = ["--state", str(home / "emulator"), "--port", "0"]
    with subprocess.Popen([*PROGRAM, "emulator", "--fresh-project", *state], stdout=subprocess.PIPE) as emulator:
        try:
            assert emulator.stdout
            assert emulator.stdout.readline().startswith(b"ready ")
            said("emulator", "project", "mend", "compute.googleapis.com", "billing", "roles/compute.instanceAdmin.v1")
            refused = said("cluster", "t4x2", "--dry-run", code=1)
            assert "UNKNOWN: organization policies: The API cloudresourcemanager.googleapis.com is not" in refused
            said("emulator", "project", "mend", "cloudresourcemanager.googleapis.com", "roles/orgpolicy.policyViewer")
            asked = said("cluster", "t4x2", "--dry-run", code=1)
            assert "UNKNOWN: managed organization policies: compute.managed.requireOsLogin" in asked
            assert "NOT GOOD: quotas of the project: The quota GPUS_ALL_REGIONS" in refused
            said("emulator", "project", "whole")
            assert "NOT" not in said("cluster", "t4x2", "--dry-run")
            assert "the permissions of transientUser alone" in said("emulator", "project", "role", "transientUser")
            assert "NOT GOOD" not in said("cluster", "t4x2", "--dry-run")
            assert "alone" not in said("emulator", "project", "role", "all")
        finally:
            emulator.terminate()


@pytest.mark.slow
def test_a_cluster_from_declaration_to_deletion(home: Path) -> None:
    told = said("cluster", "cpux1", "--name", "demo", "--wait").splitlines()
    assert told[0].startswith("demo is declared.")
    assert "the cluster is ready: 1 worker" in told[-1]
    assert "demo  ready" in said("cluster", "list")
    assert "worker-0  4 vCPU" in said("cluster", "status", "demo")
    assert "worker-0 is ready" in said("cluster", "events", "demo", "--kind", "vm.ready")
    assert said("cluster", "logs", "demo", "worker-0") == "worker-0 has logged nothing yet.\n"
    a_dead_controller_is_reported_and_another_one_started(client.cluster("demo"))
    job = subprocess.run(
        [*PROGRAM, "job", "echo größe ✓", "--cluster", "demo", "--wait"],
        stdout=subprocess.PIPE, check=True, timeout=150, env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert "größe ?\n".encode("latin-1") in job.stdout, "a terminal prints the characters that it can encode"
    following = subprocess.Popen([*PROGRAM, "cluster", "events", "demo", "--follow"], stdout=subprocess.PIPE)
    attached = subprocess.Popen(
        [*PROGRAM, "cluster", "attach", "demo"], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert attached.stdout is not None
    status = ""
    while "worker-0  4 vCPU" not in status:
        line = attached.stdout.readline()
        assert line, "it ended without the status"
        status += line
    assert "it stops 30 seconds after its notice" in said("cluster", "revoke", "demo", "worker-0", "--in", "3s")
    assert following.stdout is not None
    for line in following.stdout:
        if b"worker-0 will be revoked within 30 s" in line:
            break
    following.send_signal(signal.SIGINT)
    assert following.wait(60) == 130
    (asked,), (noticed,) = map(client.cluster("demo").events, ("vm.preemption_asked", "vm.preemption_notice"))
    assert noticed.time - asked.time > 3e9
    assert "demo is deleted, no VM is left" in said("cluster", "delete", "demo")
    told, _ = attached.communicate(timeout=60)  # it ends with the cluster
    assert attached.returncode == 0
    assert "worker-0 will be revoked within 30 s" in told, "what happens follows the status"
    assert "demo is deleted" in said("cluster", "delete", "demo")
    assert "demo  deleted" in said("cluster", "list", "--all")


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def a_dead_controller_is_reported_and_another_one_started(cluster: client.Cluster) -> None:
    """By each command that reads the journal, once."""
    reports = re.compile(
        r"No controller of demo has been running since \d\d:\d\d:\d\d\. The following state is from that time\. "
        r"Another controller is running now\."
    )
    for words in (("status", "demo"), ("list",), ("events", "demo", "--kind", "vm.ready")):
        assert not reports.match(said("cluster", *words))
        wait_until((cluster.directory / LOCK).read_text)  # it is locked first, and written then
        os.kill(int((cluster.directory / LOCK).read_text(encoding="utf-8")), signal.SIGKILL)
        wait_until(lambda: not is_locked(cluster.directory))
        with (cluster.directory / "journal.jsonl").open("ab") as journal:
            journal.write(bytes(100) + b"\n")  # as a power cut leaves one
        assert reports.match(said("cluster", *words))
    wait_until((cluster.directory / LOCK).read_text)
    successor = (cluster.directory / LOCK).read_text(encoding="utf-8")
    assert not reports.match(said("cluster", *words)), "no other one is started"
    wait_until(lambda: "; 3 lines of the journal cannot be read" in said("cluster", "events", "demo"))
    assert (cluster.directory / LOCK).read_text(encoding="utf-8") == successor


@pytest.mark.slow
def test_interrupting_a_wait_ends_with_130_and_leaves_the_cluster(home: Path) -> None:
    waiting = subprocess.Popen(
        [*PROGRAM, "cluster", "cpux1", "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert waiting.stdout is not None
    assert b" is declared." in waiting.stdout.readline()
    os.kill(waiting.pid, signal.SIGINT)
    _, error = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    assert b"continue" in error
    assert "cpu" in said("cluster", "list")
