"""Nothing that a VM, a bucket or a copied journal says decides what this machine rents, runs, or writes where."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transient_magics import client, errors, places
from transient_magics.client import commands
from transient_magics.cloud import BoundedToken, CloudStorage, Reach, Vm
from transient_magics.controller.__main__ import _end_without_lock, _look_after
from transient_magics.controller.cluster import Controller
from transient_magics.controller.decisions.core import RequestVm, Situation, decide
from transient_magics.controller.record import Recorder
from transient_magics.controller.remote_controller import attach
from transient_magics.controller.remote_controller.proxy import ControllerProxy
from transient_magics.controller.setup import Setup
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.errors import AgreementError, ClusterError, DeclarationError, JournalError, checked_answer
from transient_magics.journal import Journal, RunState, bill, declared, events, fold, read, replay, unknown_run
from transient_magics.journal.declared import waiting
from transient_magics.journal.lock import take
from transient_magics.protocol.cluster_commands import Resize
from transient_magics.protocol.vm_events import TrainFinished
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup, cluster_store
from transient_magics.works.bags.state import DeclaredBag
from transient_magics.works.dask.state import DaskState
from transient_magics.works.jobs.state import JobState
from transient_magics.works.runs import checking
from transient_magics.works.runs.conduct import Runs
from transient_magics.works.runs.training import Training

PRICE = PriceLine("n1-standard-4", 0.256, 0.723, "test")
SPEC = ClusterSpec(
    name="one", groups=(WorkerGroup("k80", 2),), zones=("us-west1-b",), project="mine",
    prices={"k80": PRICE, "parameter-server": PRICE},
    image="projects/mine/global/images/good", max_workers=4, max_cost=10.0, declared_at=time.time(),
    controller="cluster", id="0123abcd",
)  # fmt: skip
EVIL = replace(
    SPEC, groups=(WorkerGroup("a100", 64),), image="projects/attacker/global/images/evil", service_account="owner@mine",
    max_cost=None, max_seconds=1e9, project="another", bucket="attackers", ssh_from=("0.0.0.0/0",), id="ffffffff",
    prices={"a100": replace(PRICE, machine_type="a2-megagpu-16g"), "parameter-server": PRICE},
)  # fmt: skip
SERVER: dict[str, Any] = {
    "role": "ps", "slot": 0, "zone": "us-west1-b", "accelerator": "", "machine_type": "n1-standard-4",
    "provisioning_model": "standard", "hourly": 0.2, "on_demand_hourly": 0.2,
}  # fmt: skip
PIP = ["https://attacker.example/evil.tar.gz"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster that a VM's controller has been in charge of; what it wrote since then is an attacker's."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    folder = places.cluster("one")
    (folder / "runs" / "run-1").mkdir(parents=True)
    (folder / "runs" / "run-1" / "run.json").write_text(
        json.dumps({"name": "run-1", "train_steps": 9, "token": "t"}), encoding="utf-8"
    )
    (folder / "spec.json").write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    with Journal(folder / "journal.jsonl") as journal:
        journal.append(events.ClusterDeclared(spec=SPEC.to_dict()))
        journal.append(events.VmRequested(vm="ps-0", **SERVER))
        journal.append(events.VmRunning(vm="ps-0", address="10.0.0.1", vm_id="1"))
        journal.append(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}))
        journal.append(events.ControllerMoved(vm="ps-0"))
    return folder


def attack(folder: Path) -> None:
    """What the VM wrote."""
    with Journal(folder / "journal.jsonl") as journal:
        journal.append(events.ClusterResized(spec=EVIL.to_dict()))
        journal.append(events.ClusterClock(anchors=((0.0, 0.0, 1e-6),)))
        journal.append(events.ReclaimWanted(number=1, vms=("ps-0",), until=time.time() + 60))
        journal.append(events.ReclaimAnswered(vms=("ps-0",), reason="a VM said so"))
        evil = {**SERVER, "machine_type": "a2-megagpu-16g", "role": "worker", "slot": 0}
        journal.append(events.VmRequested(vm="worker-0", **evil))
        journal.append(
            events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9, "pip": PIP, "store": "gs://evil/x"})
        )
        journal.append(events.ControllerMoved(vm=""))


@contextmanager
def taken_back(folder: Path) -> Iterator[Controller]:
    """A controller on this machine that takes charge, up to where it asks Compute Engine."""
    controller = Controller(folder)
    with Journal(folder / "journal.jsonl") as journal:
        history = read(journal.path)
        controller._create_works(Recorder(journal, replay(history)))
        assert declared.was_elsewhere(history)
        controller._sift_journal(declared.agreed(folder, history))
        yield controller


@pytest.mark.parametrize("noted", [True, False])
def test_a_cluster_is_taken_back_as_this_machine_knows_it(home: Path, noted: bool) -> None:
    known = replace(SPEC, groups=(WorkerGroup("k80", 3),)) if noted else SPEC
    if noted:  # its own user has resized it meanwhile
        declared.agree(home, known)
    attack(home)
    with taken_back(home) as controller:
        state = controller._state
        assert state.spec == known
        assert not state.vms["worker-0"].living  # what was only asked for is not asked for again
        assert "taken back as declared on this machine" in state.trouble
        assert "max_cost" in state.trouble
        assert state.clock.rate == 1.0  # with a project, the clock is Google's
        assert state.reclaim is None  # nor does any VM go because of it
        wanted = [each for each in decide(Situation(time.time(), state)) if isinstance(each, RequestVm)]
        assert {each.accelerator for each in wanted} == {"k80"}
        assert len(wanted) == known.worker_count
    assert replay(read(home / "journal.jsonl")).spec == known


def test_workers_on_demand_that_a_vm_decided_on_are_not_rented_when_the_cluster_is_taken_back(home: Path) -> None:
    """Its journal has a run with a deadline rent three, where two Spot workers are declared."""
    on_demand = (("k80", "standard", 3),)
    due = {"name": "run-2", "train_steps": 9, "finish_by": time.time() + 3600, "token": "t"}
    (home / "runs" / "run-2").mkdir()
    (home / "runs" / "run-2" / "run.json").write_text(json.dumps(due), encoding="utf-8")
    with Journal(home / "journal.jsonl") as journal:
        journal.append(
            events.WorkDeclared(of="run", work="run-2", spec={"train_steps": 9, "finish_by": time.time() + 3600})
        )
        journal.append(events.DeadlineActed(run="run-2", machines=on_demand, reason="a VM said so"))
        journal.append(events.ControllerMoved(vm=""))
    assert replay(read(home / "journal.jsonl")).steered == on_demand
    with taken_back(home):
        state = replay(read(home / "journal.jsonl"))
    decisions = decide(Situation(time.time(), state))
    requests = [decision for decision in decisions if isinstance(decision, RequestVm) and decision.role == "worker"]
    assert [(request.accelerator, request.provisioning_model) for request in requests] == [("k80", "spot")] * 2


def test_a_worker_that_only_the_journal_tells_to_become_another_machine_is_not_started_as_that(home: Path) -> None:
    worker = {**SERVER, "role": "worker", "accelerator": "k80", "provisioning_model": "spot"}
    with Journal(home / "journal.jsonl") as journal:
        journal.append(events.VmRequested(vm="worker-0", **worker))
        journal.append(events.VmRunning(vm="worker-0", address="10.0.0.2", vm_id="2"))
        journal.append(events.VmReady(vm="worker-0"))
        journal.append(events.VmMachineAsked(vm="worker-0", machine_type="a2-megagpu-16g", hourly=0.1, disk_hourly=0.0,
                                             on_demand_hourly=0.1, part=1.0, reason="a VM said so"))  # fmt: skip
        journal.append(events.VmStopped(vm="worker-0", reason="a VM said so"))
        journal.append(events.ControllerMoved(vm=""))
    with taken_back(home) as controller:
        assert not controller._state.vms["worker-0"].living
        wanted = [each for each in decide(Situation(time.time(), controller._state)) if isinstance(each, RequestVm)]
        assert [each.accelerator for each in wanted] == ["k80", "k80"]


def test_what_only_the_journal_tells_of_jobs_and_bags_is_ended_when_a_cluster_is_taken_back(home: Path) -> None:
    job: dict[str, Any] = {"name": "job-1", "command": "true", "declared_at": 1.0}
    space = [{"name": "x", "kind": "float", "low": 0.0, "high": 1.0}]
    bag: dict[str, Any] = {"name": "bag-1", "jobs": 3, "space": space, "declared_at": 1.0}
    for place, name, known in (("jobs", "job", job), ("bags", "bag", bag)):
        (home / place / f"{name}-1").mkdir(parents=True)
        (home / place / f"{name}-1" / f"{name}.json").write_text(json.dumps(known), encoding="utf-8")
    with Journal(home / "journal.jsonl") as journal:
        journal.append(events.WorkDeclared(of="job", work="job-1", spec=job))
        journal.append(events.WorkDeclared(of="job", work="job-2", spec={**job, "name": "job-2", "pip": ["numpy"]}))
        journal.append(events.WorkDeclared(of="bag", work="bag-1", spec={**bag, "pip": ["numpy"]}))
        journal.append(
            events.WorkDeclared(of="dask", work="dask-1", spec={"name": "dask-1", "workers": 1, "declared_at": 1.0})
        )
        journal.append(events.ControllerMoved(vm=""))
    with taken_back(home) as controller:
        state = controller._state
        assert [each.name for each in state.active(JobState)] == ["job-1"]
        assert (
            state.of(JobState)["job-2"].reason
            == state.of(DeclaredBag)["bag-1"].reason
            == "this machine has not declared it so"
        )
        assert "its keys were lost" in cast("events.WorkStopping", state.of(DaskState)["dask-1"].stop).reason


@pytest.mark.parametrize("noted", [True, False])
def test_a_resize_is_reckoned_from_what_this_machine_knows(
    home: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    if noted:  # an earlier version handed the cluster over without a note
        declared.agree(home, SPEC)
    attack(home)
    sent: list[Resize] = []
    monkeypatch.setattr(commands, "send", lambda _, command: sent.append(command))
    client.Cluster("one").resize("cpux3")
    wanted = ClusterSpec.from_dict(sent[0].spec)
    assert (wanted.project, wanted.image, wanted.max_cost, wanted.id) == ("mine", SPEC.image, 10.0, SPEC.id)
    assert "a2-megagpu-16g" not in {line.machine_type for line in wanted.prices.values()}


def test_a_run_is_what_its_file_on_this_machine_says(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack(home)
    begun: list[tuple[RunState, bool]] = []

    def training(run: RunState, *_: object, own: bool, **__: object) -> Training:
        begun.append((run, own))
        return cast(Training, SimpleNamespace())

    monkeypatch.setattr("transient_magics.works.runs.conduct.Training", training)
    with taken_back(home) as controller:
        fleet = cast(Fleet, SimpleNamespace(training_refused="", link=None, storage=None, bounded_token=None))
        runs = Runs(home, controller._recorder, controller._link)
        runs.take_charge(fleet, cast(Any, SimpleNamespace(do=lambda *_: None)))
        runs._conduct(fleet, controller._state.of(RunState)["run-1"])
        declared.note_brought(home, "run-1")
        runs._conduct(fleet, controller._state.of(RunState)["run-1"])
    (run, own), (_, brought) = begun
    assert (run.spec.pip, run.spec.store, run.train_steps) == ((), None, 9)
    assert (own, brought) == (True, False)


@pytest.mark.parametrize("asked_for", [True, False])
async def test_without_an_answer_of_compute_engine_no_vm_is_called_gone(home: Path, asked_for: bool) -> None:
    if not asked_for:
        for path in home.glob("*journal.jsonl*"):
            path.unlink()
    (home / "owner.json").write_text("{}", encoding="utf-8")
    answers: list[errors.CloudError | None] = [errors.UnreachableError("no network"), None]

    async def reopen() -> None:
        if error := answers.pop(0):
            raise error

    access = cast(Access, SimpleNamespace(reopen=reopen, unprotect=_nothing, engine=None))
    controller = Controller(home)
    with Journal(home / "journal.jsonl") as journal:
        controller._recorder = Recorder(journal, replay(read(journal.path)))
        if asked_for:
            controller._recorder.record(events.VmRefused(vm="ps-0", reason="it did not start"))
        else:
            controller._recorder.record(events.ClusterDeclared(spec=SPEC.to_dict()))
        controller._recorder.begin_deletion("asked by the user")
        assert await Setup(home, controller._recorder, access).open() is asked_for
        assert controller._state.over is not asked_for


def test_a_declaration_that_cannot_be_read_holds_up_no_controller(home: Path) -> None:
    for name, values in (("run-2", {"hparams": "x" * 5000}), ("run-3", {})):
        (home / "runs" / name).mkdir()
        (home / "runs" / name / "run.json").write_text(
            json.dumps({"name": name, "train_steps": 9, **values}), encoding="utf-8"
        )
    with taken_back(home) as controller:
        Runs(home, controller._recorder, controller._link).declare_waiting()
        runs = controller._state.of(RunState)
        assert "hparams: must have at most 4096 bytes, and has 5000" in runs["run-2"].reason
        assert [runs[name].phase for name in ("run-1", "run-2", "run-3")] == ["declared", "failed", "declared"]


@pytest.mark.parametrize("values", [{"train_steps": 9.0}, {"train_steps": 9, "pip": ("x",) * 1100}])
def test_what_no_controller_could_read_is_not_declared(home: Path, values: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"Invalid --(train-steps|pip): "):
        client.train(source="", cluster="one", **values)
    assert not (home / "runs" / "run-2").exists()
    with pytest.raises(DeclarationError, match=r"max_workers: must be a whole number, not 8\.0"):
        client.specify(client.Declaration("cpux2", max_workers=cast(int, 8.0)))


async def test_of_a_brought_run_nothing_is_built_here(home: Path) -> None:
    run = unknown_run("run-1", train_steps=9, pip=PIP)
    assert not Training(run, home / "runs" / "run-1", lambda _: None, lambda _: None, lambda: None)._checked
    assert Training(run, home / "runs" / "run-1", lambda _: None, lambda _: None, lambda: None, own=False)._checked


@pytest.mark.parametrize("own", [True, False])
async def test_a_run_that_a_vm_declared_opens_no_place_of_others(home: Path, own: bool) -> None:
    """The token is made with all rights of this machine's user."""
    run = unknown_run("run-2", train_steps=9, model="mlp", problem="p", data_dir="gs://private/records",
                      resume_store="gs://private/a/run-9")  # fmt: skip
    asked, told, store = list[str](), list[str](), "gs://ours/cluster-1/run-2"

    async def mint(reaches: Sequence[Reach]) -> BoundedToken:
        asked.extend(each.place for each in reaches)
        return BoundedToken("secret", time.time() + 3600.0)

    def training(run: RunState) -> Training:
        return Training(run, home / "runs" / "run-2", lambda _: None, lambda _: None, lambda: None, store, mint=mint,
                        note=lambda _, text: told.append(text), own=own)  # fmt: skip

    keeper = training(run)._token
    assert keeper
    await keeper.renew()
    assert any("private" in each for each in asked) == own
    assert "gs://ours/cluster-1/run-2/checkpoints/" in asked
    assert any("declared elsewhere" in each for each in told) != own
    asked.clear()
    beside = training(replace(run, spec=replace(run.spec, resume_store="gs://ours/cluster-1/run-1", data_dir=None)))
    assert beside._token
    await beside._token.renew()
    assert "gs://ours/cluster-1/run-1/checkpoints/" in asked, "of the same cluster"


def test_code_from_a_vm_runs_only_after_its_user_agreed(home: Path) -> None:
    run, folder = client.Cluster("one").run("run-1"), home / "runs" / "run-1"
    declared.agree_to_code(home, "run-1", trust=False)  # it is his own
    declared.note_brought(home, "run-1")
    (folder / "cell.py").write_text("import os", encoding="utf-8")
    for use in (lambda: run.predict([1]), lambda: run.decode(["a"]), lambda: run.export(home / "model")):
        with pytest.raises(AgreementError, match=rf"cell\.py.*{declared.fingerprint(folder)}.*trust=True"):
            use()
    declared.agree_to_code(home, "run-1", trust=True)
    declared.agree_to_code(home, "run-1", trust=False)
    (folder / "cell.py").write_text("import os; os.system('evil')", encoding="utf-8")
    with pytest.raises(AgreementError):
        declared.agree_to_code(home, "run-1", trust=False)


def test_what_a_vm_named_beside_a_runs_own_files_is_not_fetched(home: Path, tmp_path: Path) -> None:
    declared.note_brought(home, "run-1")
    folder = home / "runs" / "run-1"
    for name in (".git/config", "checkpoints/checkpoint"):
        (folder / name).parent.mkdir()
    for name in (".git/config", "checkpoints/checkpoint", ".envrc", "sitecustomize.py", "cell.py", "metrics.jsonl"):
        (folder / name).write_text("", encoding="utf-8")
    target = client.Cluster("one").run("run-1").fetch(tmp_path / "work")
    found = {path.name for path in target.iterdir()}
    assert found == {"run.json", "cell.py", "metrics.jsonl", "checkpoints", "journal.jsonl"}


async def test_a_machine_that_attached_rents_nothing(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / declared.ATTACHED).touch()
    attack(home)  # it ends by saying that this machine is in charge
    lock = take(home)
    assert lock is not None
    await _look_after(home, lock)
    os.close(lock)
    assert "but this machine only follows the cluster" in caplog.text


def seat(name: str, **labels: str) -> Vm:
    """A VM that says that it has the controller of a cluster."""
    return cast(Vm, SimpleNamespace(name=name, id=7, zone="us-west1-b", status="RUNNING", labels=labels))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "no VM with its controller"),
        ([{"transient-magics-owner": "stranger"}], "does not belong to me.*vm-0.*us-west1-b.*stranger"),
        ([{}], "does not belong to me.*owner unknown"),
        ([{"transient-magics-owner": "me"}] * 2, "Several VMs.*vm-0.*vm-1"),
    ],
)
async def test_attaching_takes_the_one_vm_of_this_owner(
    found: list[dict[str, str]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def whose(_: object) -> dict[str, str]:
        return {"transient-magics-owner": "me"}

    async def listed(_: object) -> list[Vm]:
        return [seat(f"vm-{number}", **labels) for number, labels in enumerate(found)]

    monkeypatch.setattr(attach, "owner_labels", whose)
    access = cast(Access, SimpleNamespace(engine=SimpleNamespace(list=listed)))
    with pytest.raises(ClusterError, match=said):
        await attach.the_seat(access, "one", "mine")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "two"},
        {"groups": [], "zones": []},
        {"id": "ffffffff"},
        {"project": "another"},
        {"groups": "x"},
        {"name": ".."},
    ],
)
def test_what_is_attached_to_is_about_that_very_cluster(tmp_path: Path, change: dict[str, Any]) -> None:
    vm = seat("one-ps-0", **{"transient-magics-id": SPEC.id})
    (tmp_path / "spec.json").write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    shown = declared.shown(attach.fitting(tmp_path, vm, "one", "mine"), {**vars(vm), "owner": "me"})
    assert shown == (
        "one in project mine: k80x2, limits 24 h and $10.00; "
        "its controller runs on one-ps-0 (id 7, us-west1-b, owner me)"
    )
    (tmp_path / "spec.json").write_text(json.dumps({**SPEC.to_dict(), **change}), encoding="utf-8")
    with pytest.raises(ClusterError, match=r"another cluster|cannot be read"):
        attach.fitting(tmp_path, vm, "one", "mine")


def test_a_mirror_goes_by_what_this_machine_declared_and_copies_any_line(home: Path) -> None:
    with Journal(home / "journal.jsonl") as journal:
        journal.append(events.ClusterResized(spec=EVIL.to_dict()))
    mirror = ControllerProxy(home)
    assert mirror._spec == SPEC
    before = mirror.state
    size, asked = mirror._journal.stat().st_size, []
    mirror.do = lambda what, _: asked.append(what)  # type: ignore[method-assign]
    for line in (
        b"[1]", b"[" * 100_000, b'{"kind":"work.declared","of":"run","work":"../../../../../..","spec":{}}',
        b'{"kind":"work.declared","of":"run","work":"/etc","spec":{}}',
        b'{"kind":"cluster.resized","spec":{"name":"x"}}',
        b'{"kind":"controller.moved","vm":"nowhere-1"}', b'{"kind":"controller.moved","vm":""}',
        b'{"kind":"cluster.deleted"}', b'{"kind":"train.progress","run":"run-1","step":1,"time":"x"}',
    ):  # fmt: skip
        size += len(line) + 1
        mirror._copy(size, line)
    size += 2_000_000 + 5  # a line that was too long came before this one
    mirror._copy(size, b"last")
    assert (mirror.state, asked) == (before, [])
    assert mirror._journal.stat().st_size == size
    assert mirror._journal.read_bytes().endswith(b"\nlast\n")
    told = replay(read(mirror._journal))  # what everybody else reads
    assert (told.seat, told.over) == ("ps-0", False)
    whole = mirror._journal.read_bytes()
    with pytest.raises(JournalError, match="differs from its copy on this machine"):
        mirror._copy(6, b"again")
    assert mirror._journal.read_bytes() == whole, "what this machine wrote stays"
    with pytest.raises(ClusterError, match="Invalid name of a run"):
        declared.run_folder(home, "../../..")


async def test_by_what_the_controllers_vm_writes_of_its_own_id_it_is_not_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it had this machine take the cluster back, and what it wrote, whenever it likes."""
    with Journal(home / "journal.jsonl") as journal:
        journal.append(events.VmRunning(vm="ps-0", address="10.9.9.9", vm_id="666"))
    mirror = ControllerProxy(home)

    async def there(zone: str, name: str) -> Any:
        return SimpleNamespace(id="1", status="RUNNING")

    monkeypatch.setattr(mirror, "_access", SimpleNamespace(engine=SimpleNamespace(get=there)))
    assert not await mirror._is_vacant()
    assert mirror._vm.address == "10.0.0.1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "taken"),
    [
        (b'{"seq":6,"time":7,"kind":"vm.deleted","vm":"ps-0","reason":"lost"}\n', True),
        (b'{"seq":6,"time":7,"kind":"cluster.deleted"}\n', False),
        (b'{"seq":6,"time":7,"kind":"controller.moved","vm":""}\n', False),
        (b" " * 4096, False),
    ],
)
async def test_the_end_of_a_journal_comes_from_the_bucket_if_a_controller_wrote_it(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch, end: bytes, taken: bool
) -> None:
    monkeypatch.setattr("transient_magics.controller.remote_controller.proxy._MOST_JOURNAL", 4096)
    bucket = f"results-{uuid.uuid4().hex}"
    declared.agree(home, replace(SPEC, bucket=bucket))
    mirror = ControllerProxy(home)
    here = (home / "journal.jsonl").read_bytes()
    (home / "there").write_bytes(here + end)
    place = str(cluster_store(mirror._spec)).removeprefix(f"gs://{bucket}/")
    async with CloudStorage("p", url, patience=3) as storage:
        monkeypatch.setattr(mirror, "_access", SimpleNamespace(storage=storage))
        await mirror._complete_journal()  # there is no such bucket
        await storage.ensure_bucket(bucket, "us-west1")
        await mirror._complete_journal()  # nor an object in it
        assert (home / "journal.jsonl").read_bytes() == here
        await storage.upload(bucket, f"{place}/journal.jsonl", home / "there")
        await mirror._complete_journal()
    assert (home / "journal.jsonl").read_bytes() == (here + end if taken else here)


def test_one_bad_line_ends_nobody_and_everything_can_be_deleted(home: Path) -> None:
    """Also no handle, no list: whoever reads passes over what makes no sense."""
    bad = [
        b'{"kind":"train.progress","run":"run-1","step":1,"time":"x"}', b'{"kind":7}', b"[1]", b"[" * 200_000,
        b'{"seq":6,"time":1,"kind":"train.evaluated","run":"run-1","step":1,"metrics":7}', b"\xff\xfe", b"7" * 9999,
        b'{"seq":7,"time":1,"kind":"cluster.declared","spec":7}',
        b'{"seq":8,"time":1,"kind":"cluster.resized","spec":{}}',
    ]  # fmt: skip
    with (home / "journal.jsonl").open("ab") as file:
        file.write(b"\n".join(bad) + b"\n")
    state = client.Cluster("one").state
    assert (state.spec, state.passed_over) == (SPEC, 1)
    assert [each.name for each in client.clusters()] == ["one"]
    assert client.Cluster("one").run("run-1").state.train_steps == 9
    (home / "journal.jsonl").write_bytes(b"\n".join(bad[:4]) + b"\n")  # nothing is left of it
    assert client.Cluster("one").state.spec == SPEC
    (home / "spec.json").write_text("{}", encoding="utf-8")
    assert (client.clusters(all=True), len(client.unreadable())) == ([], 1)


def test_a_cluster_whose_journal_was_removed_is_what_it_was(home: Path) -> None:
    """Its bill, on which --max-cost depends, and what has ended, so that none of it begins a second time."""
    with Journal(home / "journal.jsonl") as journal:
        journal.append(TrainFinished(run="run-1", step=9))
    before = client.Cluster("one").state
    (home / "journal.jsonl").unlink()
    state = client.Cluster("one").state
    assert (state.vms, state.of(RunState), state.seat) == (before.vms, before.of(RunState), "ps-0")
    assert client.Cluster("one").cost().total > 0
    assert waiting(home, state, "run") == []


def test_a_cluster_without_any_journal_costs_the_most_that_it_can_and_runs_nothing_again(home: Path) -> None:
    declared.agree(home, replace(SPEC, max_cost=1.0, declared_at=time.time() - 1800))
    write = {"jobs/job-1/job.json": {"name": "job-1", "command": "true", "declared_at": 1.0}}
    for name, content in write.items():
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text(json.dumps(content), encoding="utf-8")
    for path in home.glob("*journal.jsonl*"):
        path.unlink()
    controller = Controller(home)
    with Journal(home / "journal.jsonl") as journal:
        controller._create_works(Recorder(journal, replay(read(journal.path))))
        controller._begin_journal()
        state = controller._state
    assert bill(state, time.time()).total == pytest.approx(SPEC.most_hourly / 2, rel=0.01)
    assert f"its bill begins with ${SPEC.most_hourly / 2:.2f}" in state.trouble
    assert (state.of(RunState)["run-1"].phase, state.of(JobState)["job-1"].phase) == ("failed", "failed")
    assert not state.current_or_next_run
    assert not state.active(JobState)
    assert "the removed journal" in state.of(JobState)["job-1"].reason


@pytest.mark.parametrize("other", [True, False])
async def test_a_controller_ends_when_its_lock_is_not_that_of_the_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    monkeypatch.setattr("transient_magics.controller.__main__._LOOK_SECONDS", 0.01)
    lock = take(home)
    assert lock is not None
    governing = asyncio.create_task(asyncio.sleep(60))
    watching = asyncio.create_task(_end_without_lock(home, lock, governing))
    await asyncio.sleep(0.1)
    assert not governing.done(), "it has its lock"
    (home / "controller.lock").unlink()
    beside = take(home) if other else None
    async with asyncio.timeout(5):
        await watching
    with pytest.raises(asyncio.CancelledError):
        await governing
    for each in filter(None, (lock, beside)):
        os.close(each)


def test_of_what_a_check_on_a_vm_counts_only_numbers_are_kept(tmp_path: Path) -> None:
    counted = {"parameters": 7, "flops": 10**400, "bytes": True, "name": "x", "loss": float("nan")}
    assert checking._reason(tmp_path, json.dumps({"ok": True, "model": counted}), "") == ""
    assert json.loads((tmp_path / "model.json").read_text(encoding="utf-8")) == {"parameters": 7}


def test_an_event_that_makes_no_sense_is_never_written(home: Path) -> None:
    with Journal(home / "journal.jsonl") as journal:
        recorder = Recorder(journal, replay(read(journal.path)))
        size, state = journal.path.stat().st_size, recorder.state
        assert not recorder.record(events.ClusterResized(spec={"name": "x"}))
        assert not recorder.record(events.ControllerMoved(vm="nowhere-1"))
        assert (journal.path.stat().st_size, recorder.state) == (size, state)
        assert recorder.record(events.ControllerTrouble(what="it goes on"))
    with pytest.raises(JournalError, match="does not fit the state"):
        fold(state, events.ControllerMoved(vm="nowhere-1"))


def test_what_was_in_the_way_of_a_run_is_told_until_it_is_forgotten(home: Path) -> None:
    with Journal(home / "journal.jsonl") as journal:
        recorder = Recorder(journal, replay(read(journal.path)))
        for run in ("run-1", "run-2"):
            recorder.note("results", f"Those of {run} stay on its VM", run=run)
        recorder.note("clock", "It is wrong")
        recorder.forget({"run-1"})
        assert recorder.state.trouble == "Those of run-2 stay on its VM; It is wrong"


def test_an_error_that_a_vm_names_is_one_of_ours() -> None:
    for kind, expected in [
        ("StockoutError", errors.StockoutError),
        ("annotations", ClusterError),
        ("Exception", ClusterError),
    ]:
        with pytest.raises(expected, match=r"^no"):
            checked_answer({"ok": False, "kind": kind, "error": "no"})
    assert errors.error_class(["StockoutError"], ClusterError) is ClusterError


@asynccontextmanager
async def chief(
    folder: Path, said: list[bytes], monkeypatch: pytest.MonkeyPatch, ahead: int = 0
) -> AsyncIterator[list[Any]]:
    """What the controller records while it follows a chief that says all this and then, that the run has failed."""
    recorded: list[Any] = []
    last = json.dumps(
        {"kind": "train.failed", "run": "run-1", "reason": "over", "time": time.time_ns() + ahead}
    ).encode()

    async def lines(*_: object, **__: object) -> AsyncIterator[bytes]:
        for line in [*said, last]:
            yield line

    run = replace(unknown_run("run-1", train_steps=9), declared_at=time.time())

    def note(source: str, what: str) -> None:
        recorded.append(events.ControllerTrouble(what=what))

    training = Training(run, folder / "runs" / "run-1", recorded.append, lambda _: None, lambda: None, note=note)
    monkeypatch.setattr(training._chief, "lines", lines)
    monkeypatch.setattr(training._chief, "connection", _timeless)
    training._chief.leads_to("ps-0")
    await training._follow_chief()
    assert training._over.result().time <= time.time_ns()  # from then on the cluster is idle, whatever was said
    yield recorded


async def _nothing() -> None:
    return None


async def _timeless() -> SimpleNamespace:
    async def run(command: str) -> str:
        return "inf"

    return SimpleNamespace(run=run)


async def test_a_chief_decides_nothing_for_the_controller(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    said = [
        {"kind": "cluster.resized", "spec": EVIL.to_dict()}, {"kind": "cluster.clock", "anchors": [[0, 0, 1e-6]]},
        {"kind": "work.declared", "of": "run", "work": "run-1", "spec": {"pip": PIP}},
        {"kind": "vm.revoked", "vm": "ps-0", "signal": "api"},
        {"kind": "controller.moved", "vm": ""}, {"kind": "cluster.deleted"},
        {"kind": "train.progress", "run": "run-2", "step": 1},
        {"kind": "train.progress", "run": "run-1", "step": 1, "time": "x"},
    ]  # fmt: skip
    good = {"kind": "train.progress", "run": "run-1", "step": 5, "time": now}
    lines = [json.dumps({"time": now, **each}).encode() for each in [*said, good, good]] + [b"[1]", b"[" * 200_000]
    async with chief(home, lines, monkeypatch, ahead=20 * 3600 * 10**9) as recorded:
        told = [each for each in recorded if each.kind == "controller.trouble"]
        assert [each.step for each in recorded if each.kind == "train.progress"] == [5]  # and known by kind and time
        assert len(recorded) == len(told) + 1
        assert "a VM sent an event of the unexpected kind 'cluster.resized'" in told[0].what
        assert len(told) == 1  # told once, whatever comes
