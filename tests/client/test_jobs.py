"""What a job says of itself: words, output, what it keeps; how it is shown, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.homes import own_home
from transient_magics import client, places
from transient_magics.cli.arguments import parse, split
from transient_magics.client import Cluster, Job, commands, text
from transient_magics.client.declaring import specify
from transient_magics.client.following import cluster as home
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import Event, Journal, events, lock
from transient_magics.protocol import layout
from transient_magics.runtime.files.archive import pack
from transient_magics.spec import CONTROLLER, WORKER
from transient_magics.works.jobs.events import JobBegan, JobExited, JobKept, JobStarted
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.jobs.state import JobState
from transient_magics.works.jobs.view import JobView
from transient_magics.works.jobs.words import job_words

SPEC = JobSpec("job-1", "python train.py", keep="out")
SEATED = (
    events.VmRequested(
        vm="controller-0", role=CONTROLLER, slot=0, zone="z", accelerator="", machine_type="e2-small",
        provisioning_model="standard", hourly=0.02, on_demand_hourly=0.02,
    ),
    events.ControllerMoved(vm="controller-0"),
)  # fmt: skip
RENTED = events.VmRequested(
    vm="worker-0", role=WORKER, slot=0, zone="z", accelerator="", machine_type="e2-standard-2",
    provisioning_model="spot", hourly=0.02, on_demand_hourly=0.06,
)  # fmt: skip
BEGAN = JobBegan(job="job-1", attempt=1, vms=("worker-0",))


def job_with(*history: Event, purpose: str = "training") -> Job:
    """The handle of a job whose journal has these events; in a home of its own."""
    directory = places.cluster("one")
    directory.mkdir(parents=True)
    spec = specify(client.Declaration("cpux2", name="one", purpose=purpose))
    with Journal(directory / layout.JOURNAL) as journal:
        declared = events.WorkDeclared(of="job", work="job-1", spec=SPEC.to_dict())
        for event in (events.ClusterDeclared(spec=spec.to_dict()), RENTED, declared, *history):
            journal.append(event)
    return Job("job-1", Cluster("one"))


def test_a_job_says_how_it_does_and_what_it_said_steers_nothing() -> None:
    with own_home():
        job = job_with(BEGAN, JobStarted(job="job-1", attempt=1, rank=0))
        (job.directory / layout.OUTPUT).mkdir(parents=True)
        for attempt, said in ((2, "<b>two</b>\x1b[2J\n"), (10, "ten\n"), (1, "one\n")):
            (job.directory / layout.OUTPUT / layout.output(attempt, 0)).write_text(said, encoding="utf-8")
        (job.directory / layout.OUTPUT / layout.output(1, 1)).write_text("another rank\n", encoding="utf-8")
        assert str(job.output()) == "one\n<b>two</b>\x1b[2J\nten\n", "in the order of attempts"
        assert str(job.output(1)) == "ten"
        assert str(job) == "job-1: running on worker-0 (attempt 1)."
        shown = JobView(job)._repr_html_()
        assert "<b>two</b>" not in shown
        assert "&lt;b&gt;two" in shown
        assert "\x1b" not in shown + repr(JobView(job))
        assert "job-1  running on worker-0 (attempt 1)" in text.status(job.cluster.state, job.cluster.cost(), 0.0)
        read: dict[str, int] = {}
        assert len(list(job.blocks(read))) == 3
        with (job.directory / layout.OUTPUT / layout.output(10, 0)).open("a", encoding="utf-8") as file:
            file.write("more\n")
        assert [block for _, block in job.blocks(read)] == [b"more\n"]


def test_what_it_keeps_is_fetched_whole_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with own_home():
        job = job_with(BEGAN)
        with pytest.raises(ClusterError, match="no archive of its folder has arrived yet"):
            job.fetch(tmp_path / "got")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "model").write_text("weights", encoding="utf-8")
        (job.directory / layout.KEPT).mkdir(parents=True)
        packed = pack(tmp_path / "out", job.directory / layout.KEPT / layout.archive(3))
        with Journal(job.cluster.directory / layout.JOURNAL) as journal:
            journal.append(JobKept(
                job="job-1", attempt=1, number=3, files=packed.files, bytes=packed.bytes, digest=packed.digest
            ))  # fmt: skip
        assert (job.fetch(tmp_path / "got") / "model").read_text(encoding="utf-8") == "weights"
        with pytest.raises(ClusterError, match="cannot be created"):
            job.fetch(tmp_path / "got")
        assert "7 bytes kept" in str(job)


def kept(job: Job, said: str, number: int) -> JobKept:
    """Have what it keeps here, as an archive, and the word of it."""
    folder = job.directory.parent / f"of {number}"
    folder.mkdir(parents=True)
    (folder / "model").write_text(said, encoding="utf-8")
    (job.directory / layout.KEPT).mkdir(parents=True, exist_ok=True)
    packed = pack(folder, job.directory / layout.KEPT / layout.archive(number))
    return JobKept(job="job-1", attempt=1, number=number, files=packed.files, bytes=packed.bytes, digest=packed.digest)


def later(do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.5, do)
    timer.start()
    return timer


@pytest.mark.slow
def test_who_waits_for_a_job_has_what_it_left_though_it_comes_after_the_word_of_it(tmp_path: Path) -> None:
    """With the controller on a VM, which says what there is and is then asked for it."""
    with own_home():
        job = job_with(*SEATED, BEGAN)
        lock.take(job.cluster.directory)  # the program that follows the controller elsewhere is this test
        (job.directory / layout.OUTPUT).mkdir(parents=True)
        output, exited = job.directory / layout.OUTPUT / layout.output(1, 0), JobExited(
            job="job-1", attempt=1, rank=0, code=0, seconds=1.0, noticed=False, reason="", tail="works\ndone at 312"
        )  # fmt: skip
        output.write_text("begins\nworks\n", encoding="utf-8")
        ended = events.WorkEnded(work="job-1", of="job", state="finished")
        told = [kept(job, "of 242", 1), kept(job, "of 312", 2), exited, ended]
        newest = job.directory / layout.KEPT / layout.archive(2)
        there = newest.rename(tmp_path / "there")
        with Journal(job.cluster.directory / layout.JOURNAL) as journal:
            for each in told:
                journal.append(each)

        def comes() -> None:
            output.write_text("begins\nworks\ndone at 312\n", encoding="utf-8")
            there.rename(newest)

        coming = later(comes)
        assert "".join(job.stream(quiet=True)) == "begins\nworks\ndone at 312\n"
        coming.join()
        there = newest.rename(tmp_path / "there")
        coming = later(comes)
        job.wait(60)
        assert newest.exists()
        coming.join()
        there = newest.rename(tmp_path / "there")
        coming = later(comes)
        assert (job.fetch(tmp_path / "got") / "model").read_text(encoding="utf-8") == "of 312"
        coming.join()
        newest.unlink()
        with Journal(job.cluster.directory / layout.JOURNAL) as journal:
            journal.append(events.ControllerMoved(vm=""))
        assert (job.fetch(tmp_path / "older") / "model").read_text(encoding="utf-8") == "of 242", (
            "the rest was lost with its machine"
        )


@pytest.mark.slow
def test_what_does_not_come_from_the_vm_of_the_controller_is_no_older_state_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "HOME_SECONDS", 0.3)
    with own_home():
        job = job_with(*SEATED, BEGAN)
        told = [kept(job, "of 242", 1), kept(job, "of 312", 2)]
        (job.directory / layout.KEPT / layout.archive(2)).unlink()
        with Journal(job.cluster.directory / layout.JOURNAL) as journal:
            for each in told:
                journal.append(each)
            assert (job.fetch(tmp_path / "running") / "model").read_text(encoding="utf-8") == "of 242", (
                "the newest that is here"
            )
            journal.append(events.WorkEnded(work="job-1", of="job", state="finished"))
        with pytest.raises(ClusterError, match=r"The last archive of job-1 is still on controller-0 .*/1\.tar"):
            job.fetch(tmp_path / "got")
        assert not (tmp_path / "got").exists()


@pytest.mark.parametrize("kind", ["run", "job", "bag", "study"])
def test_what_a_cluster_has_not_is_refused_with_what_it_has(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, object] = {}
    monkeypatch.setattr(Cluster, "state", SimpleNamespace(of_kind=lambda kind: there))
    with own_home():
        ask = getattr(Cluster("one"), kind)
        with pytest.raises(ClusterError, match=rf"^one has no {kind} yet\.$"):
            ask()
        there |= {"first": None, "second": None}
        with pytest.raises(ClusterError, match=rf"^Unknown {kind} 'third' \(one\)\. Known: second, first\.$"):
            ask("third")
        with pytest.raises(ClusterError, match=rf"^Unknown {kind} 'secnod' \(one\)\. Did you mean second\?$"):
            ask("secnod")
        assert (ask().name, ask("first").name) == ("second", "first")


def test_a_name_is_that_of_a_run_and_a_command_or_any_option_makes_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with own_home():
        first = job_with(BEGAN)
        first.directory.mkdir(parents=True)
        cluster = first.cluster
        with pytest.raises(ClusterError, match=r"Unknown run 'make' \(one\)"):
            cluster.run("make")
        sent: list[object] = []
        monkeypatch.setattr(commands, "send", lambda _, command: sent.append(command) or {})
        jobs, ended = first.directory.parent, subprocess.Popen(["true"])
        ended.wait()
        for name in (f".job-9.{ended.pid}", f".job-9.{ended.pid}.1a2b", f".job-8.{os.getpid()}"):
            (jobs / name / "include").mkdir(parents=True)
        job = cluster.run("make", workers=2)
        left = [path.name for path in jobs.glob(".*")]
        assert left == [f".job-8.{os.getpid()}"], "what a killed declaration left is removed"
        assert (job.name, cluster.run("make all", keep="out/").name) == ("job-2", "job-3")
        assert JobSpec.from_dict(_declaration(job)).workers == 2
        one = JobSpec.from_dict(_declaration(cluster.run("make one", include=str(Path(__file__)), pip="einops")))
        assert (one.include, one.pip) == ((Path(__file__).name,), ("einops",)), "one alone needs no brackets"
        for wrong, why in (
            ({"keep": "../out"}, "Invalid --keep: '../out' is not a folder below"),
            ({"workers": 3}, "one has 2 workers, not 3"),
            ({"environment": {"LD_PRELOAD": "x"}}, "Invalid --environment: LD_PRELOAD cannot be set"),
            ({"include": ("nowhere.py",)}, ".nowhere.py. does not exist"),
            ({"timeout_seconds": -1.0}, "Invalid --job-timeout"),
            ({"at_notice_seconds": 40.0}, r"Invalid --at-notice: must be from 15.0 to 30.0, not 40.0"),
        ):
            with pytest.raises(DeclarationError, match=why):
                cluster.run("make all", **wrong)
        with pytest.raises(ClusterError, match="one has a job job-2 already"):
            cluster.run("true", name="job-2", workers=1)


@pytest.mark.parametrize("verb", [client.train, client.declare_study])
def test_nothing_trains_on_a_cluster_for_jobs(verb: Callable[..., object]) -> None:
    with own_home():
        cluster = job_with(BEGAN, purpose="jobs").cluster
        why = r"one was declared --for jobs, so its VMs have no TensorFlow\. Name another cluster with --cluster, or"
        with pytest.raises(ClusterError, match=why):
            verb(source="", train_steps=1, cluster=cluster)
        assert not list((cluster.directory / layout.RUNS).glob("*"))


def test_how_jobs_end_in_words() -> None:
    job = JobState("job-1", SPEC, attempt=3, vms=("worker-4",), phase="running", interruptions=2)
    assert job_words(job) == "begins on worker-4 (attempt 3, after 2 revocations)"
    assert job_words(replace(job, vms=())).startswith("waits for 1 worker to continue")
    assert job_words(replace(job, phase="failed", reason="its command ended with code 3")) == (
        "failed: its command ended with code 3"
    )
    assert job_words(JobState("job-1", SPEC)) == "waits for 1 worker"


def test_a_line_of_a_job_is_read_as_its_help_says() -> None:
    said = (
        "'python train.py' --keep out --keep-every 5m --env A=b=c --env D= --job-timeout 2h --memory 1.5 --workers 2 "
        "--at-notice 20"
    )
    values = parse("job", split(said)).values
    assert values == {
        "command": "python train.py", "keep": "out", "keep_seconds": 300.0, "environment": {"A": "b=c", "D": ""},
        "timeout_seconds": 7200.0, "memory_bytes": 1_500_000_000, "workers": 2, "at_notice_seconds": 20.0,
    }  # fmt: skip
    with pytest.raises(DeclarationError, match="TRANSIENT_JOB cannot be set"):
        parse("job", split("true --env TRANSIENT_JOB=x"))


def _declaration(job: Job) -> dict[str, object]:
    return json.loads((job.directory / layout.JOB).read_text(encoding="utf-8"))
